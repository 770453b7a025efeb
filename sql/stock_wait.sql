-- Reservations that wait in the queue of their item.  If this fails, a customer
-- is overtaken, waits for ever, or gets what was promised to another.  Each part
-- is one transaction, so that the sweeper, which runs at the same time, finds
-- nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
CREATE FUNCTION reserve(item text, quantity bigint, name text, wait boolean DEFAULT false,
	OUT outcome stock_outcome, OUT shortages jsonb)
LANGUAGE sql AS 'SELECT outcome, shortages FROM stock_reserve(item, quantity, name, wait => wait)';
CREATE VIEW queue AS
	SELECT sku, position, reservation, quantity FROM stock_waiting ORDER BY sku, position;
CREATE VIEW shelf AS SELECT sku, available, reserved, waiting FROM stock_levels ORDER BY sku;
SELECT stock_receive('cup', 3), stock_receive('pot', 1);

-- Enough is there: nothing waits.  A queue is for one that falls short.
BEGIN;
SELECT * FROM reserve('cup', 2, 'order 1', true);
SELECT * FROM reserve('cup', 2, 'order 2', true);
SELECT * FROM reserve('cup', 5, 'order 3', true);
SELECT * FROM reserve('gone', 1, 'order 4', true);
SELECT * FROM queue;
SELECT position, stock_position(reservation) FROM queue;
SELECT stock_position('order 1'), stock_position('nobody');
SELECT at_most, array_agg(stock_position(reservation, at_most) ORDER BY position) FROM queue, unnest('{1,2,3,9223372036854775807,NULL}'::bigint[]) at_most GROUP BY at_most ORDER BY at_most;
SAVEPOINT a;
SELECT stock_position('order 1', 0);
ROLLBACK TO a;
SELECT * FROM shelf;
SELECT * FROM stock_verify();

-- A repetition waits at the same place; so does one that does not ask to wait.
SELECT * FROM reserve('cup', 2, 'order 2', true);
SELECT * FROM reserve('cup', 2, 'order 2');
SELECT outcome FROM stock_reserve_many('{"cup": 2}', 'order 2');
SELECT * FROM queue;

-- Nobody is overtaken, though a piece is available.
SELECT * FROM reserve('cup', 1, 'order 5');
SELECT outcome, shortages FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 5', partial => true);
SELECT outcome, shortages FROM stock_change_many('order 1', '{"cup": 3}');
SELECT stock_cancel('order 5');
SELECT outcome, shortages FROM stock_reserve('cup', 1, 'order 5', anew => true);

-- Corrections do not wait.
SELECT stock_adjust('cup', -1, 'broken');

-- A reservation that waits is neither reserved nor closed.
SELECT state, lines FROM stock_reservation_status('order 2');
SELECT stock_confirm('order 2'), stock_confirm('order 2', '{cup}'), stock_extend('order 2', '1 h');
SELECT stock_reinstate('order 2'), stock_change_many('order 2', '{"cup": 1}');
SELECT reservation, sku, quantity FROM stock_holds ORDER BY 1, 2;
SELECT change, quantity, reservation FROM stock_history WHERE sku = 'cup' ORDER BY id;

-- Only the first is served, however small the others are, and then the next.
SELECT * FROM reserve('cup', 1, 'order 6', true);
SELECT stock_serve_item('cup', 100);
SELECT stock_receive('cup', 1), stock_serve_item('cup', 100);
SELECT stock_receive('cup', 1), stock_serve_item('cup', 100);
SELECT * FROM queue;
SELECT * FROM shelf;
SELECT stock_receive('cup', 7), stock_serve_item('cup', 1), stock_serve_item('cup', 100);
SELECT * FROM queue;
SELECT * FROM shelf;
SELECT state, lines FROM stock_reservation_status('order 2');
SELECT stock_confirm('order 2'), stock_cancel('order 3');
SELECT change, quantity, reservation, actor = current_user AS by_us FROM stock_history WHERE sku = 'cup' ORDER BY id;
SELECT payload - 'expires_at' AS payload, (payload ->> 'expires_at')::timestamptz > now() + interval '14 min' AS open
FROM outbox_log WHERE topic = 'stock.available' AND payload ? 'reservation' ORDER BY position;
SELECT * FROM stock_verify();
ROLLBACK;

-- Those who wait can leave the queue, and then are closed as others are.
BEGIN;
SELECT * FROM reserve('cup', 4, 'order 1', true);
SELECT * FROM reserve('cup', 5, 'order 2', true);
SELECT stock_cancel('order 1'), stock_cancel('order 1'), stock_confirm('order 1');
SELECT state, expires_at, lines FROM stock_reservation_status('order 1');
SELECT * FROM queue;
SELECT stock_cancel('order 2', '{cup}');
SELECT * FROM queue;
SELECT * FROM shelf;
SELECT * FROM reserve('cup', 3, 'order 3');
SELECT change, quantity, reservation FROM stock_history WHERE sku = 'cup' ORDER BY id;
SELECT * FROM stock_verify();

-- One that left can be reserved later: reinstated, or anew.
SELECT outcome, shortages FROM stock_reinstate('order 1');
SELECT outcome FROM stock_reserve('cup', 2, 'order 2', anew => true, wait => true);
SELECT outcome FROM stock_reserve('cup', 2, 'order 2', anew => true, wait => true);
SELECT outcome FROM stock_reserve('cup', 2, 'order 2');
SELECT * FROM queue;
SELECT stock_receive('cup', 2), stock_serve_item('cup', 1);
SELECT outcome FROM stock_reserve('cup', 2, 'order 2');
SELECT stock_receive('cup', 4);
SELECT outcome, shortages FROM stock_reinstate('order 1');
SELECT stock_confirm('order 1'), stock_confirm('order 2');
SELECT * FROM shelf;
SELECT * FROM stock_verify();
ROLLBACK;

-- A wait ends by itself; the next is served at once.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 9, 'order 1', wait => true, wait_ttl => '1 us');
SELECT * FROM reserve('cup', 2, 'order 2', true);
SELECT state, lines FROM stock_reservation_status('order 1');
SELECT stock_extend('order 1', '1 h');
SELECT * FROM queue;
SELECT stock_serve_item('cup', 100);
SELECT * FROM queue;
SELECT * FROM shelf;
SELECT outcome FROM stock_reserve('cup', 9, 'order 3', wait => true, wait_ttl => '1 us');
SELECT stock_serve_item('cup', 100);
SELECT * FROM queue;
SELECT outcome FROM stock_reserve('cup', 9, 'order 4', wait => true, wait_ttl => '1 us');
SELECT stock_confirm('order 4'), stock_cancel('order 4');
SELECT * FROM shelf;
SELECT change, quantity, reservation, actor = current_user AS by_us FROM stock_history WHERE sku = 'cup' ORDER BY id;
SELECT * FROM stock_verify();
ROLLBACK;

-- Once served, it is open for its ttl.
BEGIN;
SELECT outcome, expires_at > now() + interval '1 h' AS waits FROM stock_reserve('pot', 2, 'order 1', ttl => '1 min', wait => true, wait_ttl => '2 h');
SELECT stock_receive('pot', 1), stock_serve_item('pot', 1);
SELECT expires_at BETWEEN now() + interval '59 s' AND now() + interval '10 min' AS open FROM stock_reservation_status('order 1');
ROLLBACK;

-- Savepoints.
BEGIN;
SELECT * FROM reserve('pot', 2, 'order 1', true);
SAVEPOINT one;
SELECT * FROM reserve('pot', 3, 'order 2', true);
SELECT stock_cancel('order 1');
SELECT * FROM queue;
ROLLBACK TO one;
SELECT * FROM queue;
SAVEPOINT two;
SELECT stock_receive('pot', 1), stock_serve_item('pot', 1);
SELECT * FROM shelf;
ROLLBACK TO two;
SELECT * FROM shelf;
SELECT stock_cancel('order 1');
SELECT * FROM reserve('pot', 1, 'order 3');
SELECT * FROM stock_verify();
ROLLBACK;
SELECT * FROM shelf;
SELECT * FROM stock_verify();

-- The queue is bounded, and whoever finds it full does not wait.
BEGIN;
SET LOCAL idempotency.stock_queue_max = 1;
SELECT * FROM reserve('pot', 2, 'order 1', true);
SELECT * FROM reserve('pot', 2, 'order 2', true);
SET LOCAL idempotency.stock_queue_max = 0;
SELECT * FROM reserve('cup', 4, 'order 3', true);
SELECT * FROM queue;
ROLLBACK;

-- Bad arguments.
SELECT stock_reserve('pot', 1, 'order 1', wait => NULL);
SELECT stock_reserve('pot', 1, 'order 1', wait => true, wait_ttl => '0');
SELECT stock_reserve('pot', 1, 'order 1', wait => true, wait_ttl => '-1 s');
SELECT stock_reserve('pot', 1, 'order 1', wait_ttl => '1000 years');
SELECT stock_reserve('pot', 1, 'order 1', wait => true, wait_ttl => '40 days');
BEGIN;
SELECT * FROM reserve('pot', 2, 'order 1', true);
SELECT * FROM reserve('pot', 3, 'order 1', true);
ROLLBACK;
SELECT * FROM queue;

-- Rows that the functions have not written.
BEGIN;
INSERT INTO stock_queue VALUES (999999, 2, 1, 'pot', 'order 1');
SELECT * FROM stock_verify('pot');
COMMIT;
SELECT ok, detail FROM stock_verify('pot');
SELECT stock_serve_item('pot', 1);
DELETE FROM stock_queue;
INSERT INTO stock_hold VALUES (0, now() + interval '1 h', 0, 'order 1', 'pot', 1, 999999, now(), 'me');
SELECT ok, detail FROM stock_verify('pot');
SELECT stock_cancel('order 1');
DELETE FROM stock_hold;
SELECT ok, detail FROM stock_verify('pot');

DROP FUNCTION reserve;
DROP VIEW queue, shelf;
TRUNCATE stock_log, stock_item;
