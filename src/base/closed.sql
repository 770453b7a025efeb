
/*
 * A part of the install and upgrade scripts near the end.  Default privileges
 * may have given new internal objects to other roles.  They are taken back, but
 * what the script itself has granted, to pg_monitor, stays.  Older objects are
 * left alone: users may have granted privileges on them.  The command that runs
 * the script has written the row of the extension, perhaps in a subtransaction,
 * so the new objects are those of its xmin.
 */
DO $$
DECLARE
	given record;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	FOR given IN
		WITH created AS (
			SELECT d.classid, d.objid FROM pg_depend d
			JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass
				AND e.oid = d.refobjid
			WHERE e.extname = 'idempotency' AND d.deptype = 'e'
				AND d.xmin = e.xmin),
		object (classid, oid, name, acl, owner) AS (
			SELECT 'pg_namespace'::regclass, oid,
				format('SCHEMA %s', oid::regnamespace), nspacl, nspowner
			FROM pg_namespace WHERE nspname = 'idempotency_internal'
			UNION ALL
			SELECT 'pg_proc'::regclass, oid,
				format('ROUTINE %s', oid::regprocedure), proacl, proowner
			FROM pg_proc
			WHERE pronamespace = 'idempotency_internal'::regnamespace
			UNION ALL
			SELECT 'pg_class'::regclass, oid,
				format('TABLE %s', oid::regclass), relacl, relowner
			FROM pg_class
			WHERE relnamespace = 'idempotency_internal'::regnamespace)
		SELECT DISTINCT o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC'
			ELSE a.grantee::regrole::text END AS role
		FROM object o
		JOIN created c ON c.classid = o.classid AND c.objid = o.oid,
			aclexplode(o.acl) a
		WHERE a.grantee NOT IN (o.owner, 'pg_monitor'::regrole)
	LOOP
		EXECUTE format('REVOKE ALL ON %s FROM %s', given.name, given.role);
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;
