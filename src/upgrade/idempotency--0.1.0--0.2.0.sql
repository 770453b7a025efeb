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
	PERFORM @extschema@.idempotency_require_preload('the outbox'::text);
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
	IF TG_OP = 'TRUNCATE' THEN
		DELETE FROM @extschema@.outbox_lane;
		DELETE FROM @extschema@.outbox_delivery;
	ELSE
		DELETE FROM @extschema@.outbox_lane l USING deleted WHERE l.subscription = deleted.id;
		DELETE FROM @extschema@.outbox_delivery d USING deleted WHERE d.subscription = deleted.id;
	END IF;
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

/* ---- all: what they call is called by its exact types ---- */

CREATE OR REPLACE FUNCTION idempotency_ring_truncate(ring regclass, tables text, unused_state text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	unused  smallint;
	emptied bigint;
BEGIN
	EXECUTE format('SELECT slot FROM %s WHERE state = %L ORDER BY generation LIMIT 1', ring, unused_state)
		INTO unused;
	IF unused IS NULL THEN
		RETURN false;
	END IF;
	EXECUTE format('LOCK TABLE @extschema@.%I IN ACCESS EXCLUSIVE MODE NOWAIT', tables || '_' || unused);
	-- Another session may have emptied it, and put it to use again.
	EXECUTE format('UPDATE %s SET state = %L, generation = NULL, opened_at = NULL, closed_at = NULL,
		quiet_xid = NULL, rest_until = NULL WHERE slot = $1 AND state = $2', ring, 'empty')
		USING unused, unused_state;
	GET DIAGNOSTICS emptied = ROW_COUNT;
	IF emptied > 0 THEN
		EXECUTE format('TRUNCATE @extschema@.%I', tables || '_' || unused);
	END IF;
	RETURN emptied > 0;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION idem_switch()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT @extschema@.idempotency_ring_switch(''@extschema@.idem_ring''::regclass)';

CREATE OR REPLACE FUNCTION idem_retire(slot smallint DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET enable_seqscan = on
AS $$
DECLARE
	oldest  @extschema@.idem_ring;
	started timestamptz := clock_timestamp();
	expired bigint;
	others  bigint;
BEGIN
	SELECT * INTO oldest FROM @extschema@.idem_ring r
		WHERE r.state = 'old' AND r.slot = coalesce(idem_retire.slot, r.slot)
		ORDER BY r.generation LIMIT 1;
	IF NOT FOUND OR NOT @extschema@.idempotency_is_quiet(oldest.quiet_xid) THEN
		RETURN false;
	END IF;
	EXECUTE 'SELECT count(*) FILTER (WHERE expires_at <= $1), count(*) FILTER (WHERE expires_at > $1)
		FROM @extschema@.idem_key_' || oldest.slot
		INTO expired, others USING started;
	IF others > 0 THEN
		-- Somebody has been about them: looking again must not be all we do.
		UPDATE @extschema@.idem_ring
			SET rest_until = clock_timestamp() + 20 * (clock_timestamp() - started)
			WHERE generation = oldest.generation AND state = 'old';
		RETURN false;
	END IF;
	LOCK TABLE @extschema@.idem_ring IN SHARE ROW EXCLUSIVE MODE;
	UPDATE @extschema@.idem_ring SET state = 'retired'
		WHERE generation = oldest.generation AND state = 'old';
	IF NOT FOUND THEN
		RETURN false;
	END IF;
	PERFORM @extschema@.idempotency_ring_changed('@extschema@.idem_ring'::regclass);
	PERFORM @extschema@.idem_count_expired(expired);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION idem_truncate()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT @extschema@.idempotency_ring_truncate(''@extschema@.idem_ring''::regclass, ''idem_key''::text, ''retired''::text)';

CREATE OR REPLACE FUNCTION outbox_alter(
	name           text,
	url            text DEFAULT NULL,
	topics         text[] DEFAULT NULL,
	headers        jsonb DEFAULT NULL,
	format         text DEFAULT NULL,
	max_in_flight  integer DEFAULT NULL,
	timeout        interval DEFAULT NULL,
	retry_schedule interval[] DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	altered @extschema@.outbox_subscription;
BEGIN
	SELECT * INTO altered FROM @extschema@.outbox_subscription s
	WHERE s.id = @extschema@.outbox_subscription_id(outbox_alter.name) FOR NO KEY UPDATE;
	altered.url := coalesce(url, altered.url);
	altered.topics := coalesce(topics, altered.topics);
	altered.headers := coalesce(headers, altered.headers);
	altered.format := coalesce(format, altered.format);
	altered.max_in_flight := coalesce(max_in_flight, altered.max_in_flight);
	altered.timeout := coalesce(timeout, altered.timeout);
	altered.retry_schedule := coalesce(retry_schedule, altered.retry_schedule);
	PERFORM @extschema@.outbox_check_subscription(altered.name, altered.topics, altered.format,
		altered.max_in_flight, altered.timeout, altered.retry_schedule, 'latest'::text, altered.ordered,
		altered.partitions);
	PERFORM @extschema@.outbox_check_url(altered.url);
	PERFORM @extschema@.outbox_check_headers(altered.headers);
	UPDATE @extschema@.outbox_subscription s
	SET url = altered.url, topics = altered.topics, headers = altered.headers, format = altered.format,
		max_in_flight = altered.max_in_flight, timeout = altered.timeout,
		retry_schedule = altered.retry_schedule, version = s.version + 1
	WHERE s.id = altered.id;
	PERFORM @extschema@.outbox_wake();
END
$$;

CREATE OR REPLACE FUNCTION outbox_switch()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF NOT @extschema@.idempotency_ring_switch('@extschema@.outbox_ring'::regclass) THEN
		RETURN false;
	END IF;
	-- Still under the lock of the ring: whoever comes later writes elsewhere.
	UPDATE @extschema@.outbox_ring
		SET last_position = CASE WHEN state = 'old' THEN
				(SELECT last_value FROM @extschema@.outbox_position_seq) END,
			warned = false
		WHERE state = 'current' OR generation =
			(SELECT max(o.generation) FROM @extschema@.outbox_ring o WHERE o.state = 'old');
	RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION outbox_truncate()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	upto bigint;
BEGIN
	SELECT last_position INTO upto FROM @extschema@.outbox_ring
		WHERE state = 'old' ORDER BY generation LIMIT 1;
	IF upto IS NULL OR EXISTS (SELECT FROM @extschema@.outbox_lanes_behind(upto)) THEN
		RETURN false;
	END IF;
	LOCK TABLE @extschema@.outbox_lane IN SHARE ROW EXCLUSIVE MODE;
	SELECT last_position INTO upto FROM @extschema@.outbox_ring
		WHERE state = 'old' ORDER BY generation LIMIT 1;
	RETURN upto IS NOT NULL AND NOT EXISTS (SELECT FROM @extschema@.outbox_lanes_behind(upto))
		AND @extschema@.idempotency_ring_truncate('@extschema@.outbox_ring'::regclass, 'outbox_log'::text, 'old'::text);
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION outbox_warn_behind()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	upto bigint;
	held record;
BEGIN
	UPDATE @extschema@.outbox_ring r SET warned = true
		WHERE r.generation = (SELECT min(o.generation) FROM @extschema@.outbox_ring o WHERE o.state = 'old')
			AND NOT r.warned
			AND EXISTS (SELECT FROM @extschema@.outbox_lanes_behind(r.last_position))
		RETURNING r.last_position INTO upto;
	FOR held IN
		SELECT s.name, s.state FROM @extschema@.outbox_subscription s
		WHERE s.id IN (SELECT l.subscription FROM @extschema@.outbox_lanes_behind(upto) l)
		ORDER BY s.name
	LOOP
		RAISE WARNING 'subscription "%" is about to lose events', held.name
			USING DETAIL = format('It is %s and holds back the log, which has reached half of idempotency.outbox_keep_size.',
				held.state);
	END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION outbox_expire_log()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	retention interval := current_setting('idempotency.outbox_retention')::interval;
	keep      bigint := pg_size_bytes(current_setting('idempotency.outbox_keep_size'));
	size      numeric := @extschema@.outbox_log_size();
	oldest    @extschema@.outbox_ring;
	now_used  @extschema@.outbox_ring;
	is_used   boolean;
BEGIN
	IF keep >= 0 AND size > keep / 2 THEN
		PERFORM @extschema@.outbox_warn_behind();
	END IF;
	SELECT * INTO oldest FROM @extschema@.outbox_ring
		WHERE state = 'old' ORDER BY generation LIMIT 1;
	IF oldest.closed_at <= clock_timestamp() - retention OR keep >= 0 AND size > keep THEN
		IF @extschema@.outbox_truncate() OR keep >= 0 AND size > keep AND @extschema@.outbox_pass_over() THEN
			RETURN true;
		END IF;
	END IF;
	SELECT * INTO now_used FROM @extschema@.outbox_ring WHERE state = 'current';
	EXECUTE 'SELECT EXISTS (SELECT FROM @extschema@.outbox_log_' || now_used.slot || ')' INTO is_used;
	IF is_used AND (now_used.opened_at <= clock_timestamp() - retention / 2
		OR keep >= 0 AND pg_total_relation_size(('@extschema@.outbox_log_' || now_used.slot)::regclass) > keep / 4)
	THEN
		PERFORM @extschema@.outbox_switch();
	END IF;
	RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION outbox_expire(max_events integer DEFAULT 1000)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	dead_retention text := current_setting('idempotency.outbox_dead_retention');
	deleted        integer := 0;
BEGIN
	UPDATE @extschema@.outbox_subscription SET old_secret = NULL, old_until = NULL
		WHERE id IN (SELECT s.id FROM @extschema@.outbox_subscription s
			WHERE s.old_until <= clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED);
	IF dead_retention <> '-1' THEN
		DELETE FROM @extschema@.outbox_delivery d
		USING (SELECT o.subscription, o.position FROM @extschema@.outbox_delivery o
			WHERE o.state = 'dead' AND o.last_at <= clock_timestamp() - dead_retention::interval
			ORDER BY o.last_at LIMIT max_events FOR UPDATE SKIP LOCKED) o
		WHERE d.subscription = o.subscription AND d.position = o.position;
		GET DIAGNOSTICS deleted = ROW_COUNT;
	END IF;
	RETURN @extschema@.outbox_expire_log() OR deleted >= max_events;
END
$$;

CREATE OR REPLACE FUNCTION stock_announce(topic text, reservation text, skus text[], quantities bigint[])
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT @extschema@.outbox_enqueue(
		stock_announce.topic,
		jsonb_build_object('reservation', stock_announce.reservation, 'lines',
			(SELECT jsonb_agg(jsonb_build_object('sku', line.sku, 'quantity', line.quantity) ORDER BY line.sku)
			FROM unnest(skus, quantities) line (sku, quantity))),
		stock_announce.reservation, NULL::text, NULL::jsonb, NULL::timestamptz)
$$;

CREATE OR REPLACE FUNCTION stock_announce_available(sku text, available bigint)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT @extschema@.outbox_enqueue(
		'stock.available'::text,
		jsonb_build_object('sku', stock_announce_available.sku,
			'available', stock_announce_available.available),
		stock_announce_available.sku, NULL::text, NULL::jsonb, NULL::timestamptz)
$$;

CREATE OR REPLACE FUNCTION stock_verify(
	INOUT sku     text DEFAULT NULL,
	OUT available bigint,
	OUT reserved  bigint,
	OUT ok        boolean,
	OUT detail    text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	before jsonb := '{}'::jsonb;
BEGIN
	IF sku IS NOT NULL THEN
		PERFORM @extschema@.stock_check_sku(sku);
	END IF;
	IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
		SELECT coalesce(jsonb_object_agg(counter.sku, counter.touches), '{}') INTO before
		FROM @extschema@.stock_counters() counter
		WHERE NOT counter.in_use
		  AND (stock_verify.sku IS NULL OR counter.sku = stock_verify.sku);
	END IF;
	RETURN QUERY
	WITH book AS MATERIALIZED (
		SELECT *
		FROM @extschema@.stock_books books
		WHERE stock_verify.sku IS NULL OR books.sku = stock_verify.sku
	), counter AS MATERIALIZED (
		SELECT counted.*
		FROM @extschema@.stock_counters() counted
		WHERE NOT counted.in_use AND counted.touches = (before ->> counted.sku)::bigint
	)
	SELECT book.sku, book.available::bigint, book.reserved::bigint,
		   difference.detail IS NULL, difference.detail
	FROM book
	LEFT JOIN counter ON counter.sku = book.sku
	CROSS JOIN LATERAL (
		SELECT string_agg(problem.what, '; ' ORDER BY problem.number) AS detail
		FROM (VALUES
			(1, CASE WHEN NOT book.has_item THEN 'there is no row in stock_item' END),
			(2, CASE WHEN book.available < 0 THEN
				format('%s too many are promised', -book.available) END),
			(3, CASE WHEN book.reserved <> book.held THEN
				format('%s are reserved by stock_log and %s by stock_hold', book.reserved, book.held) END),
			(4, CASE WHEN book.available <> counter.available THEN
				format('%s are available by stock_log and %s by the counter', book.available, counter.available) END)
		) problem (number, what)
		WHERE problem.what IS NOT NULL
	) difference
	ORDER BY book.sku;
END
$$;

CREATE OR REPLACE FUNCTION stock_archive(sku text, rows jsonb)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT @extschema@.outbox_enqueue(
		current_setting('idempotency.stock_archive_topic'),
		jsonb_build_object('sku', stock_archive.sku, 'rows', stock_archive.rows),
		stock_archive.sku, NULL::text, NULL::jsonb, NULL::timestamptz)
$$;

CREATE OR REPLACE FUNCTION stock_compact_next(max_rows integer)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	crowded text;
	removed integer := 0;
	failed  integer := 0;
BEGIN
	FOR crowded IN
		SELECT * FROM @extschema@.stock_crowded(current_setting('idempotency.stock_compact_after')::integer)
	LOOP
		BEGIN
			removed := removed + @extschema@.stock_compact_item(crowded, max_rows - removed);
		EXCEPTION WHEN OTHERS THEN
			failed := failed + 1;
			IF failed = 1 THEN	-- what is wrong may be so with all of them
				RAISE WARNING 'log of "%" could not be compacted', crowded
					USING ERRCODE = SQLSTATE, DETAIL = SQLERRM;
			END IF;
		END;
		EXIT WHEN removed >= max_rows;
	END LOOP;
	IF failed > 1 THEN
		RAISE WARNING 'nor could those of % other items', failed - 1;
	END IF;
	RETURN removed > 0;
END
$$;

CREATE OR REPLACE FUNCTION stock_forget(max_rows integer DEFAULT 1000)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	kept     interval := current_setting('idempotency.stock_history')::interval;
	now_used @extschema@.stock_ring;
	is_used  boolean;
BEGIN
	IF EXISTS (SELECT FROM @extschema@.stock_ring ring
			WHERE ring.state = 'old' AND ring.closed_at <= clock_timestamp() - kept)
		AND @extschema@.idempotency_ring_truncate('@extschema@.stock_ring'::regclass, 'stock_history'::text, 'old'::text)
	THEN
		RETURN true;
	END IF;
	SELECT * INTO now_used FROM @extschema@.stock_ring WHERE state = 'current';
	EXECUTE 'SELECT EXISTS (SELECT FROM @extschema@.stock_history_' || now_used.slot || ')' INTO is_used;
	IF is_used AND now_used.opened_at <= clock_timestamp() - kept / 2 THEN
		PERFORM @extschema@.idempotency_ring_switch('@extschema@.stock_ring'::regclass);
	END IF;
	RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION stock_compact_item(sku text, max_rows integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	archived CONSTANT boolean := current_setting('idempotency.stock_archive_topic') <> '';
	since    bigint;
	upto     bigint;
	slot     smallint;
	event_rows CONSTANT integer := 100;	-- small enough for any limit of payloads
	removed  integer;
	archives jsonb[];
	archive  jsonb;
BEGIN
	PERFORM FROM @extschema@.stock_item item
		WHERE item.sku = stock_compact_item.sku FOR NO KEY UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	SELECT min(entry.id), max(entry.id) INTO since, upto FROM (
		SELECT oldest.id FROM @extschema@.stock_log oldest
		WHERE oldest.sku = stock_compact_item.sku ORDER BY oldest.id LIMIT max_rows) entry;
	LOCK TABLE @extschema@.stock_ring IN ROW EXCLUSIVE MODE;
	SELECT ring.slot INTO slot FROM @extschema@.stock_ring ring WHERE ring.state = 'current';
	EXECUTE format($query$
		WITH removed AS (
			DELETE FROM @extschema@.stock_log
			WHERE sku = $1 AND id BETWEEN $5 AND $2
			RETURNING *
		), kept AS (
			INSERT INTO %s SELECT * FROM removed
		), total AS (
			SELECT coalesce(sum(quantity) FILTER (WHERE change = 'receive'), 0) AS received,
				   coalesce(sum(quantity) FILTER (WHERE change = 'adjust'), 0) AS adjusted,
				   coalesce(sum(quantity) FILTER (WHERE change = 'confirm'), 0) AS confirmed,
				   coalesce(sum(CASE
						WHEN change IN ('reserve', 'reinstate') THEN quantity
						WHEN change IN ('confirm', 'cancel', 'expire') THEN -quantity
					   END), 0) AS reserved
			FROM removed
		), root AS (
			UPDATE @extschema@.stock_item item
			SET received = item.received + total.received,
				adjusted = item.adjusted + total.adjusted,
				confirmed = item.confirmed + total.confirmed,
				reserved = item.reserved + total.reserved
			FROM total
			WHERE item.sku = $1
		)
		SELECT (SELECT count(*)::integer FROM removed), ARRAY(
			SELECT jsonb_agg(part.entry ORDER BY part.id)
			FROM (SELECT id, to_jsonb(removed) AS entry,
					(row_number() OVER (ORDER BY id) - 1) / $4 AS number
				FROM removed WHERE $3) part
			GROUP BY part.number ORDER BY part.number)
		$query$, '@extschema@.stock_history_' || slot)
		INTO removed, archives USING stock_compact_item.sku, upto, archived, event_rows, since;
	FOREACH archive IN ARRAY archives LOOP
		PERFORM @extschema@.stock_archive(stock_compact_item.sku, archive);
	END LOOP;
	PERFORM @extschema@.stock_count_compacted(stock_compact_item.sku, removed, removed < max_rows);
	RETURN removed;
END
$$;

/*
 * All at once, or none and another try: whoever has one of them may be waiting
 * for another.  The ALTER VIEW changes nothing; LOCK TABLE with a view would
 * lock all that the view reads.
 */
DO $$
DECLARE
	lock_timeout text := pg_catalog.current_setting('lock_timeout');
BEGIN
	FOR try IN 1..600 LOOP
		BEGIN
			PERFORM pg_catalog.set_config('lock_timeout', '100ms', true);
			LOCK TABLE outbox_subscription, outbox_lane, outbox_delivery, outbox_attempt, outbox_home
				IN ACCESS EXCLUSIVE MODE;
			ALTER VIEW outbox_subscriptions ALTER name DROP DEFAULT;
			-- What follows in the same transaction waits as long as it would have.
			PERFORM pg_catalog.set_config('lock_timeout', lock_timeout, true);
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
CREATE TRIGGER outbox_subscription_truncated AFTER TRUNCATE ON outbox_subscription
	FOR EACH STATEMENT EXECUTE FUNCTION outbox_subscription_deleted();
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

/*
 * What 0.2.0 refuses when it is created (base/privileges.sql) may be so already
 * in a schema where others may create objects.
 */
DO $$
DECLARE
	stranger text;
BEGIN
	WITH RECURSIVE ours (class, object) AS (
		SELECT d.classid, d.objid FROM pg_catalog.pg_depend d
		JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
		WHERE e.extname OPERATOR(pg_catalog.=) 'idempotency'::name AND d.deptype OPERATOR(pg_catalog.=) 'e'::"char"
			AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::oid
		UNION
		SELECT d.classid, d.objid FROM ours
		JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) ours.class
			AND d.refobjid OPERATOR(pg_catalog.=) ours.object
			AND (d.deptype OPERATOR(pg_catalog.=) 'a'::"char" OR d.deptype OPERATOR(pg_catalog.=) 'i'::"char")
			AND (d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_constraint'::pg_catalog.regclass::oid
				OR d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass::oid)
	)
	SELECT pg_catalog.pg_describe_object(d.refclassid, d.refobjid, 0) INTO stranger
	FROM pg_catalog.pg_depend d
	JOIN ours ON d.classid OPERATOR(pg_catalog.=) ours.class AND d.objid OPERATOR(pg_catalog.=) ours.object
	WHERE (d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass::oid
			OR d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::oid)
		AND NOT EXISTS (SELECT FROM ours o WHERE o.class OPERATOR(pg_catalog.=) d.refclassid
			AND o.object OPERATOR(pg_catalog.=) d.refobjid)
	LIMIT 1;
	IF stranger IS NOT NULL THEN
		RAISE WARNING 'extension idempotency uses %', stranger
			USING HINT = 'Dump it, and restore it into a schema where nobody else may create objects.';
	END IF;
END
$$;
