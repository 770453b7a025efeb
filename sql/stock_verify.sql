-- stock_verify detects wrong rows and counters.  If this fails, it returns ok
-- for wrong stock.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10), stock_receive('pot', 10);
SELECT outcome FROM stock_reserve_many('{"cup": 4, "pot": 3}', 'order 1');
SELECT outcome FROM stock_reserve_many('{"cup": 2, "pot": 1}', 'order 2');
SELECT stock_confirm('order 2', '{cup}'), stock_cancel('order 2', '{pot}');
SELECT * FROM stock_verify();
SELECT * FROM stock_verify('pot');
SELECT * FROM stock_verify(sku => 'jug');

-- Verifying one item reads only its rows, however many other items there are,
BEGIN;
SELECT count(stock_receive('other ' || i, 1)) FROM generate_series(1, 1000) i;
SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) AS read
FROM pg_stat_xact_user_tables WHERE relname LIKE 'stock_%' \gset before_
SELECT count(*) FROM generate_series(1, 10), LATERAL stock_verify('pot');
SELECT sum(seq_tup_read + idx_tup_fetch) - :before_read < 500 AS few
FROM pg_stat_xact_user_tables WHERE relname LIKE 'stock_%';
ROLLBACK;

-- and only its counter.  The sweeper does not read all counters either.
BEGIN;
SET LOCAL track_functions = 'all';
SELECT * FROM stock_verify('pot');
SELECT stock_compact(10);
SELECT funcname, calls FROM pg_stat_xact_user_functions
WHERE funcname IN ('stock_counter', 'stock_counters', 'stock_crowded') ORDER BY funcname;
ROLLBACK;

-- A wrong root record.  A transaction with external DML does not use counters.
BEGIN;
UPDATE stock_item SET confirmed = 5 WHERE sku = 'cup';
SELECT * FROM stock_verify();
UPDATE stock_item SET adjusted = 1e20 WHERE sku = 'cup';
SELECT * FROM stock_verify('cup');
ROLLBACK;
\set VERBOSITY sqlstate
UPDATE stock_item SET received = -1 WHERE sku = 'cup';
UPDATE stock_item SET confirmed = -1 WHERE sku = 'cup';
\set VERBOSITY default

-- A hold that was deleted, that was changed, that has no item.
BEGIN;
DELETE FROM stock_hold WHERE sku = 'cup';
UPDATE stock_hold SET quantity = 5;
INSERT INTO stock_hold (reservation, line, sku, quantity, expires_at)
VALUES ('order 9', 0, 'jug', 1, now() + interval '1 h');
SELECT * FROM stock_verify();
ROLLBACK;

-- The log: a row that was deleted, an item that was deleted.
BEGIN;
DELETE FROM stock_log WHERE sku = 'cup' AND change = 'confirm';
DELETE FROM stock_item WHERE sku = 'pot';
SELECT * FROM stock_verify();
ROLLBACK;

-- A counter that differs from the log, since the trigger was disabled in a way
-- that cannot be detected.
BEGIN;
SET LOCAL allow_system_table_mods = on;
UPDATE pg_trigger SET tgenabled = 'D'
WHERE tgrelid = 'stock_item'::regclass AND tgname = 'stock_guard';
COMMIT;
\c
UPDATE stock_item SET received = 1 WHERE sku = 'cup';
BEGIN;
SET LOCAL allow_system_table_mods = on;
UPDATE pg_trigger SET tgenabled = 'A'
WHERE tgrelid = 'stock_item'::regclass AND tgname = 'stock_guard';
COMMIT;
\c
SELECT * FROM stock_verify();
UPDATE stock_item SET received = 0 WHERE sku = 'cup';
SELECT * FROM stock_verify();

TRUNCATE stock_log, stock_hold, stock_item;
