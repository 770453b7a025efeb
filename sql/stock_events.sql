-- The event stock.expired: one for each reservation, with all its lines, even
-- when they are settled at different times.  If this fails, a shop is told of
-- an expiry twice, in part or not at all.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10), stock_receive('pot', 10), stock_receive('tea', 10);

BEGIN;
SET LOCAL idempotency.stock_events = on;
SELECT outcome FROM stock_reserve(stock_lines('{"cup": 8, "pot": 8, "tea": 8}'), 'order 1', ttl => '1 us');
SELECT outcome FROM stock_reserve('pot', 1, 'order 2', ttl => '1 us');
SELECT outcome FROM stock_reserve('tea', 1, 'order 3');

-- Its last line goes first, without an event; its first one brings it.
SELECT outcome FROM stock_reserve('tea', 3, 'order 4');
SELECT count(*) FROM outbox_log WHERE topic = 'stock.expired';
SELECT outcome FROM stock_reserve('cup', 3, 'order 5');
SELECT key, payload FROM outbox_log WHERE topic = 'stock.expired' ORDER BY position;
SELECT stock_expire();
SELECT key, payload FROM outbox_log WHERE topic = 'stock.expired' ORDER BY position;

-- Confirmed and cancelled reservations have not expired.
SELECT stock_confirm('order 3'), stock_cancel('order 4');
SELECT count(*) FROM outbox_log WHERE topic = 'stock.expired';
ROLLBACK;

-- Of a reservation confirmed in part, the event has the other part.
BEGIN;
SET LOCAL idempotency.stock_events = on;
SELECT outcome FROM stock_reserve(stock_lines('{"cup": 1, "pot": 2, "tea": 3}'), 'order 1');
SELECT stock_confirm('order 1', '{cup}');
UPDATE stock_hold SET expires_at = reserved_at + interval '1 us';
SELECT stock_expire();
SELECT key, payload FROM outbox_log WHERE topic = 'stock.expired' ORDER BY position;
ROLLBACK;

-- Unless switched on, there are none.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 1, 'order 1', ttl => '1 us');
SELECT stock_expire();
SELECT count(*) FROM outbox_log WHERE topic = 'stock.expired';
ROLLBACK;

TRUNCATE stock_hold, stock_item, stock_log;
