-- Expiry: the quantity of a lapsed reservation is available at once, for
-- readers and for reserve, whether the sweeper has run or not.  Each part is
-- one transaction, so that the sweeper, which runs at the same time, finds
-- nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10), stock_receive('pot', 10);

-- Readers count a lapsed hold as available; the ledger still has it.
BEGIN;
SELECT outcome FROM stock_reserve_many('{"cup": 8, "pot": 8}', 'order 1', ttl => '1 us');
SELECT * FROM stock_level('cup');
SELECT * FROM stock_levels ORDER BY sku;
SELECT * FROM stock_verify();

-- A reserve that falls short lets it expire, as a whole.
SELECT outcome, shortages FROM stock_reserve('cup', 3, 'order 2');
SELECT reservation, sku, quantity FROM stock_hold ORDER BY 1, 2;
SELECT sku, change, quantity, reservation, actor FROM stock_log
WHERE change = 'expire' ORDER BY id;

-- For its owner the reservation has expired.
SELECT outcome FROM stock_confirm('order 1', '{pot}');
SELECT reservation, sku, quantity FROM stock_hold ORDER BY 1, 2;
SELECT outcome FROM stock_confirm('order 1');
SELECT outcome FROM stock_cancel('order 1');
SELECT * FROM stock_verify();
ROLLBACK;

-- Only as many reservations expire as are needed, the oldest first.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 4, 'order 1', ttl => '1 us');
SELECT outcome FROM stock_reserve('cup', 4, 'order 2', ttl => '2 us');
SELECT outcome FROM stock_reserve('cup', 5, 'order 3');
SELECT reservation, quantity FROM stock_hold ORDER BY 1;
SELECT outcome, shortages FROM stock_reserve('cup', 6, 'order 4');
SELECT reservation, quantity FROM stock_hold ORDER BY 1;
SELECT * FROM stock_verify('cup');
ROLLBACK;

-- A refused reserve has found no reservation that lapses soon; one that is
-- made after that can still lapse.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 10, 'order 1');
SELECT outcome FROM stock_reserve('cup', 1, 'order 2');
SELECT stock_cancel('order 1');
SELECT outcome FROM stock_reserve('cup', 10, 'order 3', ttl => '1 us');
SELECT outcome FROM stock_reserve('cup', 10, 'order 4');
SELECT outcome FROM stock_reserve('cup', 1, 'order 2');
SELECT stock_cancel('order 4');
SELECT outcome FROM stock_reserve('cup', 10, 'order 5');
SELECT stock_cancel('order 5');
SELECT outcome FROM stock_reinstate('order 5', ttl => '1 us');
SELECT outcome FROM stock_reserve('cup', 10, 'order 6');
ROLLBACK;

-- A lapsed name stays used, whether it was settled or not.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 8, 'order 1', ttl => '1 us');
SAVEPOINT lapsed;
\set SHOW_CONTEXT never
SELECT stock_reserve('cup', 8, 'order 1');
ROLLBACK TO lapsed;
SELECT stock_cancel('order 1');
SELECT stock_reserve('cup', 8, 'order 1');
ROLLBACK;

-- The sweeper settles in batches, oldest first, and no live reservations.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 1, 'order 1', ttl => '1 us');
SELECT outcome FROM stock_reserve('cup', 2, 'order 2', ttl => '1 us');
SELECT outcome FROM stock_reserve('pot', 3, 'order 3', ttl => '1 us');
SELECT outcome FROM stock_reserve('cup', 4, 'order 4');
SELECT stock_expire(2), stock_expire(), stock_expire(max_holds => 1);
SELECT sku, change, quantity, reservation, actor FROM stock_log
WHERE change = 'expire' ORDER BY id;
SELECT sku, available, reserved, ok FROM stock_verify();
ROLLBACK;

-- A reserve that falls short lets all lapsed reservations expire.
BEGIN;
SELECT stock_receive('pot', 30);
SELECT count(stock_reserve('pot', 1, 'lapsed ' || i, ttl => '1 us'))
FROM generate_series(1, 40) i;
SELECT outcome, shortages FROM stock_reserve('pot', 40, 'all');
SELECT DISTINCT reservation FROM stock_hold WHERE sku = 'pot';
ROLLBACK;

-- A reservation that cannot expire, here because its event would be too large,
-- is reported and does not block the others.
BEGIN;
SET LOCAL client_min_messages = error;
SELECT count(stock_receive(i || repeat('x', 200), 2))
FROM generate_series(1, 5000) i;
SELECT outcome FROM stock_reserve('cup', 1, 'order 10', ttl => '1 us');
SELECT outcome FROM stock_reserve_many(
	(SELECT jsonb_object_agg(i || repeat('x', 200), 1)
		FROM generate_series(1, 5000) i), 'order 11', ttl => '1 us');
SELECT outcome FROM stock_reserve_many(
	(SELECT jsonb_object_agg(i || repeat('x', 200), 1)
		FROM generate_series(1, 5000) i), 'order 14', ttl => '1 us');
SELECT outcome FROM stock_reserve('cup', 1, 'order 12', ttl => '1 us');
SELECT outcome FROM stock_reserve('pot', 1, 'order 13', ttl => '1 us');
SET LOCAL idempotency.stock_events = on;
SET LOCAL idempotency.outbox_payload_max = '1MB';
RESET client_min_messages;
SELECT stock_expire();
SELECT DISTINCT reservation FROM stock_hold ORDER BY reservation;
SELECT sku, available, reserved, ok FROM stock_verify('cup')
UNION ALL
SELECT sku, available, reserved, ok FROM stock_verify('pot') ORDER BY sku;
ROLLBACK;

-- If none can expire, the sweeper gets an error, after which it pauses.
BEGIN;
SELECT count(stock_reserve('cup', 1, 'order ' || i, ttl => '1 us'))
FROM generate_series(20, 29) i;
SELECT nextval('outbox_position_seq') > 0;
DO $$
BEGIN
	EXECUTE 'ALTER SEQUENCE outbox_position_seq MAXVALUE ' || (SELECT last_value FROM outbox_position_seq);
END
$$;
SET LOCAL idempotency.stock_events = on;
\set VERBOSITY terse
SELECT stock_expire();
ROLLBACK;

TRUNCATE stock_log, stock_hold, stock_item;
