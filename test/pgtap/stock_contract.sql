/*
 * What the stock module relies on in its tables and functions; public_api.sql
 * has signatures and privileges.  If this fails, stock can be oversold, or a
 * dump lacks stock.
 */
\set ON_ERROR_STOP on
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE EXTENSION IF NOT EXISTS pgtap;

BEGIN;
SELECT plan(30);

SELECT columns_are('stock_item',
	ARRAY['sku', 'received', 'adjusted', 'confirmed', 'backorder']);
SELECT columns_are('stock_hold',
	ARRAY['quantity', 'expires_at', 'line', 'reservation', 'sku', 'lines',
		'id', 'at', 'actor']);
SELECT columns_are('stock_log',
	ARRAY['id', 'quantity', 'at', 'change', 'line', 'sku', 'reservation',
		'actor', 'note', 'lines', 'reserved_id', 'reserved_at',
		'reserved_by']);
SELECT col_is_pk('stock_item', 'sku');
SELECT col_is_pk('stock_hold', ARRAY['reservation', 'line']);
SELECT col_is_pk('stock_log', ARRAY['sku', 'id']);
SELECT columns_are('stock_queue',
	ARRAY['id', 'quantity', 'ttl_us', 'sku', 'reservation']);
SELECT col_is_pk('stock_queue', ARRAY['sku', 'id']);
SELECT columns_are('stock_in_doubt',
	ARRAY['sku', 'taken', 'received', 'leaving', 'pending', 'joined',
		'served', 'created', 'lapses_at']);
SELECT has_index('stock_in_doubt', 'stock_in_doubt_sku_idx', 'sku');
SELECT has_index('stock_hold', 'stock_hold_sku_expires_at', ARRAY['sku', 'expires_at']);
SELECT has_index('stock_log', 'stock_log_settled', 'reservation');
SELECT is_empty($$
	SELECT l.attname, l.atttypid, h.atttypid
	FROM pg_attribute l, generate_series(0, 2) slot, pg_attribute h
	WHERE l.attrelid = 'stock_log'::regclass AND l.attnum > 0 AND h.attnum = l.attnum
	  AND h.attrelid = ('stock_history_' || slot)::regclass
	  AND (l.attname, l.atttypid, l.attcollation) IS DISTINCT FROM (h.attname,
		h.atttypid, h.attcollation)
	$$, 'the history has the columns of the log');

SELECT is_empty($$
	SELECT relname, attname FROM pg_attribute
	JOIN pg_class c ON c.oid = attrelid
	WHERE relname ~ '^stock_(item|hold|log|history_[0-9])$'
	  AND attname IN ('sku', 'reservation') AND attcollation <> 'pg_catalog."C"'::regcollation
	$$, 'names are compared byte by byte');

/* The public functions: all others are marked as internal. */
CREATE TEMPORARY VIEW stock_function AS
	SELECT p.oid, p.oid::regprocedure AS name, p.prosecdef, p.proconfig,
		   p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'c') AS in_c,
		   p.proparallel,
		   obj_description(p.oid, 'pg_proc') AS comment,
		   obj_description(p.oid, 'pg_proc') LIKE 'Internal: %' AS internal
	FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE e.extname = 'idempotency' AND p.proname LIKE 'stock\_%';
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
	WHERE proparallel <> 'u' AND name::text !~ '^stock_check_(sku|reservation)\('
	$$, 'none that knows of the open transaction runs in a parallel worker');

/* The tables themselves refuse rows that must not exist. */
INSERT INTO stock_item (sku) VALUES ('tap');
SELECT throws_ok($$UPDATE stock_item SET received = -1 WHERE sku = 'tap'$$,
	'23514');
SELECT throws_ok($$UPDATE stock_item SET confirmed = -1 WHERE sku = 'tap'$$,
	'23514');
SELECT throws_ok($$UPDATE stock_item SET received = NULL WHERE sku = 'tap'$$,
	'23502');
SELECT throws_ok($$INSERT INTO stock_hold VALUES (0, now(), 0, 'r', 'tap')$$,
	'23514');
SELECT throws_ok($$INSERT INTO stock_hold VALUES (1, now(), -1, 'r', 'tap')$$,
	'23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity)
	VALUES ('tap', 'receive', -1)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity)
	VALUES ('tap', 'adjust', 0)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity)
	VALUES ('tap', 'reserve', 1)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity, reservation)
	VALUES ('tap', 'receive', 1, 'r')$$, '23514');
SELECT throws_ok(
	$$INSERT INTO stock_log (sku, change, quantity, reservation, line)
		VALUES ('tap', 'reserve', 1, 'r', 0)$$, '23514');
SELECT throws_ok($$INSERT INTO stock_log (sku, change, quantity, reservation)
	VALUES ('tap', 'confirm', 1, 'r')$$, '23514');

SELECT bag_eq(
	$$SELECT unnest(extconfig)::regclass::text FROM pg_extension
		WHERE extname = 'idempotency'
	  INTERSECT SELECT oid::regclass::text FROM pg_class WHERE relname LIKE 'stock\_%'$$,
	ARRAY['stock_item', 'stock_hold', 'stock_queue', 'stock_log', 'stock_log_id_seq',
		  'stock_history_0', 'stock_history_1', 'stock_history_2'],
	'a dump carries the stock');

SELECT * FROM finish();
ROLLBACK;
