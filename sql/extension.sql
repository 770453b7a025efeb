-- The extension can be created, dropped and created again, in any schema;
-- internal objects are in idempotency_internal, and nowhere else.
SET client_min_messages = warning;

CREATE SCHEMA "Odd schema";
CREATE EXTENSION idempotency SCHEMA "Odd schema";
SELECT outcome, attempt FROM "Odd schema".idem_claim('a');
SELECT outcome, attempt FROM "Odd schema".idem_claim('a');
SELECT "Odd schema".outbox_enqueue('t', '{}');
SELECT idempotency_internal.stock_compact();

SELECT "Odd schema".stock_receive('hat', 3);
SELECT outcome, shortages FROM "Odd schema".stock_reserve('hat', 2, 'r1');

CREATE ROLE regress_shop;
CREATE ROLE regress_watch;
SELECT "Odd schema".idempotency_grant('regress_shop');
SELECT "Odd schema".idempotency_grant_operator('regress_watch');
SET ROLE regress_shop;
SELECT outcome FROM "Odd schema".idem_claim('b');
SET ROLE regress_watch;
SELECT "Odd schema".idem_forget('b');
RESET ROLE;
DROP OWNED BY regress_shop, regress_watch;
DROP ROLE regress_shop, regress_watch;

-- It cannot be moved, and DROP EXTENSION leaves nothing behind.
ALTER EXTENSION idempotency SET SCHEMA public;
DROP EXTENSION idempotency;
SELECT count(*) FROM pg_class WHERE relnamespace = '"Odd schema"'::regnamespace;
SELECT count(*) FROM pg_proc WHERE pronamespace = '"Odd schema"'::regnamespace;
SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency_internal';
DROP SCHEMA "Odd schema";

-- An existing schema of another owner is not used for internal objects.
\set SHOW_CONTEXT never
CREATE SCHEMA idempotency_internal;
CREATE EXTENSION idempotency;
CREATE EXTENSION idempotency SCHEMA idempotency_internal;
DROP SCHEMA idempotency_internal;
\set SHOW_CONTEXT errors

-- The extension's own schema cannot be dropped, nor the objects in it.
CREATE EXTENSION idempotency;
DROP SCHEMA idempotency_internal;
DROP SCHEMA idempotency_internal CASCADE;
DROP EXTENSION idempotency;

-- In a schema where others may create objects, none of their functions is
-- called.
CREATE ROLE regress_joe;
CREATE SCHEMA hostile AUTHORIZATION regress_joe;
SET ROLE regress_joe;
CREATE SEQUENCE hostile.calls;
GRANT USAGE ON SEQUENCE hostile.calls TO PUBLIC;
CREATE FUNCTION hostile.pg_extension_config_dump(text, text) RETURNS bigint
	LANGUAGE sql AS $$ SELECT nextval('hostile.calls') $$;
CREATE FUNCTION hostile.cardinality(xid8[]) RETURNS integer
	LANGUAGE sql IMMUTABLE AS $$ SELECT nextval('hostile.calls')::integer $$;
CREATE FUNCTION hostile.equals(oid, regclass) RETURNS boolean
	LANGUAGE sql AS $$ SELECT nextval('hostile.calls') > 0 $$;
CREATE OPERATOR hostile.= (LEFTARG = oid, RIGHTARG = regclass,
	FUNCTION = hostile.equals);
RESET ROLE;
CREATE EXTENSION idempotency SCHEMA hostile;
SELECT hostile.outbox_subscribe('s', 'http://127.0.0.1:1/') IS NOT NULL AS subscribed;
SELECT is_called FROM hostile.calls;
DROP EXTENSION idempotency;
DROP SCHEMA hostile CASCADE;
DROP ROLE regress_joe;

-- Keys of the dropped extension are gone, and this session remembers nothing
-- of them.
CREATE EXTENSION idempotency;
SELECT outcome, token FROM idem_claim('a');
SELECT outbox_enqueue('t', '{}');
SELECT stock_compact();
DROP EXTENSION idempotency;

-- The settings have their own prefix.
SET idempotency.nonsense = 1;
SHOW idempotency.ttl;
SHOW idempotency.lease;
SHOW idempotency.reservation_ttl;
ALTER SYSTEM SET idempotency.databases = 'a b';
\set VERBOSITY sqlstate
SELECT repeat('t', 256) AS topic \gset
ALTER SYSTEM SET idempotency.stock_archive_topic = :'topic';
ALTER SYSTEM SET idempotency.stock_archive_topic = 'outbox.archive';
\set VERBOSITY default

CREATE EXTENSION idempotency;

-- Every object of the extension has a comment.
SELECT format('%s %s', i.type, i.identity) AS undocumented
FROM pg_depend d
JOIN pg_extension e ON e.oid = d.refobjid AND d.deptype = 'e',
LATERAL pg_identify_object(d.classid, d.objid, 0) i
WHERE e.extname = 'idempotency'
	AND i.type IN ('schema', 'function', 'table', 'view', 'sequence', 'type')
	AND obj_description(d.objid, d.classid::regclass::name) IS NULL
	AND NOT EXISTS (SELECT FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
		WHERE t.oid = d.objid AND c.relkind <> 'c')
	AND NOT EXISTS (SELECT FROM pg_type t
		WHERE t.oid = d.objid AND t.typelem <> 0)
	AND i.identity NOT LIKE '%id_seq'
ORDER BY 1;
