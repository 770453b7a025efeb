-- Undoing a cancellation: everything that was cancelled, if all of it is still
-- available.  If this fails, a customer gets stock that another has reserved,
-- or an order comes back in part.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10), stock_receive('pot', 10);
SELECT outcome FROM stock_reserve_many('{"cup": 8, "pot": 1}', 'order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT stock_cancel('order 1');
SELECT outcome, shortages, expires_at > clock_timestamp() + interval '1 h' AS by_ttl
FROM stock_reinstate('order 1', ttl => '2 h');
SELECT reservation, line, sku, quantity FROM stock_hold ORDER BY 1, 2;
SELECT outcome FROM stock_reinstate('order 1');

-- Several times; then another reservation has the stock.
SELECT stock_cancel('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT stock_cancel('order 1');
SELECT outcome FROM stock_reserve('cup', 3, 'order 2');
SELECT outcome, expires_at, shortages FROM stock_reinstate('order 1');
SELECT * FROM stock_levels ORDER BY sku;
SELECT stock_cancel('order 2');
SELECT outcome FROM stock_reinstate('order 1');

-- Line by line: only cancelled lines come back, not confirmed ones.
SELECT stock_confirm('order 1', '{pot}'), stock_cancel('order 1', '{cup}');
SELECT outcome FROM stock_reinstate('order 1');
SELECT reservation, line, sku, quantity FROM stock_hold ORDER BY 1, 2;
SELECT stock_confirm('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT stock_confirm('order 1', '{cup,pot}');

-- An unknown reservation cannot be reinstated; a reinstated one can be
-- reserved again with the same answer.  stock_reinstate_expired tests expired
-- ones.
SELECT outcome FROM stock_reinstate('order 9');
-- All lines have the same expiry, also those that stayed open.
BEGIN;
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 3', ttl => '1 h');
SELECT stock_cancel('order 3', '{cup}');
SELECT outcome FROM stock_reinstate('order 3', ttl => '2 h');
SELECT sku, expires_at > now() + interval '90 min' AS longer FROM stock_hold
WHERE reservation = 'order 3' ORDER BY 1;
SELECT stock_cancel('order 3', '{pot}');
SELECT outcome, expires_at > now() + interval '90 min' AS longer
FROM stock_reinstate('order 3', ttl => '1 h');
SELECT sku, expires_at > now() + interval '90 min' AS longer FROM stock_hold
WHERE reservation = 'order 3' ORDER BY 1;
ROLLBACK;

SELECT outcome FROM stock_reserve('cup', 1, 'order 4');
SELECT stock_cancel('order 4');
SELECT outcome FROM stock_reinstate('order 4');
SELECT outcome FROM stock_reserve('cup', 1, 'order 4');

SELECT change, sku, quantity, line FROM stock_log
WHERE reservation IN ('order 1', 'order 4') ORDER BY id;
SELECT * FROM stock_verify();

TRUNCATE stock_log, stock_hold, stock_item;
