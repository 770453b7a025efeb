-- An application reads the status of its own reservation.  If this fails, it
-- gets another state than stock_confirm would return, or has to read our
-- tables.
\getenv dir PG_ABS_SRCDIR
\set db regress_stock_status
\i :dir/sql/include/ring.sql
\set VERBOSITY terse
\pset null -
CREATE PROCEDURE lapse(name text) LANGUAGE sql AS
	'UPDATE stock_hold SET expires_at = clock_timestamp() - interval ''1 s'' WHERE reservation = name';
CREATE FUNCTION show(name text)
RETURNS TABLE (state text, expires boolean, lines jsonb)
LANGUAGE sql AS
	'SELECT state, expires_at > clock_timestamp(), lines FROM stock_reservation_status(name)';
SELECT stock_receive('cup', 100), stock_receive('pot', 100),
	stock_receive('hot', 100);

-- An unknown reservation: no row.
SELECT * FROM show('order 1');
SELECT outcome FROM stock_reserve('cup', 1000, 'order 1');
SELECT * FROM show('order 1');

-- Open until its expiry, line by line in the order of the skus.
SELECT outcome, expires_at AS expiry FROM stock_reserve_many('{"pot": 2, "cup": 1}', 'order 1') \gset
SELECT state, expires_at = :'expiry' AS as_told, lines
FROM stock_reservation_status('order 1');
SELECT stock_confirm('order 1', '{cup}');
SELECT * FROM show('order 1');
SELECT stock_cancel('order 1');
SELECT * FROM show('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT * FROM show('order 1');
SELECT outcome, expires_at AS expiry FROM stock_extend('order 1', '3 h') \gset
SELECT state, expires_at = :'expiry' AS as_told, lines
FROM stock_reservation_status('order 1');
SELECT stock_confirm('order 1');
SELECT * FROM show('order 1');

-- The state of the whole is its last change, as stock_confirm returns it.
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 2}', 'order 2');
SELECT stock_cancel('order 2', '{cup}'), stock_confirm('order 2', '{pot}');
SELECT *, stock_confirm('order 2') FROM show('order 2');
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 2}', 'order 3');
SELECT stock_confirm('order 3', '{pot}'), stock_cancel('order 3', '{cup}');
SELECT *, stock_confirm('order 3') FROM show('order 3');

-- A lapsed reservation has expired, before and after another call detects that.
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 2}', 'order 4');
SELECT stock_cancel('order 4', '{cup}');
CALL lapse('order 4');
SELECT * FROM show('order 4');
SELECT stock_confirm('order 4');
SELECT * FROM show('order 4');
SELECT outcome FROM stock_reinstate('order 4');
SELECT * FROM show('order 4');

-- Within the transaction that changes it, after a savepoint, and for a
-- snapshot.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 5, 'order 5');
SELECT * FROM show('order 5');
SAVEPOINT a;
SELECT stock_confirm('order 5');
SELECT * FROM show('order 5');
ROLLBACK TO a;
SELECT * FROM show('order 5');
SELECT stock_cancel('order 5');
SELECT * FROM show('order 5');
SELECT outcome FROM stock_reinstate('order 5');
SELECT * FROM show('order 5');
ROLLBACK;
SELECT * FROM show('order 5');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outcome FROM stock_reserve('cup', 5, 'order 5');
SELECT * FROM show('order 5');
SELECT stock_confirm('order 5');
SELECT * FROM show('order 5');
COMMIT;
BEGIN READ ONLY;
SELECT * FROM show('order 5');
COMMIT;

-- Rows in log and history.
SELECT count(stock_compact_item(sku, 1000)) FROM stock_item;
SELECT name, s.* FROM unnest('{order 1,order 2,order 3,order 4,order 5}'::text[]) name, show(name) s;
SELECT stock_confirm('order 4');
SELECT * FROM show('order 4');

-- Rows that the history has dropped, of one line sooner than of the other.
\i :dir/sql/include/forget_hot.sql
SELECT outcome FROM stock_reserve_many('{"cup": 1, "hot": 1}', 'order 6');
SELECT outcome FROM stock_reserve_many('{"cup": 1, "hot": 1}', 'order 7');
SELECT outcome FROM stock_reserve_many('{"cup": 1, "hot": 1}', 'order 8');
SELECT outcome FROM stock_reserve('hot', 1, 'order 9');
SELECT stock_confirm('order 6'), stock_cancel('order 7', '{hot}'),
	stock_confirm('order 8', '{hot}'), stock_confirm('order 9');
CALL forget_hot();
SELECT *, stock_confirm('order 6') FROM show('order 6');
SELECT * FROM show('order 7');
SELECT * FROM show('order 8');
CALL lapse('order 8');
SELECT * FROM show('order 8');
SELECT *, stock_cancel('order 8') FROM show('order 8');
SELECT * FROM show('order 8');
SELECT * FROM show('order 9');
-- Rows of 0.2.0 lack the number of lines: a gap shows that one is missing.
INSERT INTO stock_log (quantity, change, line, sku, reservation) VALUES
	(1, 'cancel', 1, 'cup', 'order 10'), (1, 'cancel', 0, 'cup', 'order 11');
SELECT * FROM show('order 10');
SELECT * FROM show('order 11');

-- The application's role may call it, others may not; names are found by an
-- index.
CREATE ROLE regress_stock_reader;
CREATE ROLE regress_stock_stranger;
SELECT idempotency_grant('regress_stock_reader');
SET ROLE regress_stock_reader;
SELECT state, lines FROM stock_reservation_status('order 7');
SET ROLE regress_stock_stranger;
SELECT state FROM public.stock_reservation_status('order 1');
RESET ROLE;
DROP OWNED BY regress_stock_reader, regress_stock_stranger;
DROP ROLE regress_stock_reader, regress_stock_stranger;
-- A name of 255 bytes, and one with wildcards, quotes and another collation.
SELECT outcome FROM stock_reserve('cup', 1, repeat('ä', 127) || '%');
SELECT state FROM stock_reservation_status(repeat('ä', 127) || '%');
SELECT state FROM stock_reservation_status(repeat('ä', 127) || '_');
SELECT outcome FROM stock_reserve('cup', 1, E'o''r"d\\er');
SELECT lines FROM stock_reservation_status(E'o''r"d\\er' COLLATE "C");
SELECT state FROM stock_reservation_status(E'O''R"D\\ER');
\i :dir/sql/include/ring_end.sql
