/*
 * What callers of the stock module may rely on: names, types, columns and
 * rights.  If this fails, an application that worked with the version before
 * does not work with this one, or somebody can oversell past the functions.
 */
\set ON_ERROR_STOP on
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE EXTENSION IF NOT EXISTS pgtap;

BEGIN;
SELECT plan(50);

SELECT enum_has_labels('stock_outcome', ARRAY['reserved', 'insufficient', 'unknown_sku']);
SELECT enum_has_labels('stock_settlement',
	ARRAY['done', 'expired', 'already_confirmed', 'already_cancelled', 'already_reserved',
		  'insufficient', 'unknown']);
SELECT enum_has_labels('stock_change',
	ARRAY['receive', 'adjust', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate']);

SELECT columns_are('stock_item', ARRAY['sku', 'received', 'adjusted', 'confirmed', 'reserved']);
SELECT columns_are('stock_hold',
	ARRAY['quantity', 'expires_at', 'line', 'reservation', 'sku', 'lines']);
SELECT columns_are('stock_log',
	ARRAY['id', 'quantity', 'at', 'change', 'line', 'sku', 'reservation', 'actor', 'note', 'lines']);
SELECT columns_are('stock_history',
	ARRAY['id', 'quantity', 'at', 'change', 'line', 'sku', 'reservation', 'actor', 'note', 'lines']);
SELECT columns_are('stock_levels',
	ARRAY['sku', 'available', 'reserved', 'received', 'adjusted', 'confirmed']);
SELECT columns_are('stock_line', ARRAY['sku', 'quantity']);
SELECT columns_are('stock_shortage', ARRAY['sku', 'wanted', 'available', 'missing']);
SELECT columns_are('stock_reservation', ARRAY['outcome', 'expires_at', 'shortages']);
SELECT col_is_pk('stock_item', 'sku');
SELECT col_is_pk('stock_hold', ARRAY['reservation', 'line']);
SELECT col_is_pk('stock_log', ARRAY['sku', 'id']);
SELECT has_index('stock_hold', 'stock_hold_expires_at', 'expires_at');
SELECT has_index('stock_hold', 'stock_hold_sku_expires_at', ARRAY['sku', 'expires_at']);
SELECT has_index('stock_log', 'stock_log_settled', 'reservation');
SELECT is_empty($$
	SELECT l.attname, l.atttypid, h.atttypid
	FROM pg_attribute l, generate_series(0, 2) slot, pg_attribute h
	WHERE l.attrelid = 'stock_log'::regclass AND l.attnum > 0 AND h.attnum = l.attnum
	  AND h.attrelid = ('stock_history_' || slot)::regclass
	  AND (l.attname, l.atttypid, l.attcollation) IS DISTINCT FROM (h.attname, h.atttypid, h.attcollation)
	$$, 'the history has the columns of the log');

SELECT is_empty($$
	SELECT attrelid::regclass, attname FROM pg_attribute
	WHERE attrelid::regclass::text ~ '^stock_(item|hold|log|history_[0-9])$'
	  AND attname IN ('sku', 'reservation') AND attcollation <> 'pg_catalog."C"'::regcollation
	$$, 'names are compared byte by byte');

/* Arguments with their names and defaults, and results, as psql shows them. */
CREATE FUNCTION pg_temp.signature(function regprocedure) RETURNS text
LANGUAGE sql AS $$
	SELECT pg_get_function_arguments(function) || ' -> ' || pg_get_function_result(function);
$$;
SELECT is(pg_temp.signature('stock_receive(text, bigint, text)'),
	'sku text, quantity bigint, note text DEFAULT NULL::text, OUT available bigint -> bigint');
SELECT is(pg_temp.signature('stock_reserve(text, bigint, text, interval, text)'),
	'sku text, quantity bigint, reservation text, ttl interval DEFAULT NULL::interval, '
	'actor text DEFAULT SESSION_USER -> stock_reservation');
SELECT is(pg_temp.signature('stock_reserve(stock_line[], text, interval, text)'),
	'lines stock_line[], reservation text, ttl interval DEFAULT NULL::interval, '
	'actor text DEFAULT SESSION_USER -> stock_reservation');
SELECT is(pg_temp.signature('stock_lines(jsonb)'), 'lines jsonb -> stock_line[]');
SELECT is(pg_temp.signature('stock_confirm(text, text[])'),
	'reservation text, skus text[] DEFAULT NULL::text[], OUT outcome stock_settlement -> stock_settlement');
SELECT is(pg_temp.signature('stock_cancel(text, text[])'),
	'reservation text, skus text[] DEFAULT NULL::text[], OUT outcome stock_settlement -> stock_settlement');
SELECT is(pg_temp.signature('stock_extend(text, interval)'),
	'reservation text, ttl interval DEFAULT NULL::interval, OUT outcome stock_settlement, '
	'OUT expires_at timestamp with time zone -> record');
SELECT is(pg_temp.signature('stock_reinstate(text, interval)'),
	'reservation text, ttl interval DEFAULT NULL::interval, OUT outcome stock_settlement, '
	'OUT expires_at timestamp with time zone, OUT shortages stock_shortage[] -> record');
SELECT is(pg_temp.signature('stock_adjust(text, bigint, text)'),
	'sku text, delta bigint, note text, OUT available bigint -> bigint');
SELECT is(pg_temp.signature('stock_level(text)'),
	'sku text -> TABLE(available bigint, reserved bigint)');
SELECT is(pg_temp.signature('stock_verify(text)'),
	'INOUT sku text DEFAULT NULL::text, OUT available bigint, OUT reserved bigint, '
	'OUT ok boolean, OUT detail text -> SETOF record');
SELECT is(pg_temp.signature('stock_expire(integer)'),
	'max_holds integer DEFAULT 1000 -> bigint');

/* Those that are for callers: all others are marked as internal. */
CREATE TEMPORARY VIEW stock_function AS
	SELECT p.oid, p.oid::regprocedure AS name, p.prosecdef, p.proconfig,
		   p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'c') AS in_c,
		   p.proparallel,
		   obj_description(p.oid, 'pg_proc') AS comment,
		   obj_description(p.oid, 'pg_proc') LIKE 'Internal: %' AS internal
	FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE e.extname = 'idempotency' AND p.proname LIKE 'stock\_%';
SELECT bag_eq(
	'SELECT DISTINCT proname::text FROM stock_function JOIN pg_proc USING (oid) WHERE NOT internal',
	ARRAY['stock_receive', 'stock_adjust', 'stock_reserve', 'stock_lines', 'stock_confirm',
		  'stock_cancel', 'stock_extend', 'stock_reinstate', 'stock_level', 'stock_verify'],
	'the public functions are these');
SELECT is_empty('SELECT name FROM stock_function WHERE comment IS NULL',
	'every function has a comment');
SELECT is_empty('SELECT name FROM stock_function WHERE NOT internal AND NOT (prosecdef OR in_c)',
	'who may call a function needs no right on what it uses');
SELECT is_empty($$
	SELECT name FROM stock_function
	WHERE (NOT internal AND NOT in_c OR prosecdef)
	  AND NOT coalesce(proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']
	$$, 'no public function can be misled by a search_path');
SELECT is_empty($$
	SELECT name FROM stock_function
	WHERE proparallel <> 'u' AND name::text !~ '^stock_(lines|check_sku)'
	$$, 'none that knows of the open transaction runs in a parallel worker');
SELECT is_empty($$
	SELECT name FROM stock_function WHERE has_function_privilege('public', oid, 'EXECUTE')
	$$, 'PUBLIC can call none of them');
SELECT is_empty($$
	SELECT c.oid::regclass FROM pg_class c
	WHERE c.oid::regclass::text LIKE 'stock\_%' AND c.relkind IN ('r', 'v')
	  AND has_table_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
	$$, 'PUBLIC can read and write none of the tables');

/* The tables themselves refuse what must never be. */
INSERT INTO stock_item (sku) VALUES ('tap');
SELECT throws_ok($$UPDATE stock_item SET received = -1 WHERE sku = 'tap'$$, '23514');
SELECT throws_ok($$UPDATE stock_item SET confirmed = -1 WHERE sku = 'tap'$$, '23514');
SELECT throws_ok($$UPDATE stock_item SET received = NULL WHERE sku = 'tap'$$, '23502');
SELECT throws_ok($$INSERT INTO stock_hold VALUES (0, now(), 0, 'r', 'tap')$$, '23514');
SELECT throws_ok($$INSERT INTO stock_hold VALUES (1, now(), -1, 'r', 'tap')$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity) VALUES ('tap', 'receive', -1)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity) VALUES ('tap', 'adjust', 0)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity) VALUES ('tap', 'reserve', 1)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity, reservation) VALUES ('tap', 'receive', 1, 'r')$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity, reservation, line) VALUES ('tap', 'reserve', 1, 'r', 0)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity, reservation) VALUES ('tap', 'confirm', 1, 'r')$$, '23514');

SELECT bag_eq(
	$$SELECT unnest(extconfig)::regclass::text FROM pg_extension WHERE extname = 'idempotency'
	  INTERSECT SELECT oid::regclass::text FROM pg_class WHERE relname LIKE 'stock\_%'$$,
	ARRAY['stock_item', 'stock_hold', 'stock_log', 'stock_log_id_seq',
		  'stock_history_0', 'stock_history_1', 'stock_history_2'],
	'a dump carries the stock');

SELECT * FROM finish();
ROLLBACK;
