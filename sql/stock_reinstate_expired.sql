-- An expired reservation is opened again, if what it held is still available.
-- If this fails, an order that was paid a second too late is lost, or gets
-- what another has, or cancelled lines come back with it.
\getenv dir PG_ABS_SRCDIR
\set db regress_stock_reinstate
\i :dir/sql/include/ring.sql
\set VERBOSITY terse
\pset null -
SELECT stock_receive('cup', 10), stock_receive('pot', 10);
-- Makes a reservation lapse.
CREATE PROCEDURE lapse(name text) LANGUAGE sql AS
	'UPDATE stock_hold SET expires_at = clock_timestamp() - interval ''1 s'' WHERE reservation = name';

-- It has lapsed, or has expired already.
SELECT outcome FROM stock_reserve_many('{"cup": 8, "pot": 1}', 'order 1');
CALL lapse('order 1');
SELECT outcome, shortages, expires_at > clock_timestamp() + interval '1 h' AS by_ttl
FROM stock_reinstate('order 1', ttl => '2 h');
SELECT reservation, line, sku, quantity, lines FROM stock_hold ORDER BY 1, 2;
SELECT outcome FROM stock_reinstate('order 1');
CALL lapse('order 1');
SELECT stock_expire();
SELECT stock_confirm('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT outcome FROM stock_reserve_many('{"cup": 8, "pot": 1}', 'order 1');
SELECT stock_confirm('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT change, sku, quantity, line FROM stock_log WHERE reservation = 'order 1'
ORDER BY id;
SELECT * FROM stock_verify();

-- Another reservation has some of it; the lapsed reservation expires for it,
-- and stays expired even if it cannot be reinstated.
SELECT outcome FROM stock_reserve_many('{"cup": 2, "pot": 9}', 'order 2', ttl => '1 us');
SELECT outcome FROM stock_reserve('pot', 5, 'order 3');
SELECT outcome, expires_at, shortages FROM stock_reinstate('order 2');
SELECT outcome, expires_at, shortages FROM stock_reinstate('order 2');
SELECT reservation, sku, quantity FROM stock_hold ORDER BY 1, 2;
SELECT stock_cancel('order 3');
SELECT outcome, shortages FROM stock_reinstate('order 2');
-- It lapses, and only its own expiry makes enough available.
CALL lapse('order 2');
SELECT outcome, shortages FROM stock_reinstate('order 2');
SELECT outcome FROM stock_reserve('cup', 1, 'order 4');
SELECT stock_cancel('order 2');
SELECT * FROM stock_verify();

-- If some lines were settled, only those that have expired are opened, however
-- often it is called.
SELECT stock_receive('tea', 10);
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1, "tea": 1}', 'order 5');
SELECT stock_cancel('order 5', '{cup}'), stock_confirm('order 5', '{pot}');
CALL lapse('order 5');
SELECT outcome FROM stock_reinstate('order 5');
SELECT line, sku, quantity FROM stock_hold WHERE reservation = 'order 5';
SELECT outcome FROM stock_reinstate('order 5');
SELECT line, sku, quantity FROM stock_hold WHERE reservation = 'order 5';
SELECT stock_cancel('order 5', '{cup}'), stock_cancel('order 5', '{pot}');
-- Once more, and then it is cancelled: the last state is opened again.
CALL lapse('order 5');
SELECT stock_cancel('order 5');
SELECT outcome FROM stock_reinstate('order 5');
SELECT stock_cancel('order 5');
SELECT outcome FROM stock_reinstate('order 5');
SELECT line, sku, quantity FROM stock_hold WHERE reservation = 'order 5';
SELECT outcome FROM stock_reinstate('order 5');
SELECT stock_confirm('order 5');
SELECT outcome FROM stock_reinstate('order 5');
SELECT change, sku, quantity, line FROM stock_log
WHERE reservation = 'order 5' AND line IS NOT NULL ORDER BY id;

-- Lines that were cancelled one by one come back together, if none has expired.
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 6');
SELECT stock_cancel('order 6', '{pot}'), stock_cancel('order 6', '{cup}');
SELECT outcome FROM stock_reinstate('order 6');
SELECT count(*) FROM stock_hold WHERE reservation = 'order 6';
SELECT stock_cancel('order 6');

-- In one transaction with other calls, under any isolation level, and rolled
-- back to a savepoint.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 1, 'order 7', ttl => '1 us');
SELECT outcome FROM stock_reinstate('order 7');
SELECT stock_cancel('order 7');
SELECT outcome FROM stock_reinstate('order 7');
ROLLBACK;
SELECT outcome FROM stock_reinstate('order 7');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM stock_hold;
SELECT outcome FROM stock_reserve('cup', 2, 'order 8', ttl => '1 us');
SAVEPOINT a;
SELECT outcome FROM stock_reinstate('order 8');
SELECT sku, quantity FROM stock_hold
WHERE reservation = 'order 8' AND expires_at > clock_timestamp();
ROLLBACK TO a;
SELECT sku, quantity FROM stock_hold
WHERE reservation = 'order 8' AND expires_at > clock_timestamp();
SELECT stock_confirm('order 8');
SELECT outcome FROM stock_reinstate('order 8');
COMMIT;
SELECT stock_confirm('order 8');

-- After its rows have moved to the history.
SELECT outcome FROM stock_reserve('pot', 1, 'order 9', ttl => '1 us');
SELECT stock_confirm('order 9');
SELECT count(stock_compact_item(sku, 1000)) FROM stock_item;
SELECT count(*) FROM stock_log;
SELECT outcome FROM stock_reinstate('order 9');
SELECT outcome FROM stock_reinstate('order 9');
SELECT * FROM stock_verify();

-- The events.
BEGIN;
SET LOCAL idempotency.stock_events = on;
SELECT outcome FROM stock_reserve('pot', 1, 'order 10', ttl => '1 us');
SELECT outcome FROM stock_reinstate('order 10');
SELECT topic, payload FROM outbox_log WHERE key = 'order 10' ORDER BY position;
ROLLBACK;

BEGIN READ ONLY;
SELECT stock_reinstate('order 9');
ROLLBACK;

\i :dir/sql/include/ring_end.sql
