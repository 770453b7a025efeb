-- Compaction: rows of a long log move into the root record and the history,
-- and nothing else changes.  If this fails, stock appears or vanishes, or a
-- used name counts as new.
\getenv dir PG_ABS_SRCDIR
\set db regress_stock_compaction
\i :dir/sql/include/ring.sql
SELECT stock_receive('cup', 5000, 'first delivery'), stock_receive('pot', 10);
SELECT count(stock_reserve('cup', 2, 'order ' || i)) FROM generate_series(1, 600) i;
SELECT count(stock_confirm('order ' || i)) FROM generate_series(1, 300) i;
SELECT count(stock_cancel('order ' || i)) FROM generate_series(301, 320) i;
SELECT stock_adjust('cup', -7, 'lost');
CREATE VIEW rows AS SELECT
	(SELECT count(*) FROM stock_log) AS log,
	(SELECT count(*) FROM stock_history) AS all,
	(SELECT count(DISTINCT id) FROM stock_history) AS ids;
SELECT * FROM rows;
SELECT * FROM stock_levels ORDER BY sku;

-- Not yet; then at most so many rows at a time, oldest first.
SELECT stock_compact(100);
SELECT * FROM rows;
SELECT count(stock_reserve('cup', 1, 'order ' || i)) FROM generate_series(601, 1600) i;
SELECT count(stock_cancel('order ' || i)) FROM generate_series(701, 1600) i;
SELECT stock_compact(500), stock_compact(1000), stock_compact(1000);
SELECT * FROM rows;
SELECT * FROM stock_item ORDER BY sku;
SELECT * FROM stock_levels ORDER BY sku;
SELECT * FROM stock_verify();

-- Reservations are remembered: names stay used, cancelled ones can be
-- reinstated.
SELECT stock_confirm('order 1'), stock_cancel('order 1'), stock_confirm('order 320');
\set VERBOSITY sqlstate
SELECT stock_reserve('cup', 2, 'order 1');
SELECT stock_reserve('cup', 2, 'order 301');
\set VERBOSITY default
SELECT outcome FROM stock_reserve('cup', 2, 'order 600');
SELECT outcome FROM stock_reinstate('order 301');
SELECT outcome FROM stock_reserve('cup', 2, 'order 301');
SELECT change, line, note FROM stock_history
WHERE sku = 'cup' AND (reservation = 'order 1' OR reservation IS NULL) ORDER BY id;

-- A compaction that is rolled back: the rows are still there for the next one.
BEGIN;
SELECT count(stock_reserve('cup', 1, 'more ' || i)), count(stock_cancel('more ' || i))
FROM generate_series(1, 1100) i;
SELECT stock_compact(2000);
SELECT * FROM rows;
ROLLBACK;
SELECT * FROM rows;
SELECT * FROM stock_verify();
SELECT count(stock_reserve('cup', 1, 'more ' || i)), count(stock_cancel('more ' || i))
FROM generate_series(1, 1100) i;
SELECT stock_compact(5000);
SELECT * FROM stock_verify();

-- Rows of the history are dropped after some time, by whole tables.
CREATE VIEW ring AS SELECT slot, state, segment FROM stock_ring
	ORDER BY segment, slot;
SELECT stock_forget();
UPDATE stock_ring SET opened_at = opened_at - interval '4 days' WHERE state = 'current';
SELECT stock_forget();
SELECT * FROM ring;
SELECT outcome FROM stock_reserve('pot', 1, 'after the switch');
SELECT stock_confirm('order 1');
UPDATE stock_ring SET closed_at = closed_at - interval '7 days' WHERE state = 'old';
SELECT until('stock_forget()');
CALL old_snapshots_end('stock_ring');
SELECT until('stock_forget()');
SELECT * FROM ring;
SELECT stock_confirm('order 1');
SELECT outcome FROM stock_reserve('cup', 2, 'order 1');
SELECT * FROM stock_verify();

-- A restore may load rows into any table of the history.
INSERT INTO stock_history_2 (id, quantity, at, change, line, sku, reservation)
SELECT 1000000 + i, 1, now(), 'confirm', 0, 'cup', 'restored' || i FROM generate_series(1, 5) i;
SELECT stock_confirm('restored3');
-- They are moved to the current table, a few with each call, and their table is
-- emptied.
SELECT count(*) FILTER (WHERE more) FROM (SELECT stock_forget(2) AS more FROM generate_series(1, 3)) step;
SELECT tableoid::regclass, count(*) FROM (
	SELECT tableoid, reservation FROM stock_history_0
	UNION ALL SELECT tableoid, reservation FROM stock_history_1
	UNION ALL SELECT tableoid, reservation FROM stock_history_2) e
WHERE reservation ~ 'restored' GROUP BY 1;
SELECT until('stock_forget(2)');
CALL old_snapshots_end('stock_ring');
SELECT until('stock_forget()');
SELECT * FROM ring;
SELECT stock_confirm('restored3'), pg_relation_size('stock_history_2');

-- Many items with long logs: each call returns some, and after several calls
-- all, even if they were not used since the limit was lowered.  (Sweepers of
-- other databases use another limit in between, so this is repeated.)
SELECT count(stock_receive('many ' || i, 1))
FROM generate_series(1, 150) i, generate_series(1, 3);
CREATE VIEW long AS
	SELECT stock_crowded(2) AS sku UNION SELECT stock_crowded(2);
SELECT until('(SELECT count(*) = 100 FROM stock_crowded(2))');
SELECT until('(SELECT count(*) = 150 FROM long)');
SELECT count(stock_receive('many 7', 1)) FROM generate_series(1, 3);
SELECT until('(SELECT array_agg(sku) = ''{many 7}'' FROM stock_crowded(5) sku)');

-- As long as a line of a reservation is open, its name is used.
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'half');
SELECT stock_confirm('half', '{cup}');
SELECT count(stock_reserve('cup', 1, 'most ' || i)), count(stock_cancel('most ' || i))
FROM generate_series(1, 1100) i;
SELECT stock_compact(5000);
UPDATE stock_ring SET opened_at = opened_at - interval '4 days' WHERE state = 'current';
SELECT stock_forget();
UPDATE stock_ring SET closed_at = closed_at - interval '7 days' WHERE state = 'old';
SELECT until('stock_forget()');
CALL old_snapshots_end('stock_ring');
SELECT until('stock_forget()');
SELECT count(*) FROM stock_history WHERE reservation = 'half' AND sku = 'cup';
\set VERBOSITY sqlstate
SELECT stock_reserve('cup', 1, 'half');
SELECT stock_reserve('pot', 2, 'half');
\set VERBOSITY default
SELECT * FROM stock_verify() WHERE sku !~ 'many';

-- Old rows are compacted, also of an item that has few of them and is not in
-- use.  Young ones stay.
\c
UPDATE stock_log SET at = at - interval '2 days' WHERE sku ~ '^many .$';
SELECT stock_compact(4);
SELECT stock_compact(1000);
SELECT count(*) FILTER (WHERE sku ~ '^many .$') AS old, count(*) > 100 AS others FROM stock_log;
SELECT * FROM stock_item WHERE sku IN ('many 7', 'many 8', 'many 10') ORDER BY sku;
SELECT count(*) FROM stock_verify() WHERE NOT ok;

-- A log that cannot be compacted does not keep others from it.  One of those is
-- named, and the others are counted.
SELECT stock_receive(sku, 2000) FROM unnest('{bad 1, bad 2, bad 3, good}'::text[]) sku;
SELECT count(stock_reserve(sku, 1, sku || i)), count(stock_cancel(sku || i))
FROM unnest('{bad 1, bad 2, bad 3, good}'::text[]) sku, generate_series(1, 1100) i;
ALTER FUNCTION stock_compact_item(text, integer) SET SCHEMA public;
CREATE FUNCTION idempotency_internal.stock_compact_item(sku text, max_rows integer)
RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
	IF sku ~ 'bad' THEN
		RAISE 'bad';
	END IF;
	RETURN public.stock_compact_item(sku, max_rows);
END
$$;
\set VERBOSITY terse
SELECT stock_compact_next(2000);
\set VERBOSITY default
SELECT sku, count(*) FROM stock_log WHERE sku ~ 'bad|good' GROUP BY sku ORDER BY sku;
SELECT count(*) FROM stock_verify() WHERE NOT ok;
\i :dir/sql/include/ring_end.sql
