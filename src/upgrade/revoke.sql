
/*
 * Last but one part of an upgrade script: functions that it has created are not for
 * PUBLIC.  Those of the version before have initial privileges.
 */
DO $$
DECLARE
	created pg_catalog.regprocedure;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	FOR created IN
		SELECT d.objid FROM pg_depend d
		JOIN pg_extension e ON e.oid = d.refobjid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e'
			AND d.refclassid = 'pg_extension'::regclass
			AND d.classid = 'pg_proc'::regclass
			AND NOT EXISTS (SELECT FROM pg_init_privs i
				WHERE i.classoid = d.classid AND i.objoid = d.objid)
	LOOP
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', created);
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;
