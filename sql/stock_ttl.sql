-- A superuser limits how long stock can be held.  If this fails, a role that
-- may reserve can hold all stock permanently.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10);
CREATE ROLE regress_shopper;
SELECT idempotency_grant('regress_shopper');
SHOW idempotency.reservation_ttl_max;
SET ROLE regress_shopper;
SELECT outcome FROM stock_reserve('cup', 1, 'order 1', ttl => '744 h');
\set SHOW_CONTEXT never
SELECT stock_reserve('cup', 1, 'order 2', ttl => '200000 years');
SELECT stock_reserve_many('{"cup": 1}', 'order 2', ttl => '744 h 1 s');
SELECT stock_extend('order 1', '200000 years');
SELECT stock_cancel('order 1');
SELECT stock_reinstate('order 1', '200000 years');

-- The other setting does not circumvent it, and not every role may change this
-- one.
SET idempotency.reservation_ttl = '32d';
SELECT stock_reserve('cup', 1, 'order 2');
SELECT stock_reinstate('order 1');
RESET idempotency.reservation_ttl;
SET idempotency.reservation_ttl_max = -1;
RESET ROLE;
SELECT count(*) FROM stock_hold;

BEGIN;
SET LOCAL idempotency.reservation_ttl_max = '1 h';
SET LOCAL ROLE regress_shopper;
SELECT outcome FROM stock_reserve('cup', 1, 'order 2', ttl => '1 h');
SELECT stock_reserve('cup', 1, 'order 3', ttl => '1 h 1 us');
ROLLBACK;

-- Nor can a superuser make it longer than a year.
SET idempotency.reservation_ttl_max = '366d';
SET idempotency.reservation_ttl = '366d';
SELECT outcome FROM stock_reserve('cup', 1, 'order 2');
SELECT outcome FROM stock_extend('order 2', '8784 h');
SELECT stock_extend('order 2', '8784 h 1 us');
SELECT stock_reserve('cup', 1, 'order 3', ttl => '900000000000');
\set VERBOSITY sqlstate
SET idempotency.reservation_ttl_max = '8785h';
SET idempotency.reservation_ttl = '8785h';
SET idempotency.reservation_ttl_max = -1;
\set VERBOSITY default

DROP OWNED BY regress_shopper;
DROP ROLE regress_shopper;
TRUNCATE stock_log, stock_hold, stock_item;
