
/*
 * The part of the install and upgrade scripts before the last.
 *
 * A function that runs with its owner's rights reads values that its caller may
 * not see.  Any role can have the plans of its session sent to itself and to
 * the log, with the values in them, and modules such as auto_explain send plans
 * at the level LOG.  So no such function prints its plans, and what its session
 * receives while it runs begins at the level NOTICE.
 */
DO $$
DECLARE
	member  pg_catalog.regprocedure;
	printed text;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	FOR member IN
		SELECT p.oid FROM pg_proc p
		JOIN pg_depend d ON d.classid = 'pg_proc'::regclass
			AND d.objid = p.oid AND d.deptype = 'e'
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass
			AND e.oid = d.refobjid
		WHERE e.extname = 'idempotency' AND p.prosecdef
	LOOP
		FOR printed IN
			SELECT s.name FROM pg_settings s
			WHERE starts_with(s.name, 'debug_print_') ORDER BY s.name
		LOOP
			EXECUTE format('ALTER ROUTINE %s SET %I = off', member, printed);
		END LOOP;
		EXECUTE format('ALTER ROUTINE %s SET client_min_messages = notice', member);
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;
