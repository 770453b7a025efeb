-- What plpgsql_check finds in our PL/pgSQL functions, at its strictest level,
-- and how they raise errors.  If this fails, a function may run SQL text that a
-- caller controls, fail only in a branch that no test runs, or show internals
-- to its caller.
LOAD 'plpgsql_check';	-- it refuses to come when PL/pgSQL is at work already
BEGIN;
SELECT plan(5);

CREATE VIEW ours AS
SELECT p.oid, p.pronamespace = 'idempotency_internal'::regnamespace AS internal,
	p.prosrc, t.tgrelid, t.tgoldtable
FROM pg_depend d
JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
JOIN pg_language l ON l.oid = p.prolang
LEFT JOIN LATERAL (SELECT * FROM pg_trigger WHERE tgfoid = p.oid
	ORDER BY tgoldtable LIMIT 1) t ON true
WHERE e.extname = 'idempotency' AND d.deptype = 'e' AND l.lanname = 'plpgsql';

SELECT cmp_ok((SELECT count(*) FROM ours WHERE internal), '>', 20::bigint, 'there is something to check of what is internal');
SELECT cmp_ok((SELECT count(*) FROM ours WHERE NOT internal), '>', 2::bigint, 'and of what is public');
SELECT is_empty($$
	SELECT f.oid::regprocedure, c.lineno, c.level, c.sqlstate, c.message,
		c.detail, c.query
	FROM ours f, plpgsql_check_function_tb(f.oid,
		coalesce(f.tgrelid, 0), oldtable => f.tgoldtable,
		fatal_errors => false, other_warnings => true, extra_warnings => true,
		performance_warnings => true, security_warnings => true, compatibility_warnings => true) c
	WHERE c.message NOT LIKE 'routine is marked as %'	-- of no use in what a worker calls once a second
		AND (f.oid, c.message) <> ('stock_forget'::regproc, 'unused parameter "max_rows"')	-- every step of the sweeper has it
		AND (f.oid, c.query) IS DISTINCT FROM ('idempotency_grant_names'::regproc::oid,
			$q$format('GRANT %s TO %s%s', wanted.privilege, role, option)$q$)	-- names from the catalog, and a constant
		AND (f.oid, c.message) <> ('idempotency_status'::regproc, 'name of parameter "check" is reserved keyword')	-- "check" is a column
$$, 'plpgsql_check finds nothing');

-- See the comment on idempotency_enter in src/base/functions.sql.
SELECT is_empty($$
	SELECT oid::regprocedure FROM ours
	WHERE NOT internal AND oid <> 'idempotency_status'::regproc	-- which raises none
		AND prosrc !~ '\nBEGIN\n\tPERFORM idempotency_internal\.idempotency_enter\(\);\n'
$$, 'public functions say first that they were entered');
SELECT is_empty($$
	SELECT oid::regprocedure FROM ours
	WHERE prosrc ~ 'RAISE EXCEPTION'
		-- For one who has made a trigger of it, or has written a row by hand.
		AND oid <> ALL ('{idempotency_refuse_trigger,outbox_check_subscription_row}'::regproc[])
$$, 'and errors are raised without the internal stack');

SELECT * FROM finish();
ROLLBACK;
