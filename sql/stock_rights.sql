-- An application's role can do its work, and only that.  If this fails, it
-- needs privileges on the tables, with which it could change stock without the
-- functions.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

CREATE ROLE regress_stock_clerk;
SELECT idempotency_grant('regress_stock_clerk');
SELECT stock_receive('cup', 10);

SET ROLE regress_stock_clerk;
SELECT outcome FROM stock_reserve('cup', 1, 'order 1');
SELECT outcome FROM stock_reserve_many('{"cup": 2}', 'order 2');
SELECT outcome FROM stock_extend('order 1', '1 h');
SELECT stock_confirm('order 1'), stock_cancel('order 2');
SELECT outcome FROM stock_reinstate('order 2');
SELECT stock_cancel('order 2');
SELECT * FROM stock_level('cup');
SELECT * FROM stock_levels;
SELECT state, lines FROM stock_reservation_status('order 1');

\set VERBOSITY sqlstate
SELECT * FROM idempotency_internal.stock_log;
UPDATE idempotency_internal.stock_item SET received = 1000;
DELETE FROM idempotency_internal.stock_hold;
SELECT stock_receive('cup', 1);
SELECT stock_verify();
SELECT idempotency_internal.stock_expire();
SELECT stock_adjust('cup', 1, 'mine');
SELECT stock_transfer('cup', 'mine', 1);
SELECT idempotency_internal.stock_compact();
SELECT idempotency_internal.stock_forget();
SELECT idempotency_internal.stock_announce('stock.expired', 'order 9', '{cup}', '{1}');
SELECT * FROM stock_history;

-- The caller's search_path does not affect the functions.
CREATE TEMPORARY TABLE stock_item (sku text, received bigint);
SET search_path = pg_temp, public, idempotency_internal;
SELECT outcome FROM stock_reserve('cup', 1, 'order 3');
RESET search_path;
DROP TABLE pg_temp.stock_item;

RESET ROLE;
DROP OWNED BY regress_stock_clerk;
DROP ROLE regress_stock_clerk;
TRUNCATE stock_log, stock_hold, stock_item;
