-- Confirming and cancelling: quantities are settled once, and a late or
-- repeated call returns why it did nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10), stock_receive('pot', 10);
SELECT outcome FROM stock_reserve_many('{"cup": 3, "pot": 1}', 'order 1');
SELECT outcome FROM stock_reserve_many('{"cup": 2, "pot": 2}', 'order 2');

SELECT outcome FROM stock_confirm('order 1');
SELECT outcome FROM stock_confirm('order 1');
SELECT outcome FROM stock_cancel('order 1');
SELECT outcome FROM stock_cancel(reservation => 'order 2');
SELECT outcome FROM stock_cancel('order 2');
SELECT outcome FROM stock_confirm('order 2');
SELECT stock_confirm('order 9'), stock_cancel('order 9');
SELECT * FROM stock_levels ORDER BY sku;

-- Line by line.  If a named line was settled otherwise, the whole call is
-- refused.
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 4}', 'order 3');
SELECT stock_confirm('order 3', '{cup}');
SELECT stock_confirm('order 3', '{cup}');
SELECT stock_cancel('order 3', '{pot,cup}');
SELECT * FROM stock_levels ORDER BY sku;
SELECT stock_confirm(reservation => 'order 3', skus => '{pot,cup,pot}');
SELECT stock_confirm('order 3'), stock_cancel('order 3');

-- Without skus all open lines are settled, and a repeated call is recognized.
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 4');
SELECT stock_confirm('order 4', '{pot}'), stock_cancel('order 4');
SELECT stock_cancel('order 4');
SELECT stock_confirm('order 4', '{pot}'), stock_confirm('order 4', '{cup}');

-- A sku that is not in the reservation: an error, and nothing is changed.
SELECT outcome FROM stock_reserve('cup', 1, 'order 5');
\set SHOW_CONTEXT never
SELECT stock_confirm('order 5', '{cup,pot}');
SELECT stock_cancel('order 1', '{jug}');
SELECT stock_cancel('order 9', '{jug}');
\set VERBOSITY sqlstate
SELECT stock_cancel('order 5', '{cup,pot}');

-- A settled name cannot be used again, even if it was settled only in part.
\set VERBOSITY default
SELECT stock_reserve('cup', 1, 'order 2');
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 6');
SELECT stock_confirm('order 6', '{pot}');
SELECT stock_reserve_many('{"cup": 1, "pot": 1}', 'order 6');
\set VERBOSITY sqlstate
SELECT stock_reserve('cup', 1, 'order 2');

SELECT sku, change, quantity, reservation FROM stock_log
WHERE change NOT IN ('receive', 'reserve') ORDER BY id;
SELECT * FROM stock_verify();

TRUNCATE stock_log, stock_hold, stock_item;
