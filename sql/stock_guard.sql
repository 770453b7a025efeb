-- The counters follow when the tables are changed by external DML.  If this
-- fails, a shop sells stock that a restore has changed.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
\set SHOW_CONTEXT never

SELECT stock_receive('cup', 10);
-- What the counter has, as the shortage of a reserve shows it.
CREATE FUNCTION free(sku text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer stock_reservation;
BEGIN
	answer := stock_reserve(sku, 1000, 'too many');
	RETURN answer.outcome || ' ' || (answer.shortages -> 0 ->> 'available');
END
$$;
SELECT free('cup');

INSERT INTO stock_log (sku, change, quantity, actor)
VALUES ('cup', 'receive', 5, 'somebody');
SELECT free('cup');
UPDATE stock_log SET quantity = 7 WHERE actor = 'somebody';
SELECT free('cup');
DELETE FROM stock_log WHERE actor = 'somebody';
SELECT free('cup');
UPDATE stock_item SET received = 3 WHERE sku = 'cup';
SELECT free('cup');
COPY stock_log (sku, change, quantity) FROM stdin;
cup	receive	1
cup	adjust	-2
\.
SELECT free('cup');
TRUNCATE stock_log;
SELECT free('cup');
INSERT INTO stock_item (sku, received) VALUES ('jug', 4);
SELECT free('jug');
DELETE FROM stock_item WHERE sku = 'jug';
SELECT free('jug');

-- A statement that changes no row has no effect, nor has one that is rolled
-- back.
UPDATE stock_item SET received = 30 WHERE sku = 'none';
BEGIN;
UPDATE stock_item SET received = 30 WHERE sku = 'cup';
ROLLBACK;
SELECT free('cup');
BEGIN;
SELECT outcome FROM stock_reserve('cup', 1, 'order 1');
SAVEPOINT s;
UPDATE stock_item SET received = 30 WHERE sku = 'cup';
ROLLBACK TO s;
SELECT outcome FROM stock_reserve('cup', 1, 'order 2');
COMMIT;
SELECT free('cup');

-- First the functions, then external DML; not the other way round.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 1, 'order 3');
UPDATE stock_item SET received = 30 WHERE sku = 'cup';
COMMIT;
SELECT free('cup');
BEGIN;
SAVEPOINT s;
UPDATE stock_item SET received = 40 WHERE sku = 'cup';
RELEASE s;
SELECT free('cup');
ROLLBACK;
BEGIN;
UPDATE stock_item SET received = 40 WHERE sku = 'cup';
SELECT stock_confirm('order 1');
ROLLBACK;
BEGIN;
UPDATE stock_item SET received = 40 WHERE sku = 'cup';
PREPARE TRANSACTION 'stock';

-- As logical replication applies changes.
BEGIN;
SET LOCAL session_replication_role = replica;
UPDATE stock_item SET received = 20 WHERE sku = 'cup';
COMMIT;
SELECT free('cup');
SELECT * FROM stock_verify();

-- Additional indexes of the owner do no harm.
CREATE INDEX stock_log_extra ON stock_log (sku) WHERE reservation IS NOT NULL;
CREATE INDEX stock_hold_extra ON stock_hold (expires_at, sku COLLATE "C");
REINDEX INDEX CONCURRENTLY stock_log_pkey;
UPDATE stock_item SET received = 20 WHERE sku = 'cup';
SELECT free('cup');
SELECT outcome FROM stock_reserve('cup', 1, 'order 4');
SELECT * FROM stock_verify();
DROP INDEX stock_log_extra, stock_hold_extra;

-- While a table has another name or schema its triggers cannot be disabled,
-- even with another table in its place.
SELECT free('cup');
\set VERBOSITY terse
BEGIN;
ALTER TABLE stock_log RENAME TO foo;
SAVEPOINT s;
ALTER TABLE foo DISABLE TRIGGER ALL;
ROLLBACK TO s;
CREATE TABLE idempotency_internal.stock_log (LIKE foo);
ALTER TABLE foo DISABLE TRIGGER ALL;
ROLLBACK;
BEGIN;
ALTER TABLE stock_log SET SCHEMA public;
ALTER TABLE stock_log DISABLE TRIGGER ALL;
ROLLBACK;
ALTER TABLE stock_item RENAME TO foo;
ALTER TABLE foo DISABLE TRIGGER stock_guard;
UPDATE foo SET received = 1 WHERE sku = 'cup';
ALTER TABLE foo ENABLE ALWAYS TRIGGER stock_guard;
ALTER TABLE foo RENAME TO stock_item;
\set VERBOSITY default
SELECT free('cup');
SELECT ok FROM stock_verify('cup');

DROP FUNCTION free;
TRUNCATE stock_log, stock_hold, stock_item;

-- Trigger functions cannot be called directly.
\set VERBOSITY sqlstate
SELECT stock_guard();
SELECT idem_key_redirect();
