/*
 * The part of the install script before the last: privileges.  Nothing is
 * granted to PUBLIC.  Callers need EXECUTE on a function and no privilege on
 * tables.  A grant of a function's name covers all functions of that name.
 */

CREATE FUNCTION idempotency_internal.idempotency_grant_names(
	role regrole, functions text[], views text[],
	schemas text[] DEFAULT '{@extschema@}', may_grant boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	option CONSTANT text := CASE WHEN may_grant THEN ' WITH GRANT OPTION' ELSE '' END;
	wanted record;
BEGIN
	IF role IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'role must not be null');
	END IF;
	IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
		PERFORM idempotency_internal.idempotency_raise('42704',
			format('role %s does not exist', role));
	END IF;
	FOR wanted IN
		WITH member AS (
			SELECT d.classid, d.objid FROM pg_depend d
			JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass
				AND e.oid = d.refobjid
			WHERE e.extname = 'idempotency' AND d.deptype = 'e')
		SELECT format('USAGE ON SCHEMA %s', n.oid::regnamespace) AS privilege,
			has_schema_privilege(n.oid, 'USAGE WITH GRANT OPTION') AS grantable,
			has_schema_privilege(role::oid, n.oid, 'USAGE' || option) AS granted
		FROM pg_namespace n WHERE n.nspname = ANY (schemas)
		UNION ALL
		SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure),
			has_function_privilege(p.oid, 'EXECUTE WITH GRANT OPTION'),
			has_function_privilege(role::oid, p.oid, 'EXECUTE' || option)
		FROM pg_proc p
		JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
		WHERE p.proname = ANY (functions)
		UNION ALL
		SELECT format('SELECT ON %s', c.oid::regclass),
			has_table_privilege(c.oid, 'SELECT WITH GRANT OPTION'),
			has_table_privilege(role::oid, c.oid, 'SELECT' || option)
		FROM pg_class c
		JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
		WHERE c.relname = ANY (views)
	LOOP
		-- GRANT itself would only warn about some of these.
		IF wanted.grantable THEN
			EXECUTE format('GRANT %s TO %s%s', wanted.privilege, role, option);
		ELSIF NOT wanted.granted THEN
			PERFORM idempotency_internal.idempotency_raise('42501',
				format('permission denied to grant %s', wanted.privilege),
				'Let the owner of the extension do it.');
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_grant_names(
	regrole, text[], text[], text[], boolean) IS
	'Internal: grants a role the use of functions and views of the extension, and of its schema.';

/*
 * pg_dump reads our sequences, even with --schema-only.  The role of an
 * application often owns its database, and dumps its schema.  A role that has
 * other privileges on internal objects, by default privileges of the time of
 * version 1.0.0 for example, must not get to them by that.
 */
CREATE FUNCTION idempotency_internal.idempotency_grant_only(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_grant_names(role,
		'{idem_claim, idem_claim_many, idem_complete, idem_fail, idem_renew,
			idem_wait, outbox_enqueue, outbox_cancel, outbox_event_id,
			stock_reserve, stock_reserve_many, stock_change_many,
			stock_confirm, stock_cancel, stock_extend, stock_reinstate,
			stock_reservation_status, stock_position, stock_level}',
		'{stock_levels, outbox_topics}');
	IF NOT EXISTS (SELECT FROM pg_class c
		WHERE c.relnamespace = 'idempotency_internal'::regnamespace
			AND CASE c.relkind
				WHEN 'S' THEN has_sequence_privilege(role::oid, c.oid, 'USAGE, UPDATE')
				WHEN 'i' THEN false
				ELSE has_any_column_privilege(role::oid, c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')
					OR has_table_privilege(role::oid, c.oid, 'DELETE, TRUNCATE, TRIGGER') END
		UNION ALL
		SELECT FROM pg_proc p
		WHERE p.pronamespace = 'idempotency_internal'::regnamespace
			AND has_function_privilege(role::oid, p.oid, 'EXECUTE')
			AND NOT has_function_privilege('pg_monitor', p.oid, 'EXECUTE'))
	THEN
		PERFORM idempotency_internal.idempotency_grant_names(role, '{}',
			'{idem_token_seq, outbox_position_seq, outbox_subscription_id_seq,
				stock_log_id_seq}', '{idempotency_internal}');
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_grant_only(regrole) IS
	'Internal: idempotency_grant without a record in the audit.';

CREATE FUNCTION idempotency_grant(role regrole)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idempotency_grant';
COMMENT ON FUNCTION idempotency_grant(regrole) IS
	'Lets the role of an application claim keys, enqueue events, reserve stock and see what is available.';

CREATE FUNCTION idempotency_internal.idempotency_grant_reader_only(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_grant_names(role,
		'{outbox_fetch, outbox_ack, outbox_wait}', '{outbox_topics}');
END
$$;
COMMENT ON FUNCTION
	idempotency_internal.idempotency_grant_reader_only(regrole) IS
	'Internal: idempotency_grant_reader without a record in the audit.';

CREATE FUNCTION idempotency_grant_reader(role regrole)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idempotency_grant';
COMMENT ON FUNCTION idempotency_grant_reader(regrole) IS
	'Lets a role read the events, with their payloads, of all subscriptions without a URL.';

CREATE FUNCTION idempotency_internal.idempotency_grant_operator_only(
	role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_grant_names(role,
		'{idempotency_status, idem_forget, idem_fence, idem_unfence,
			idem_counters, idem_evicted, idem_sample,
			outbox_subscribe, outbox_unsubscribe, outbox_alter, outbox_ping,
			outbox_pause, outbox_resume, outbox_redrive, outbox_retry,
			outbox_discard, outbox_dead_page, outbox_acknowledge_lost,
			outbox_replay,
			outbox_rotate_secret, outbox_adopt,
			outbox_topic, outbox_drop_topic,
			outbox_rotate_key, outbox_public_key, outbox_key_generate,
			outbox_topic_matches, outbox_secret_generate, outbox_signature,
			outbox_flights, outbox_rate_limited, outbox_troubles, outbox_rate,
			outbox_shares, idempotency_stats_reset, idempotency_workers,
			outbox_traffic, outbox_latencies, idempotency_counted_since,
			stock_counts, stock_numbers,
			stock_receive, stock_adjust, stock_transfer, stock_backorder,
			stock_level, stock_position,
			stock_verify}',
		'{idem_stats, idem_keys, idem_fences,
			outbox_subscriptions, outbox_deliveries, outbox_dead, outbox_topics,
			stock_levels, stock_holds, stock_waiting, stock_history,
			idempotency_segments, idempotency_workers, idempotency_audit,
			outbox_stats, outbox_latency, stock_stats}');
END
$$;
COMMENT ON FUNCTION
	idempotency_internal.idempotency_grant_operator_only(regrole) IS
	'Internal: idempotency_grant_operator without a record in the audit.';

CREATE FUNCTION idempotency_grant_operator(role regrole)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idempotency_grant';
COMMENT ON FUNCTION idempotency_grant_operator(regrole) IS
	'Lets a role manage and monitor keys, subscriptions and stock, without access to secrets or tables.';

/*
 * Views and functions of the schema call some internal functions with the
 * privileges of their caller, so these are granted too.  Only members of the
 * extension are granted: another object in the schema may have the same name as
 * an internal one.
 */
CREATE FUNCTION idempotency_internal.idempotency_grant_admin_only(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	members CONSTANT oid[] := ARRAY(
		SELECT d.objid FROM pg_depend d
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e');
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_grant_names(role,
		'{idem_counters, idem_evicted, idem_sample,
			outbox_flights, outbox_rate_limited,
			outbox_troubles, outbox_rate, outbox_shares,
			idempotency_workers, outbox_traffic, outbox_latencies,
			idempotency_counted_since, stock_counts, stock_numbers,
			idempotency_enter, idempotency_raise, idempotency_grant_names}'
			|| ARRAY(SELECT p.proname::text FROM pg_proc p
				WHERE p.pronamespace = '@extschema@'::regnamespace
					AND p.oid = ANY (members)),
		ARRAY(SELECT c.relname::text FROM pg_class c
			WHERE c.oid = ANY (members)
				AND (c.relnamespace = '@extschema@'::regnamespace OR c.relkind = 'S')),
		'{@extschema@, idempotency_internal}', true);
END
$$;
COMMENT ON FUNCTION
	idempotency_internal.idempotency_grant_admin_only(regrole) IS
	'Internal: idempotency_grant_admin without a record in the audit.';

CREATE FUNCTION idempotency_grant_admin(role regrole)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idempotency_grant';
COMMENT ON FUNCTION idempotency_grant_admin(regrole) IS
	'Lets a role use all public functions and views, and grant that to other roles, where the owner of the extension cannot log in.';

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
		EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', member);
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;

/*
 * Views that leave out rows are security barriers; otherwise a caller's
 * condition could be evaluated on those rows.  stock_levels shows every item,
 * and a barrier would keep a join with it from using the index.
 */
GRANT SELECT ON idem_stats, idem_keys, idem_fences,
	outbox_subscriptions, outbox_deliveries, outbox_dead, outbox_topics,
	stock_levels, stock_holds, stock_waiting, idempotency_segments,
	idempotency_workers, idempotency_audit, outbox_stats, outbox_latency,
	stock_stats
TO pg_monitor;
GRANT EXECUTE ON FUNCTION
	idempotency_internal.idem_counters(),
	idempotency_internal.idem_evicted(),
	idempotency_internal.idem_sample(smallint, integer),
	idempotency_internal.outbox_flights(),
	idempotency_internal.outbox_rate_limited(),
	idempotency_internal.outbox_troubles(),
	idempotency_internal.outbox_rate(double precision, timestamptz, bigint),
	idempotency_internal.outbox_shares(),
	idempotency_internal.idempotency_workers(),
	idempotency_internal.outbox_traffic(),
	idempotency_internal.outbox_latencies(),
	idempotency_internal.idempotency_counted_since(),
	idempotency_internal.stock_counts(),
	idempotency_internal.stock_numbers(),
	idempotency_status()
TO pg_monitor;
GRANT USAGE ON SCHEMA @extschema@ TO pg_monitor;

/*
 * Whatever is parsed while the extension is created, such as a view, might use
 * an operator or function of a role that can create objects in the schema.
 * pg_depend has no rows for built-in objects, so any other dependency is
 * refused.
 */
DO $$
DECLARE
	stranger text;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	WITH RECURSIVE ours (class, object) AS (
		SELECT d.classid, d.objid FROM pg_depend d
		JOIN pg_extension e ON e.oid = d.refobjid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e'
			AND d.refclassid = 'pg_extension'::regclass
		UNION
		SELECT d.classid, d.objid FROM ours
		JOIN pg_depend d ON d.refclassid = ours.class
			AND d.refobjid = ours.object AND d.deptype IN ('a', 'i')
	)
	SELECT pg_describe_object(d.refclassid, d.refobjid, 0) INTO stranger
	FROM pg_depend d
	JOIN ours ON d.classid = ours.class AND d.objid = ours.object
	WHERE d.refclassid NOT IN (
			'pg_extension'::regclass, 'pg_namespace'::regclass,
			'pg_language'::regclass)
		AND NOT EXISTS (SELECT FROM ours o
			WHERE o.class = d.refclassid AND o.object = d.refobjid)
	LIMIT 1;
	IF stranger IS NOT NULL THEN
		RAISE EXCEPTION 'extension idempotency would use %', stranger
			USING ERRCODE = '55000', HINT = 'Create the extension in a schema where no other role may create objects.';
	END IF;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;
