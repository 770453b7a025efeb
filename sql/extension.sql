-- The extension can be created, dropped and created again, in any schema.
SET client_min_messages = warning;

CREATE SCHEMA "Odd schema";
CREATE EXTENSION idempotency SCHEMA "Odd schema";
SELECT outcome, attempt FROM "Odd schema".idem_claim('a');
SELECT outcome, attempt FROM "Odd schema".idem_claim('a');
SELECT "Odd schema".outbox_enqueue('t', '{}');

SELECT "Odd schema".stock_receive('hat', 3);
SELECT outcome, shortages FROM "Odd schema".stock_reserve('hat', 2, 'r1');

-- It cannot be moved, and leaves nothing behind.
ALTER EXTENSION idempotency SET SCHEMA public;
DROP EXTENSION idempotency;
SELECT count(*) FROM pg_class WHERE relnamespace = '"Odd schema"'::regnamespace;
SELECT count(*) FROM pg_proc WHERE pronamespace = '"Odd schema"'::regnamespace;
DROP SCHEMA "Odd schema";

-- What was remembered is gone, and nothing of it is left in this session.
CREATE EXTENSION idempotency;
SELECT outcome, token FROM idem_claim('a');
SELECT outbox_enqueue('t', '{}');
DROP EXTENSION idempotency;

-- The settings have their own prefix.
SET idempotency.nonsense = 1;
SHOW idempotency.ttl;
SHOW idempotency.lease;
SHOW idempotency.reservation_ttl;

CREATE EXTENSION idempotency;

-- Every object of the extension says what it is for.
SELECT format('%s %s', i.type, i.identity) AS undocumented
FROM pg_depend d
JOIN pg_extension e ON e.oid = d.refobjid AND d.deptype = 'e',
LATERAL pg_identify_object(d.classid, d.objid, 0) i
WHERE e.extname = 'idempotency'
	AND i.type IN ('function', 'table', 'view', 'sequence', 'type')
	AND obj_description(d.objid, d.classid::regclass::name) IS NULL
	AND NOT EXISTS (SELECT FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
		WHERE t.oid = d.objid AND c.relkind <> 'c')
	AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = d.objid AND t.typelem <> 0)
	AND i.identity NOT LIKE '%id_seq'
ORDER BY 1;
