-- Rows of the stock tables are input: a restore, a replica or an owner may
-- write any, and constraints may be missing.  Each bad row raises a clear
-- error, and others go on.  If this fails, a row crashes the server again and
-- again, or stock is sold because of it.
\getenv dir PG_ABS_SRCDIR
\set db regress_stock_rows
\i :dir/sql/include/ring.sql
\set VERBOSITY terse
SELECT stock_receive('cup', 10), stock_receive('pot', 10);
INSERT INTO stock_item (sku) VALUES ('bad');
SELECT outcome FROM stock_reserve('cup', 1, 'order 1', ttl => '1 us');

-- What each constraint refuses.
CREATE FUNCTION refused(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	name text;
BEGIN
	EXECUTE query;
	RETURN 'taken';
EXCEPTION WHEN check_violation THEN
	GET STACKED DIAGNOSTICS name = CONSTRAINT_NAME;
	RETURN name;
END
$$;
SELECT refused(format('INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku, lines) VALUES (%s)', row))
FROM unnest(ARRAY[
	$$0, now(), 0, 'x', 'cup', 1$$,
	$$1, 'infinity', 0, 'x', 'cup', 1$$,
	$$1, now(), -1, 'x', 'cup', 1$$,
	$$1, now(), 10000, 'x', 'cup', NULL$$,
	$$1, now(), 1, 'x', 'cup', 1$$,
	$$1, now(), 1, 'x', 'cup', 10001$$,
	$$1, now(), 0, '', 'cup', 1$$,
	$$1, now(), 0, repeat('x', 256), 'cup', 1$$,
	$$1, now(), 0, 'x', '', 1$$,
	$$1, now(), 0, 'x', repeat('A', 4000), 1$$]) row;
SELECT refused(format('INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku, id, at, actor)
	VALUES (1, now(), 0, ''x'', ''cup'', %s)', opened))
FROM unnest(ARRAY[
	$$0, now(), 'me'$$,
	$$1, NULL, 'me'$$,
	$$1, now(), NULL$$,
	$$1, now(), ''$$,
	$$NULL, now(), 'me'$$]) opened;
SELECT refused(format('INSERT INTO %s (id, quantity, at, change, line, sku, reservation, actor, note, lines) %s VALUES (%s)',
	name, CASE name WHEN 'stock_log' THEN 'OVERRIDING SYSTEM VALUE' END, row))
FROM unnest('{stock_log,stock_history_1}'::text[]) name, unnest(ARRAY[
	$$0, 1, now(), 'receive', NULL, 'cup', NULL, NULL, NULL, NULL$$,
	$$9, 0, now(), 'receive', NULL, 'cup', NULL, NULL, NULL, NULL$$,
	$$9, -1, now(), 'confirm', 0, 'cup', 'x', NULL, NULL, NULL$$,
	$$9, 1, now(), 'receive', NULL, 'cup', 'x', NULL, NULL, NULL$$,
	$$9, 1, now(), 'confirm', NULL, 'cup', 'x', NULL, NULL, NULL$$,
	$$9, 1, now(), 'confirm', -1, 'cup', 'x', NULL, NULL, NULL$$,
	$$9, 1, now(), 'confirm', 10000, 'cup', 'x', NULL, NULL, NULL$$,
	$$9, 1, now(), 'confirm', 1, 'cup', 'x', NULL, NULL, 1$$,
	$$9, 1, now(), 'reserve', NULL, 'cup', 'x', NULL, NULL, 1$$,
	$$9, 1, now(), 'receive', NULL, repeat('A', 256), NULL, NULL, NULL, NULL$$,
	$$9, 1, now(), 'confirm', 0, 'cup', '', NULL, NULL, NULL$$,
	$$9, 1, now(), 'receive', NULL, 'cup', NULL, repeat('A', 256), NULL, NULL$$,
	$$9, 1, now(), 'receive', NULL, 'cup', NULL, NULL, repeat('A', 1001), NULL$$]) row;
SELECT refused(format('INSERT INTO %s (id, quantity, at, change, line, sku, reservation, reserved_id, reserved_at, reserved_by) %s
	VALUES (9, 1, now(), ''confirm'', 0, ''cup'', ''x'', %s)',
	name, CASE name WHEN 'stock_log' THEN 'OVERRIDING SYSTEM VALUE' END, opened))
FROM unnest('{stock_log,stock_history_1}'::text[]) name, unnest(ARRAY[
	$$0, now(), 'me'$$,
	$$1, NULL, 'me'$$,
	$$1, now(), NULL$$,
	$$1, now(), ''$$,
	$$NULL, now(), 'me'$$]) opened;
SELECT refused(format('INSERT INTO stock_item (sku, received, adjusted, confirmed) VALUES (%s)', row))
FROM unnest(ARRAY[
	$$repeat('A', 256), 0, 0, 0$$,
	$$'x', 'NaN', 0, 0$$,
	$$'x', 'infinity', 0, 0$$,
	$$'x', 1.5, 0, 0$$,
	$$'x', 0, 'NaN', 0$$,
	$$'x', 0, '-infinity', 0$$,
	$$'x', 0, 0, 0.1$$]) row;

-- From here on no constraint excludes them.
CREATE PROCEDURE drop_constraints() LANGUAGE plpgsql AS $$
DECLARE
	dropped record;
BEGIN
	FOR dropped IN SELECT conrelid::regclass AS name, conname FROM pg_constraint
		WHERE contype = 'c' AND conrelid::regclass::text ~ '^stock_' LOOP
		EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', dropped.name, dropped.conname);
	END LOOP;
	FOR dropped IN SELECT attrelid::regclass AS name, attname FROM pg_attribute
		WHERE attnotnull AND attnum > 0 AND attrelid::regclass::text ~ '^stock_(log|hold|item|history_.)$'
		AND attidentity = ''
		AND NOT EXISTS (SELECT FROM pg_constraint
			WHERE conrelid = attrelid AND contype = 'p'
				AND attnum = ANY (conkey)) LOOP
		EXECUTE format('ALTER TABLE %s ALTER %I DROP NOT NULL', dropped.name, dropped.attname);
	END LOOP;
END
$$;
CALL drop_constraints();
INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku, lines)
VALUES
	(1, now() - interval '1 h', 0, 'long sku', repeat('A', 4000), NULL),
	(1, now() - interval '1 h', 0, 'longer sku', repeat('A', 100000), NULL),
	(1, now() - interval '1 h', 0, 'empty sku', '', NULL),
	(1, now() - interval '1 h', 0, 'null sku', NULL, NULL),
	(-1, now() - interval '1 h', 0, 'negative', 'bad', NULL),
	(NULL, now() - interval '1 h', 0, 'null quantity', 'bad', NULL),
	('-9223372036854775808', now() - interval '1 h', 0, 'smallest', 'bad', NULL),
	(1, now() - interval '1 h', -1, 'line -1', 'bad', NULL),
	(1, now() - interval '1 h', 32767, 'line 32767', 'bad', NULL),
	(1, now() - interval '1 h', 3, 'line 3 of 3', 'bad', 3),
	(1, now() - interval '1 h', 0, 'too many lines', 'bad', 32767),
	(1, '-infinity', 0, repeat('long ', 400), 'bad', 1),
	(1, NULL, 0, 'null time', 'bad', NULL);
INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku, lines, id, at, actor)
VALUES
	(1, now() - interval '1 h', 0, 'held id 0', 'bad', 1, 0, now(), 'me'),
	(1, now() - interval '1 h', 0, 'held never', 'bad', 1, 1, NULL, 'me'),
	(1, now() - interval '1 h', 0, 'held by nobody', 'bad', 1, 1, now(), NULL),
	(1, now() - interval '1 h', 0, 'held by long', 'bad', 1, 1, now(), repeat('A', 4000));
CREATE FUNCTION code(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	detail text;
BEGIN
	EXECUTE query INTO answer;
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(' ', SQLSTATE, SQLERRM, detail);
END
$$;
CREATE TABLE names AS SELECT DISTINCT reservation AS name FROM stock_hold
	WHERE reservation <> 'order 1';
SELECT left(name, 20) AS name, code(format('SELECT outcome FROM stock_%s(%L)', function, name)) AS answer
FROM names, unnest('{confirm,cancel,extend,reinstate}'::text[]) function
WHERE octet_length(name) < 255 ORDER BY 1, function;
SELECT name, code(format(
	'SELECT outcome FROM stock_reserve(''pot'', 1, %L)', name)) AS answer
FROM names WHERE octet_length(name) < 255 ORDER BY 1;

-- The sweeper goes on with the others,
\set VERBOSITY default
SELECT stock_expire();
SELECT count(*) FROM stock_hold WHERE reservation = 'order 1';
SELECT count(*) FROM stock_hold;
\set VERBOSITY terse
SELECT code('SELECT stock_compact(1000)'), code('SELECT stock_forget()');
SELECT code($$SELECT stock_count_compacted(repeat('A', 4000), 1, true)$$);
SELECT * FROM stock_verify('pot');
DELETE FROM stock_hold;

-- however many bad rows come before them,
SET client_min_messages = error;
INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku)
SELECT 1, now() - i * interval '1 h', 0, 'long sku ' || i, repeat('A', 4000)
FROM generate_series(1, 25) i;
SELECT outcome FROM stock_reserve('cup', 1, 'order 4', ttl => '1 us');
SELECT stock_drop_counters();
SELECT code('SELECT stock_expire(20)');
SELECT code('SELECT stock_expire(20)');

-- also if all of them lapse at the same time,
DELETE FROM stock_hold;
INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku)
SELECT 1, now() - interval '1 h', 0, 'long sku ' || i, repeat('A', 4000)
FROM generate_series(1, 25) i;
SELECT outcome FROM stock_reserve('cup', 1, 'order 5', ttl => '1 us');
SELECT stock_drop_counters();
SELECT code('SELECT stock_expire(20)');
SELECT code('SELECT stock_expire(20)');

-- and if they are more than can be pinned at a time.
DELETE FROM stock_hold;
INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku)
SELECT 1, now() - interval '1 h', 0, 'long sku ' || i, repeat('A', 4000)
FROM generate_series(1, current_setting('idempotency.stock_items')::int / 4 + 25) i;
SELECT outcome FROM stock_reserve('cup', 1, 'order 6', ttl => '1 us');
SELECT code('SELECT stock_expire(1000000)');
RESET client_min_messages;
DELETE FROM stock_hold;

-- The log and the history.
INSERT INTO stock_log
	(id, quantity, change, line, sku, reservation, lines)
OVERRIDING SYSTEM VALUE VALUES
	(1001, NULL, 'receive', NULL, 'null quantity', NULL, NULL),
	(1002, 0, 'receive', NULL, 'zero', NULL, NULL),
	(1003, '-9223372036854775808', 'adjust', NULL, 'smallest', NULL, NULL),
	(1004, -1, 'reserve', NULL, 'negative', 'x', NULL),
	(1005, 1, NULL, NULL, 'null change', NULL, NULL),
	(1006, 9223372036854775807, 'receive', NULL, 'too many', NULL, NULL),
	(1007, 9223372036854775807, 'receive', NULL, 'too many', NULL, NULL),
	(1008, 9223372036854775807, 'reserve', NULL, 'too many', 'x', NULL),
	(1009, 9223372036854775807, 'reserve', NULL, 'too many', 'x', NULL),
	(1010, 1, 'cancel', 0, repeat('A', 4000), 'long sku', 1),
	(0, 1, 'cancel', 0, 'id 0', 'id 0', 1),
	(-1, 1, 'cancel', 0, 'id -1', 'id -1', 1),
	(1011, 1, 'cancel', -1, 'pot', 'line -1', 1),
	(1012, 1, 'cancel', 10000, 'pot', 'line 10000', 1),
	(1013, 1, 'cancel', 1, 'pot', 'line 1 of 1', 1),
	(1014, 1, 'cancel', 1, 'pot', 'too many lines', 10001),
	(1015, NULL, 'cancel', 1, 'pot', 'quantity', 2);
INSERT INTO stock_history_2
	(id, quantity, change, line, sku, reservation, lines)
VALUES
	(2001, 1, 'cancel', 0, repeat('A', 4000), 'long sku, history', 1),
	(NULL, 1, 'cancel', 0, 'pot', 'null id, history', 1),
	(2002, 1, NULL, 0, 'pot', 'null change, history', 1),
	(2003, 1, 'cancel', 0, NULL, 'null sku, history', 1);
INSERT INTO stock_item (sku) SELECT DISTINCT sku FROM stock_log
WHERE sku NOT IN ('cup', 'pot');
SELECT left(sku, 20) AS sku, code(format('SELECT outcome FROM stock_reserve(%L, 1, ''order 2'')', sku)) AS answer
FROM stock_item WHERE octet_length(sku) < 255 AND sku NOT IN ('cup', 'pot')
ORDER BY 1;
SELECT name, code(format('SELECT outcome FROM stock_%s(%L)', function, name)) AS answer
FROM (SELECT DISTINCT reservation AS name FROM stock_history
	WHERE line IS NOT NULL AND reservation <> 'order 1') names,
	unnest('{confirm,reinstate}'::text[]) function ORDER BY 1, function;
SELECT outcome FROM stock_reserve('cup', 1, 'order 3');
SELECT left(sku, 20) AS sku, code(format('SELECT stock_compact_item(%L, 1000)', sku)) FROM stock_item ORDER BY 1;

-- Root records.
INSERT INTO stock_item (sku, received, adjusted) VALUES
	('NaN', 'NaN', 0), ('infinite', 'infinity', 0), ('half', 0.5, 0), ('null', NULL, 0),
	('huge', 1e100, 0), ('max', 9223372036854775807, 1),
	('minus', 'infinity', '-infinity');
SELECT sku, code(format('SELECT outcome FROM stock_reserve(%L, 1, ''order 7'')', sku)) AS answer
FROM stock_item
WHERE sku IN ('NaN', 'infinite', 'half', 'null', 'huge', 'max', 'minus') ORDER BY 1;
SELECT sku, available, reserved, received FROM stock_levels
WHERE sku IN ('NaN', 'infinite', 'half', 'null', 'huge', 'max', 'minus', 'pot')
ORDER BY 1;
SELECT sku, available, ok, detail FROM stock_verify()
WHERE sku IN ('NaN', 'infinite', 'half', 'null', 'huge', 'max', 'minus', 'pot')
ORDER BY 1;
SELECT available FROM stock_level('max');
\i :dir/sql/include/ring_end.sql
