-- Reserving many items: all or none, with every line that fell short.  If
-- this fails, an order is reserved in part or learns of its shortages one by one.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 5), stock_receive('pot', 2), stock_receive('tea', 10);

SELECT stock_lines('{"tea": 3, "cup": 2.0, "pot": 1e0}');
SELECT outcome, shortages FROM stock_reserve(stock_lines('{"tea": 3, "cup": 2}'), 'order 1');

-- One sku on two lines is one quantity.
SELECT outcome, shortages
FROM stock_reserve(ARRAY[('cup', 2), ('pot', 1), ('cup', 2)]::stock_line[], 'order 2');
SELECT outcome, shortages
FROM stock_reserve(ARRAY[('cup', 2), ('pot', 1), ('cup', 1)]::stock_line[], 'order 2');
SELECT reservation, sku, quantity FROM stock_hold ORDER BY 1, 2;

-- The order of the lines does not make another order of them.
SELECT outcome FROM stock_reserve(ARRAY[('pot', 1), ('cup', 3)]::stock_line[], 'order 2');

-- Every short line is named, and only those.
SELECT outcome FROM stock_reserve(stock_lines('{"cup": 4, "pot": 9, "tea": 1}'), 'order 3');
SELECT s.* FROM stock_reserve(stock_lines('{"cup": 4, "pot": 9, "tea": 1}'), 'order 3') r,
	unnest(r.shortages) s;

-- An unknown sku is told from a short one, and does not hide it.
SELECT outcome FROM stock_reserve(stock_lines('{"jug": 1, "pot": 9, "tea": 1}'), 'order 3');
SELECT s.* FROM stock_reserve(stock_lines('{"jug": 1, "pot": 9, "tea": 1}'), 'order 3') r,
	unnest(r.shortages) s;
SELECT * FROM stock_levels ORDER BY sku;

-- A rollback to a savepoint takes all its lines back.
BEGIN;
SAVEPOINT s;
SELECT outcome FROM stock_reserve(stock_lines('{"pot": 1, "tea": 7}'), 'order 4');
ROLLBACK TO s;
SELECT outcome FROM stock_reserve('tea', 7, 'order 5');
COMMIT;
SELECT * FROM stock_verify();

-- An order of many lines is settled whole, and by some of them.
SELECT count(stock_receive('item ' || i, 9)) FROM generate_series(1, 50) i;
SELECT outcome FROM stock_reserve(ARRAY(SELECT ('item ' || i, 2)::stock_line FROM generate_series(1, 50) i), 'order 6');
SELECT stock_cancel('order 6', '{item 7,item 50}');
SELECT count(*) FROM stock_hold WHERE reservation = 'order 6';
SELECT stock_confirm('order 6');
SELECT available, reserved, count(*), bool_and(ok) AS ok
FROM stock_verify() WHERE sku LIKE 'item %' GROUP BY available, reserved ORDER BY available;

TRUNCATE stock_log, stock_hold, stock_item;
