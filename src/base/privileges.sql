/* Last part of the install script: nothing for PUBLIC, and a word to the launcher. */

DO $$
DECLARE
	member pg_catalog.regprocedure;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	FOR member IN
		SELECT d.objid FROM pg_depend d
		JOIN pg_extension e ON e.oid = d.refobjid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e'
			AND d.refclassid = 'pg_extension'::regclass
			AND d.classid = 'pg_proc'::regclass
	LOOP
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', member);
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;

CREATE FUNCTION idempotency_grant(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member regprocedure;
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION 'role must not be null' USING ERRCODE = '22004';
	END IF;
	IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
		RAISE EXCEPTION 'role % does not exist', role USING ERRCODE = '42704';
	END IF;
	EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s',
		'@extschema@'::regnamespace, role);
	FOR member IN
		SELECT p.oid::regprocedure FROM pg_proc p
		JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass
			AND e.oid = d.refobjid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e'
			AND p.proname IN ('idem_claim', 'idem_claim_many', 'idem_complete', 'idem_fail',
				'idem_renew', 'outbox_enqueue', 'stock_lines',
				'stock_reserve', 'stock_confirm', 'stock_cancel', 'stock_extend', 'stock_reinstate', 'stock_level')
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', member, role);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_grant(regrole) IS
	'Lets an application role claim keys, enqueue events and reserve stock, and no more.';
REVOKE ALL ON FUNCTION idempotency_grant(regrole) FROM PUBLIC;

GRANT SELECT ON idem_stats, outbox_dead, outbox_subscriptions, stock_levels TO pg_monitor;
GRANT EXECUTE ON FUNCTION idem_counters(), idem_sample(smallint, integer),
	outbox_flights(), outbox_rate(double precision, timestamptz, bigint) TO pg_monitor;
GRANT USAGE ON SCHEMA @extschema@ TO pg_monitor;

/*
 * What is parsed while the extension is created, such as a view, could come to
 * use an operator or function of somebody who may create objects in its schema.
 * On what the server itself has no dependency is written down.
 */
DO $$
DECLARE
	stranger text;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	WITH RECURSIVE ours (class, object) AS (
		SELECT d.classid, d.objid FROM pg_depend d
		JOIN pg_extension e ON e.oid = d.refobjid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
		UNION
		SELECT d.classid, d.objid FROM ours
		JOIN pg_depend d ON d.refclassid = ours.class AND d.refobjid = ours.object AND d.deptype IN ('a', 'i')
	)
	SELECT pg_describe_object(d.refclassid, d.refobjid, 0) INTO stranger
	FROM pg_depend d JOIN ours ON d.classid = ours.class AND d.objid = ours.object
	WHERE d.refclassid NOT IN ('pg_extension'::regclass, 'pg_namespace'::regclass, 'pg_language'::regclass)
		AND NOT EXISTS (SELECT FROM ours o WHERE o.class = d.refclassid AND o.object = d.refobjid)
	LIMIT 1;
	IF stranger IS NOT NULL THEN
		RAISE EXCEPTION 'extension idempotency would use %', stranger
			USING ERRCODE = '55000', HINT = 'Create it in a schema where nobody else may create objects.';
	END IF;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;

CREATE FUNCTION idempotency_announce()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
SELECT idempotency_announce();
DROP FUNCTION idempotency_announce();
