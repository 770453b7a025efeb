-- The filter that knows which names of reservations are new.  If this fails, a
-- used name counts as new and is reserved twice, or every name is searched.
\getenv dir PG_ABS_SRCDIR
\set db regress_stock_names
\i :dir/sql/include/ring.sql
SELECT stock_receive('cup', 1000), stock_receive('pot', 1000);

-- The answers must be the same whether the filter is complete or not; searches
-- tells how many searches of the log and the history a reservation has made.
CREATE FUNCTION reserve(name text, OUT answer text, OUT searches bigint)
LANGUAGE plpgsql AS $$
DECLARE
	before bigint := sum(idx_scan) FROM pg_stat_xact_all_tables WHERE relname ~ '^stock_(log|history_\d)$';
BEGIN
	BEGIN
		answer := outcome FROM stock_reserve('cup', 1, name);
	EXCEPTION WHEN OTHERS THEN
		answer := SQLSTATE;
	END;
	searches := sum(idx_scan) - before FROM pg_stat_xact_all_tables WHERE relname ~ '^stock_(log|history_\d)$';
END
$$;
CREATE FUNCTION complete() RETURNS boolean LANGUAGE sql AS
	'SELECT complete FROM idempotency_internal.stock_names()';
-- After a build the next one rests for a while.
CREATE PROCEDURE learn() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..1000 LOOP
		PERFORM idempotency_internal.stock_learn_names();
		EXIT WHEN complete();
		PERFORM pg_sleep(0.01);
	END LOOP;
	ASSERT complete(), 'the filter is not complete';
END
$$;

-- At first each name is searched.
SELECT complete();
SELECT * FROM reserve('order 1');
SELECT * FROM reserve('order 1');
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 2}', 'order 2');
SELECT stock_cancel('order 2', '{cup}');
SELECT outcome FROM stock_reserve('pot', 1, 'order 3');
SELECT stock_confirm('order 3');

-- When the filter is complete, a new name is not, and known ones are.
CALL learn();
SELECT * FROM reserve('order 4');
SELECT name, answer, searches > 0 AS searched FROM unnest('{order 1,order 4,order 2,order 3}'::text[]) name, reserve(name);
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 2}', 'order 5');
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 2}', 'order 5');
\set VERBOSITY sqlstate
SELECT outcome FROM stock_reserve_many('{"cup": 1}', 'order 5');
\set VERBOSITY default
SELECT stock_confirm('order 4');
SELECT name, answer, searches > 0 AS searched FROM unnest('{order 4}'::text[]) name, reserve(name);

-- A name that was rolled back is new, although the filter has it.
BEGIN;
SELECT * FROM reserve('order 6');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT * FROM reserve('order 7');
ROLLBACK TO a;
SELECT answer FROM reserve('order 7');
COMMIT;
SELECT name, answer, searches > 0 AS searched FROM unnest('{order 6,order 7}'::text[]) name, reserve(name);
-- So is one for which there was not enough.
SELECT outcome FROM stock_reserve('cup', 100000, 'order 8');
SELECT * FROM reserve('order 8');

-- What was compacted, and forgotten.
SELECT complete();
SELECT stock_compact(1000);
UPDATE stock_ring SET opened_at = opened_at - interval '4 days' WHERE state = 'current';
SELECT count(stock_reserve('pot', 1, 'more ' || i)), count(stock_cancel('more ' || i))
FROM generate_series(1, 1000) i;
SELECT stock_compact(2000), stock_forget();
SELECT complete();
SELECT name, answer, searches > 0 AS searched FROM unnest('{more 1,more 1000}'::text[]) name, reserve(name);

-- Rows of external DML, in each of the tables.
INSERT INTO stock_hold (reservation, line, lines, sku, quantity, expires_at)
VALUES ('brought 1', 0, 1, 'cup', 2, now() + interval '1 h');
SELECT complete();
SELECT answer FROM reserve('brought 1');
CALL learn();
SELECT answer FROM reserve('brought 1');
INSERT INTO stock_log (reservation, line, sku, quantity, change)
VALUES ('brought 2', 0, 'cup', 2, 'confirm');
SELECT complete();
SELECT answer FROM reserve('brought 2');
CALL learn();
SELECT answer FROM reserve('brought 2');
INSERT INTO stock_history_2 (id, at, reservation, line, sku, quantity, change)
VALUES (1000000, now(), 'brought 3', 0, 'cup', 2, 'confirm');
SELECT complete();
SELECT answer FROM reserve('brought 3');
CALL learn();
SELECT answer FROM reserve('brought 3');
UPDATE stock_history_2 SET reservation = 'brought 4' WHERE reservation = 'brought 3';
CALL learn();
SELECT name, answer FROM unnest('{brought 3,brought 4}'::text[]) name, reserve(name);
BEGIN;
UPDATE stock_hold SET reservation = 'never' WHERE reservation = 'brought 1';
ROLLBACK;
SELECT complete();

-- Rows that only move are not external DML.
DO $$ BEGIN ASSERT idempotency_internal.stock_migrate(2::smallint) IS NOT NULL; END $$;
SELECT complete();

-- A build that is rolled back has read everything all the same.
SELECT stock_cancel('order 1');
UPDATE stock_item SET sku = sku WHERE sku = 'cup';
BEGIN;
CALL learn();
ROLLBACK;
SELECT complete(), answer FROM reserve('order 1');

-- A build takes several steps.  It misses nothing that external DML writes
-- in between, where it has read already.
INSERT INTO stock_history_0 (id, quantity, at, change, line, sku, reservation)
SELECT 1000000 + i, 1, now(), 'confirm', 0, 'cup', 'past ' || i FROM generate_series(1, 40000) i;
DO $$
BEGIN
	FOR i IN 1..1000 LOOP
		EXIT WHEN idempotency_internal.stock_learn_names();
		PERFORM pg_sleep(0.01);
	END LOOP;
	ASSERT NOT complete(), 'it was one step';
END
$$;
INSERT INTO stock_log (id, quantity, change, line, sku, reservation)
OVERRIDING SYSTEM VALUE VALUES (2000000, 1, 'confirm', 0, 'cup', 'restored');
CALL learn();
SELECT name, answer, searches > 0 AS searched FROM unnest('{past 1,past 40000,restored,order 7}'::text[]) name, reserve(name);

-- Another extension in the same database begins with no names.
DROP EXTENSION idempotency CASCADE;
SET client_min_messages = warning;
CREATE EXTENSION idempotency;
SELECT complete FROM idempotency_internal.stock_names();
SELECT stock_receive('cup', 10);
DO $$ BEGIN PERFORM idempotency_internal.stock_learn_names(); END $$;
SELECT outcome FROM stock_reserve('cup', 1, 'order 1');
\i :dir/sql/include/ring_end.sql
