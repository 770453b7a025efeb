
/*
 * The third-last part of an upgrade script: new objects get the extension's
 * owner, whichever role runs the script, and new functions are not executable
 * by PUBLIC.  Functions of the previous version have rows in pg_init_privs.
 */
DO $$
DECLARE
	owner   regrole;
	created record;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	SELECT extowner INTO STRICT owner FROM pg_extension WHERE extname = 'idempotency';
	FOR created IN
		WITH member AS (
			SELECT d.classid, d.objid FROM pg_depend d
			JOIN pg_extension e ON e.oid = d.refobjid
			WHERE e.extname = 'idempotency' AND d.deptype = 'e'
				AND d.refclassid = 'pg_extension'::regclass)
		SELECT format('ROUTINE %s', p.oid::regprocedure) AS name,
			p.proowner <> owner AS is_foreign
		FROM pg_proc p
		JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
		WHERE NOT EXISTS (SELECT FROM pg_init_privs i
			WHERE i.classoid = m.classid AND i.objoid = m.objid)
		UNION ALL
		SELECT format('%s %s',
			CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END,
			c.oid::regclass), true
		FROM pg_class c
		JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
		WHERE c.relkind IN ('r', 'v') AND c.relowner <> owner
			AND c.relowner = current_user::regrole
	LOOP
		IF created.is_foreign THEN
			EXECUTE format('ALTER %s OWNER TO %s', created.name, owner);
		END IF;
		IF starts_with(created.name, 'ROUTINE') THEN
			EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', created.name);
		END IF;
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;
