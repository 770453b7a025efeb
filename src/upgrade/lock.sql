/*
 * The first part of each upgrade script.  The Makefile appends the steps from
 * version to version that are written by hand, then every function, procedure,
 * view and comment of the install script (replace.awk), and revoke.sql,
 * repair.sql and announce.sql.  The result must be the same database as after
 * CREATE EXTENSION; test/tap/t/upgrade*.pl compare the two.
 *
 * Rules for the steps:
 *
 * - Functions and views are moved, renamed and replaced, not dropped and
 *   created again.  Then users' objects that depend on them are no obstacle,
 *   and privileges that users granted on them remain.  A function with
 *   different parameters or another result has to be dropped, and loses its
 *   privileges: the next rule forbids granting them again, and users have to
 *   call idempotency_grant again for new functions anyway.  If an object of a
 *   user depends on such a function, DROP FUNCTION names that object, and
 *   nothing is changed.
 * - GRANT and REVOKE are for new objects only.  The server takes what a script
 *   grants for the extension's initial privileges, and pg_dump would then leave
 *   out what a user has granted on that object before.
 * - New objects belong to the extension's owner, who may not be the role that
 *   runs the script.
 * - A step runs after all steps before it, and before the functions of this
 *   version are there: it may find those of any version since its own.
 *
 * All locks are taken first, and together.
 */

/*
 * Locks all tables and views, or none and tries again: a session that has
 * locked one of them may be waiting for another.  The ALTER VIEW changes
 * nothing; LOCK TABLE on a view would also lock everything that the view
 * reads.
 */
DO $$
DECLARE
	lock_timeout text := pg_catalog.current_setting('lock_timeout');
	member       record;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	FOR try IN 1..600 LOOP
		BEGIN
			PERFORM set_config('lock_timeout', '100ms', true);
			FOR member IN
				SELECT c.oid::regclass AS name, c.relkind,
					a.attname AS first_column
				FROM pg_class c
				JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = 1
				JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
					AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
				JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency'
				WHERE c.relkind IN ('r', 'v')
				ORDER BY c.relkind, c.oid
			LOOP
				IF member.relkind = 'r' THEN
					EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', member.name);
				ELSE
					EXECUTE format('ALTER VIEW %s ALTER %I DROP DEFAULT', member.name, member.first_column);
				END IF;
			END LOOP;
			-- What follows in this transaction waits as long as before.
			PERFORM set_config('lock_timeout', lock_timeout, true);
			SET LOCAL search_path = @extschema@, pg_temp;
			RETURN;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			PERFORM pg_sleep(0.1);
		END;
	END LOOP;
	RAISE EXCEPTION 'could not lock the tables of extension idempotency' USING ERRCODE = '55P03',
		HINT = 'Another session uses them in a transaction that goes on for long, such as pg_dump. Try again when it has ended.';
END
$$;
