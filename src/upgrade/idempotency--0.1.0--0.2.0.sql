/*
 * From 0.1.0 to 0.2.0.  What follows makes a database with 0.1.0 the same as one
 * where 0.2.0 was created (test/tap/t/upgrade.pl compares the two), while
 * clients and workers go on.  So, here and in the scripts to come:
 *
 * - Functions and views are replaced, never dropped and created again: then
 *   nothing that uses them is in the way, and privileges that were given on
 *   them stay.
 * - GRANT and REVOKE are for new objects only.  The server takes what is granted
 *   in a script for the extension's own, and pg_dump would leave out what a
 *   user has granted on that object before.
 * - What takes locks comes last, and all of them together.
 * - The new library runs with the old script until here, and workers run on
 *   while this is under way.
 */
\echo Use "ALTER EXTENSION idempotency UPDATE TO '0.2.0'" to load this file. \quit

/* ---- privileges: a second function, for operators ---- */

CREATE FUNCTION idempotency_grant_names(role regrole, functions text[], views text[] DEFAULT '{}')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	wanted record;
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION 'role must not be null' USING ERRCODE = '22004';
	END IF;
	IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
		RAISE EXCEPTION 'role % does not exist', role USING ERRCODE = '42704';
	END IF;
	FOR wanted IN
		WITH member AS (
			SELECT d.classid, d.objid FROM pg_depend d
			JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
			WHERE e.extname = 'idempotency' AND d.deptype = 'e')
		SELECT format('USAGE ON SCHEMA %s', n.oid::regnamespace) AS privilege,
			has_schema_privilege(n.oid, 'USAGE WITH GRANT OPTION') AS grantable,
			has_schema_privilege(role::oid, n.oid, 'USAGE') AS granted
		FROM pg_namespace n WHERE n.oid = '@extschema@'::regnamespace
		UNION ALL
		SELECT format('EXECUTE ON FUNCTION %s', p.oid::regprocedure),
			has_function_privilege(p.oid, 'EXECUTE WITH GRANT OPTION'),
			has_function_privilege(role::oid, p.oid, 'EXECUTE')
		FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
		WHERE p.proname = ANY (functions)
		UNION ALL
		SELECT format('SELECT ON %s', c.oid::regclass),
			has_table_privilege(c.oid, 'SELECT WITH GRANT OPTION'),
			has_table_privilege(role::oid, c.oid, 'SELECT')
		FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
		WHERE c.relname = ANY (views)
	LOOP
		-- GRANT itself would only warn of some of these.
		IF wanted.grantable THEN
			EXECUTE format('GRANT %s TO %s', wanted.privilege, role);
		ELSIF NOT wanted.granted THEN
			RAISE EXCEPTION 'permission denied to grant %', wanted.privilege
				USING ERRCODE = '42501', HINT = 'Let the owner of the extension do it.';
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_grant_names(regrole, text[], text[]) IS
	'Internal: grants a role the use of functions and views of the extension, and of its schema.';
REVOKE ALL ON FUNCTION idempotency_grant_names(regrole, text[], text[]) FROM PUBLIC;

CREATE OR REPLACE FUNCTION idempotency_grant(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM @extschema@.idempotency_grant_names(role,
		'{idem_claim, idem_claim_many, idem_complete, idem_fail, idem_renew,
			outbox_enqueue,
			stock_lines, stock_reserve, stock_confirm, stock_cancel, stock_extend,
			stock_reinstate, stock_level}');
END
$$;

CREATE FUNCTION idempotency_grant_operator(role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM @extschema@.idempotency_grant_names(role,
		'{idem_forget, idem_counters, idem_sample,
			outbox_subscribe, outbox_unsubscribe, outbox_alter, outbox_pause, outbox_resume,
			outbox_redrive, outbox_discard, outbox_replay, outbox_rotate_secret, outbox_adopt,
			outbox_topic_matches, outbox_secret_generate, outbox_signature,
			outbox_flights, outbox_rate,
			stock_receive, stock_adjust, stock_level, stock_verify}',
		'{idem_stats, outbox_subscriptions, outbox_dead, stock_levels}');
END
$$;
COMMENT ON FUNCTION idempotency_grant_operator(regrole) IS
	'Lets a role look after keys, subscriptions and stock, and see how they are, but neither secrets nor tables.';
REVOKE ALL ON FUNCTION idempotency_grant_operator(regrole) FROM PUBLIC;

/* ---- outbox: the first subscription makes a home ---- */

CREATE OR REPLACE FUNCTION outbox_subscribe(
	name           text,
	url            text,
	topics         text[] DEFAULT '{*}',
	secret         text DEFAULT NULL,
	headers        jsonb DEFAULT NULL,
	format         text DEFAULT 'standard',
	ordered        boolean DEFAULT true,
	max_in_flight  integer DEFAULT 32,
	timeout        interval DEFAULT '15 s',
	retry_schedule interval[] DEFAULT '{0 s,5 s,5 min,30 min,2 h,5 h,10 h,14 h,20 h,24 h}',
	start          text DEFAULT 'latest',
	partitions     integer DEFAULT 1)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription_id bigint;
	signing_secret  text := coalesce(secret, @extschema@.outbox_secret_generate());
BEGIN
	PERFORM @extschema@.idempotency_require_preload('the outbox');
	PERFORM @extschema@.outbox_check_subscription(name, topics, format,
		max_in_flight, timeout, retry_schedule, start, ordered, partitions);
	PERFORM @extschema@.outbox_check_url(url);
	PERFORM @extschema@.outbox_check_secret(signing_secret);
	PERFORM @extschema@.outbox_check_headers(headers);

	-- Nobody else's home is here: then it is ours.
	INSERT INTO @extschema@.outbox_home (identity, system_identifier, database, relation)
	SELECT gen_random_uuid(), s.system_identifier, d.oid, '@extschema@.outbox_home'::regclass
	FROM pg_control_system() s, pg_database d
	WHERE d.datname = current_database() AND NOT EXISTS (SELECT FROM @extschema@.outbox_home)
	ON CONFLICT DO NOTHING;
	INSERT INTO @extschema@.outbox_subscription
		(name, url, topics, secret, headers, format, ordered,
		 max_in_flight, timeout, retry_schedule, partitions)
	VALUES (name, url, topics, signing_secret, headers, format, ordered,
		max_in_flight, timeout, retry_schedule, partitions)
	ON CONFLICT DO NOTHING
	RETURNING id INTO subscription_id;
	IF subscription_id IS NULL THEN
		RAISE EXCEPTION 'subscription "%" already exists', name
			USING ERRCODE = '42710';
	END IF;

	IF start = 'latest' THEN
		INSERT INTO @extschema@.outbox_lane (subscription, lane, position, stragglers, straggler_froms)
		SELECT subscription_id, lane, p.position, p.stragglers, p.straggler_froms
		FROM @extschema@.outbox_start_position() p, generate_series(0, partitions - 1) lane;
	ELSE
		INSERT INTO @extschema@.outbox_lane (subscription, lane, position)
		SELECT subscription_id, lane, 0 FROM generate_series(0, partitions - 1) lane;
	END IF;
	PERFORM @extschema@.outbox_wake();
	RETURN signing_secret;
END
$$;

CREATE OR REPLACE FUNCTION outbox_adopt(keep_identity boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	adopted uuid;
BEGIN
	IF keep_identity IS NULL THEN
		RAISE EXCEPTION 'keep_identity must not be null' USING ERRCODE = '22004';
	END IF;
	SELECT h.identity INTO adopted FROM @extschema@.outbox_home h, pg_control_system() s
	ORDER BY h.system_identifier = s.system_identifier, h.created_at LIMIT 1;
	DELETE FROM @extschema@.outbox_home;
	INSERT INTO @extschema@.outbox_home (identity, system_identifier, database, relation)
	SELECT coalesce(CASE WHEN keep_identity THEN adopted END, gen_random_uuid()),
		s.system_identifier, d.oid, '@extschema@.outbox_home'::regclass
	FROM pg_control_system() s, pg_database d
	WHERE d.datname = current_database()
	ON CONFLICT DO NOTHING;
	PERFORM @extschema@.outbox_wake();
END
$$;

CREATE FUNCTION outbox_subscription_deleted()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	DELETE FROM @extschema@.outbox_lane l USING deleted WHERE l.subscription = deleted.id;
	DELETE FROM @extschema@.outbox_delivery d USING deleted WHERE d.subscription = deleted.id;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION outbox_subscription_deleted() IS
	'Internal: what belongs to a subscription goes with it.';
REVOKE ALL ON FUNCTION outbox_subscription_deleted() FROM PUBLIC;

CREATE FUNCTION outbox_delivery_deleted()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	DELETE FROM @extschema@.outbox_attempt a USING deleted
		WHERE a.subscription = deleted.subscription AND a.position = deleted.position;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION outbox_delivery_deleted() IS
	'Internal: the attempts at an event go with it.';
REVOKE ALL ON FUNCTION outbox_delivery_deleted() FROM PUBLIC;

/*
 * All at once, or none and another try: whoever has one of them may be waiting
 * for another.  The ALTER VIEW changes nothing; LOCK TABLE with a view would
 * lock all that the view reads.
 */
SET LOCAL lock_timeout = '100ms';
DO $$
BEGIN
	FOR try IN 1..600 LOOP
		BEGIN
			LOCK TABLE outbox_subscription, outbox_lane, outbox_delivery, outbox_attempt, outbox_home
				IN ACCESS EXCLUSIVE MODE;
			ALTER VIEW outbox_subscriptions ALTER name DROP DEFAULT;
			RETURN;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			PERFORM pg_catalog.pg_sleep(0.1);
		END;
	END LOOP;
	RAISE EXCEPTION 'could not lock the tables of the outbox' USING ERRCODE = '55P03',
		HINT = 'Somebody has them in a transaction that goes on for long, such as pg_dump. Try again when it has ended.';
END
$$;

ALTER TABLE outbox_lane DROP CONSTRAINT outbox_lane_subscription_fkey;
ALTER TABLE outbox_delivery DROP CONSTRAINT outbox_delivery_subscription_fkey;
ALTER TABLE outbox_attempt DROP CONSTRAINT outbox_attempt_subscription_position_fkey;
CREATE TRIGGER outbox_subscription_deleted AFTER DELETE ON outbox_subscription
	REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION outbox_subscription_deleted();
CREATE TRIGGER outbox_delivery_deleted AFTER DELETE ON outbox_delivery
	REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION outbox_delivery_deleted();

/*
 * A dump that was restored over its own database has left a second row, of
 * which the relay uses the one with the smaller identity.
 */
DELETE FROM outbox_home h USING outbox_home o
WHERE o.system_identifier OPERATOR(pg_catalog.=) h.system_identifier
	AND o.database OPERATOR(pg_catalog.=) h.database
	AND o.identity OPERATOR(pg_catalog.<) h.identity;
ALTER TABLE outbox_home ADD relation oid NOT NULL DEFAULT 0;
UPDATE outbox_home SET relation = tableoid;
ALTER TABLE outbox_home ADD UNIQUE (system_identifier, database);

CREATE OR REPLACE VIEW outbox_subscriptions AS
SELECT s.name,
	CASE WHEN NOT h.at_home THEN 'held'
		WHEN s.state = 'active' AND s.failing_since IS NOT NULL THEN 'failing'
		ELSE s.state END AS state,
	CASE WHEN h.at_home THEN s.reason
		ELSE 'a copy of another database: see outbox_adopt()' END AS reason,
	s.partitions, l.position, q.last_value - l.position AS lag_events,
	coalesce(clock_timestamp() - e.created_at, '0') AS lag,
	coalesce(w.in_flight, 0) AS in_flight, d.waiting, d.parked, d.dead, l.lost, l.delivered,
	round(l.rate::numeric, 1) AS rate, s.failing_since,
	f.last_at AS last_failed_at, f.last_status, f.last_error
FROM outbox_subscription s
CROSS JOIN LATERAL (
	SELECT min(position) AS position, max(lost) AS lost, sum(delivered)::bigint AS delivered,
		sum(outbox_rate(rate, moved_at)) AS rate
	FROM outbox_lane WHERE subscription = s.id) l
CROSS JOIN (SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS last_value
	FROM outbox_position_seq) q
CROSS JOIN (SELECT coalesce(bool_and(h.relation = h.tableoid AND h.system_identifier = s.system_identifier
		AND h.database = (SELECT oid FROM pg_database WHERE datname = current_database())), false) AS at_home
	FROM outbox_home h, pg_control_system() s) h
CROSS JOIN LATERAL (
	SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting,
		count(*) FILTER (WHERE state = 'parked') AS parked,
		count(*) FILTER (WHERE state = 'dead') AS dead
	FROM outbox_delivery WHERE subscription = s.id) d
LEFT JOIN LATERAL (
	SELECT created_at FROM outbox_log WHERE position > l.position
	ORDER BY position LIMIT 1) e ON true
LEFT JOIN LATERAL (
	SELECT last_at, last_status, last_error FROM outbox_delivery
	WHERE subscription = s.id AND last_at IS NOT NULL
	ORDER BY last_at DESC LIMIT 1) f ON true
LEFT JOIN (SELECT subscription, sum(in_flight)::integer AS in_flight
	FROM outbox_flights() GROUP BY subscription) w ON w.subscription = s.id;
