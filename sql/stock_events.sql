-- Events of stock: each change of a reservation is announced in its own
-- transaction, an expiry as a whole, and an item that is available again.  If
-- this fails, a shop is told of a change twice, in part or not at all.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

-- By default there are no events.
SELECT stock_receive('cup', 10), stock_receive('pot', 10), stock_receive('tea', 10);
SELECT count(*) FROM outbox_log WHERE topic LIKE 'stock.%';

BEGIN;
SET LOCAL idempotency.stock_events = on;
SELECT outcome FROM stock_reserve_many('{"pot": 8, "cup": 8}', 'order 1');
SELECT outcome FROM stock_reserve_many('{"pot": 8, "cup": 8}', 'order 1');
SELECT outcome FROM stock_reserve('cup', 3, 'order 2');
SELECT stock_confirm('order 1', '{cup}'), stock_confirm('order 1', '{cup}');
SELECT stock_cancel('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT key, topic, payload FROM outbox_log WHERE topic LIKE 'stock.%' ORDER BY position;
ROLLBACK;

-- An expiry has all lines that were open, whichever line was used.
BEGIN;
SET LOCAL idempotency.stock_events = on;
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 8, "tea": 8}', 'order 1',
	ttl => '500 ms');
SELECT stock_confirm('order 1', '{cup}');
SELECT FROM pg_sleep(0.51);
SELECT outcome FROM stock_reserve('pot', 1, 'order 2', ttl => '1 us');
SELECT outcome FROM stock_reserve('tea', 3, 'order 4');
SELECT stock_expire();
SELECT key, payload FROM outbox_log WHERE topic = 'stock.expired' ORDER BY position;
ROLLBACK;

-- A customer may wait for an item that was sold out.
BEGIN;
SET LOCAL idempotency.stock_events = on;
SELECT outcome FROM stock_reserve('cup', 10, 'order 1');
SELECT stock_receive('cup', 2), stock_receive('cup', 3),
	stock_adjust('tea', 1, 'found');
SELECT outcome FROM stock_reserve('cup', 5, 'order 2');
SELECT stock_cancel('order 1');
SELECT key, payload FROM outbox_log WHERE topic = 'stock.available' ORDER BY position;
ROLLBACK;

TRUNCATE stock_log, stock_hold, stock_item;
