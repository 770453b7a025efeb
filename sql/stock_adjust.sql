-- Corrections after a count: up and down, never below what is available.  If
-- this fails, a correction takes stock that is reserved.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10);
SELECT outcome FROM stock_reserve('cup', 6, 'order 1');
SELECT stock_adjust('cup', -3, 'three were broken');
SELECT * FROM stock_levels;
\set SHOW_CONTEXT never
SELECT stock_adjust('cup', -2, 'two more');
SELECT stock_adjust(sku => 'cup', delta => -1, note => 'and one');
SELECT stock_adjust('cup', 5, NULL);
SELECT * FROM stock_levels;
SELECT change, quantity, actor = session_user AS by_us, note FROM stock_log
ORDER BY id;

-- Lapsed reservations expire for it.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 5, 'order 2', ttl => '1 us');
SELECT stock_adjust('cup', -4, 'lost');
ROLLBACK;
SELECT * FROM stock_verify();

TRUNCATE stock_log, stock_hold, stock_item;
