/*
 * outbox: the public functions, for producers first, then for operators.
 *
 * Like a worker, they use indexes whatever the statistics say: a plan may have
 * been made while the tables were empty, or right after a restore.  The planner
 * then takes each index for as good as the others.  So events at given
 * positions are looked up one by one, since an array need not be a condition of
 * the index, and their states are compared by LIKE, since = would allow to read
 * one of the indexes of all events in that state.
 */

CREATE FUNCTION outbox_enqueue(
	topic      text,
	payload    jsonb,
	key        text DEFAULT NULL,
	type       text DEFAULT NULL,
	headers    jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL,
	dedup_key  text DEFAULT NULL,
	dedup_ttl  interval DEFAULT NULL,
	replace    boolean DEFAULT false)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_enqueue(text, jsonb, text, text, jsonb, timestamptz,
	timestamptz, text, interval, boolean) IS
	'Enqueues an event, which is sent if and only if this transaction commits; returns its position in the log. If an event with the same topic and dedup_key was enqueued before, returns the position of that one.';

/*
 * The row is inserted before the clock is read; readers do it the other way
 * round (cancel.c).  Copies that a relay is making at the same time are deleted
 * by the sweeper, or when they are due.  An event of this transaction may have
 * no time to wait for, so it is taken out of the log.
 */
CREATE FUNCTION outbox_cancel("position" bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	due_at timestamptz;
	is_own boolean;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_cancel()');
	IF position IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'position must not be null');
	END IF;
	SELECT e.deliver_at, e.xid = pg_current_xact_id_if_assigned()
	INTO due_at, is_own
	FROM idempotency_internal.outbox_event e
	WHERE e.position = outbox_cancel.position;
	IF is_own THEN
		INSERT INTO idempotency_internal.outbox_cancelled (position)
		VALUES (outbox_cancel.position) ON CONFLICT DO NOTHING;
		DELETE FROM idempotency_internal.outbox_log_0 e
		WHERE e.position = outbox_cancel.position;
		DELETE FROM idempotency_internal.outbox_log_1 e
		WHERE e.position = outbox_cancel.position;
		DELETE FROM idempotency_internal.outbox_log_2 e
		WHERE e.position = outbox_cancel.position;
		RETURN true;
	ELSIF NOT FOUND THEN
		-- The log may have forgotten an event that waits for its time.
		SELECT CASE WHEN bool_and(d.state = 'waiting' AND d.last_at IS NULL)
			THEN min(d.due_at) END INTO due_at
		FROM idempotency_internal.outbox_delivery d
		WHERE d.position = outbox_cancel.position
			AND d.subscription = ANY (ARRAY(
				SELECT s.id FROM idempotency_internal.outbox_subscription s));
	END IF;
	IF due_at > clock_timestamp() THEN
		INSERT INTO idempotency_internal.outbox_cancelled (position)
		VALUES (outbox_cancel.position) ON CONFLICT DO NOTHING;
		IF FOUND AND due_at <= clock_timestamp() THEN
			DELETE FROM idempotency_internal.outbox_cancelled c
			WHERE c.position = outbox_cancel.position;
			RETURN false;
		END IF;
		DELETE FROM idempotency_internal.outbox_delivery d
		WHERE d.position = outbox_cancel.position
			AND d.subscription = ANY (ARRAY(
				SELECT s.id FROM idempotency_internal.outbox_subscription s));
		RETURN true;
	END IF;
	RETURN EXISTS (SELECT FROM idempotency_internal.outbox_cancelled c
		WHERE c.position = outbox_cancel.position);
END
$$;
COMMENT ON FUNCTION outbox_cancel(bigint) IS
	'Cancels an event that is not due yet, or that this transaction has enqueued; returns whether nobody has been or will be sent it.';

CREATE FUNCTION idempotency_internal.outbox_is_cancelled("position" bigint)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_is_cancelled(bigint) IS
	'Internal: was an event cancelled? Null: a transaction that does so is open.';

CREATE FUNCTION idempotency_internal.outbox_enqueue_reserved(
	topic      text,
	payload    jsonb,
	key        text DEFAULT NULL,
	type       text DEFAULT NULL,
	headers    jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_enqueue_reserved(
	text, jsonb, text, text, jsonb, timestamptz) IS
	'Internal: outbox_enqueue, for the extension''s own events, whose topics may be reserved, and whose payloads match no schema of a user.';

/*
 * Enqueues an event about a subscription.  A value that cannot be sent must not
 * keep the relay from recording what the event is about.
 */
CREATE FUNCTION idempotency_internal.outbox_announce(
	topic text, subscription text, about jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.outbox_enqueue_reserved(topic,
		jsonb_build_object('subscription', subscription) || about, subscription);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
	RAISE WARNING 'event "%" about subscription "%" could not be enqueued', topic, subscription
		USING ERRCODE = SQLSTATE, DETAIL = SQLERRM;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_announce(text, text, jsonb) IS
	'Internal: enqueues an event of the extension about a subscription.';

CREATE FUNCTION idempotency_internal.outbox_log_insert()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF (TG_WHEN, TG_LEVEL, TG_OP, TG_RELID)
		IS DISTINCT FROM ('INSTEAD OF', 'ROW', 'INSERT', '@extschema@.outbox_log'::regclass) THEN
		PERFORM idempotency_internal.idempotency_refuse_trigger('outbox_log_insert');
	END IF;
	NEW.position := @extschema@.outbox_enqueue(NEW.topic, NEW.payload, NEW.key,
		NEW.type, NEW.headers, NEW.deliver_at, NEW.expires_at);
	NEW.xid := pg_current_xact_id();
	NEW.created_at := clock_timestamp();
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_log_insert() IS
	'Internal: an INSERT into outbox_log, or a COPY, enqueues an event; position, xid and time are not the caller''s to choose.';
CREATE TRIGGER outbox_log_insert INSTEAD OF INSERT ON outbox_log
	FOR EACH ROW EXECUTE FUNCTION idempotency_internal.outbox_log_insert();

CREATE FUNCTION idempotency_internal.outbox_wake()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_wake() IS
	'Internal: the commit of this transaction wakes the relay.';

CREATE FUNCTION idempotency_internal.outbox_check_headers(headers jsonb)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_headers(jsonb) IS
	'Internal: raises an error unless these HTTP headers can be sent with an event.';

CREATE FUNCTION idempotency_internal.outbox_start_position(
	OUT "position" bigint, OUT stragglers xid8[], OUT straggler_froms bigint[])
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_start_position() IS
	'Internal: where a subscription that starts with the latest events begins to read.';

CREATE FUNCTION idempotency_internal.outbox_retired_to()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_retired_to() IS
	'Internal: no event up to this position can be read again; 0: all can.';

CREATE FUNCTION outbox_topic_matches(patterns text[], topic text)
RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 20
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_topic_matches(text[], text) IS
	'Whether a topic matches one of the patterns. In a pattern, * stands for any number of characters. Topics that begin with outbox. are reserved: only patterns that begin likewise match them.';

/* The cost makes the planner check the partition of an event first. */
CREATE FUNCTION idempotency_internal.outbox_is_wanted(
	patterns text[], topic text)
RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 20
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_is_wanted(text[], text) IS
	'Internal: outbox_topic_matches, for the relay, which does not read pings from the log.';

/*
 * An event about a subscription that gets such events could lead to another one
 * about the same subscription, and so on.
 */
CREATE FUNCTION idempotency_internal.outbox_is_announced(topics text[])
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT NOT EXISTS (SELECT FROM unnest(topics) t
		WHERE starts_with(t, 'outbox.'))
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_is_announced(text[]) IS
	'Internal: whether events tell that a subscription with these topics fails or is disabled.';

CREATE FUNCTION idempotency_internal.outbox_filter_is_predicate(filter jsonpath)
RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_filter_is_predicate(jsonpath) IS
	'Internal: whether a filter returns true or false, and not values.';

CREATE FUNCTION idempotency_internal.outbox_partition_number(
	key text, "position" bigint, partitions integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
	SELECT (coalesce(pg_catalog.hashtextextended(key, 0), position)
			OPERATOR(pg_catalog.&) 65535)::pg_catalog.int4
		OPERATOR(pg_catalog.%) partitions
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_partition_number(
	text, bigint, integer) IS
	'Internal: the partition of a subscription that an event belongs to; the same for all events of a key.';

CREATE FUNCTION idempotency_internal.outbox_rate(
	rate double precision, since timestamptz, delivered bigint DEFAULT 0)
RETURNS double precision
LANGUAGE sql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT delivered / 10.0 + CASE
		WHEN rate < 0.01 OR clock_timestamp() - since > '1 min' THEN 0
		ELSE rate * exp(-
			greatest(0, extract(epoch FROM clock_timestamp() - since)) / 10) END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_rate(
	double precision, timestamptz, bigint) IS
	'Internal: events a second, averaged over the last ten seconds or so, now that so many more were delivered.';

CREATE FUNCTION idempotency_internal.outbox_milliseconds(span interval)
RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS 'SELECT (pg_catalog.extract(''epoch'', span) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8';
COMMENT ON FUNCTION idempotency_internal.outbox_milliseconds(interval) IS
	'Internal: an interval in milliseconds.';

/* Raises an error for the first invalid argument of outbox_subscribe. */
CREATE FUNCTION idempotency_internal.outbox_check_subscription(
	name text, topics text[], format text, max_in_flight integer,
	timeout interval, retry_schedule interval[], start text, ordered boolean,
	partitions integer, rate_limit numeric, batch integer, filter jsonpath,
	priority integer, keep_deliveries interval)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	missing text := CASE
		WHEN name IS NULL THEN 'name' WHEN topics IS NULL THEN 'topics'
		WHEN format IS NULL THEN 'format' WHEN ordered IS NULL THEN 'ordered'
		WHEN max_in_flight IS NULL THEN 'max_in_flight'
		WHEN timeout IS NULL THEN 'timeout' WHEN start IS NULL THEN 'start'
		WHEN retry_schedule IS NULL THEN 'retry_schedule'
		WHEN partitions IS NULL THEN 'partitions'
		WHEN batch IS NULL THEN 'batch'
		WHEN priority IS NULL THEN 'priority' END;
	wrong text := CASE
		WHEN name = '' THEN 'name must not be empty'
		WHEN octet_length(name) > 255 THEN 'name is too long'
		WHEN NOT idempotency_internal.outbox_topics_valid(topics)
			THEN 'topics must be a one-dimensional array of 1 to 100 patterns, each of 1 to 255 bytes'
		WHEN format NOT IN ('standard', 'cloudevents') THEN 'format must be standard or cloudevents'
		WHEN max_in_flight NOT BETWEEN 1 AND 256 THEN 'max_in_flight must be from 1 to 256'
		WHEN NOT timeout BETWEEN '1 ms' AND '1 h' THEN 'timeout must be from 1 ms to 1 h'
		WHEN NOT idempotency_internal.outbox_schedule_valid(retry_schedule)
			THEN 'retry_schedule must be a one-dimensional array of 1 to 100 waits, each from 0 to 366 days, and the first 0'
		WHEN start NOT IN ('latest', 'earliest') THEN 'start must be latest or earliest'
		WHEN partitions NOT BETWEEN 1 AND 64 THEN 'partitions must be from 1 to 64'
		WHEN rate_limit NOT BETWEEN 0.00001 AND 1000000
			THEN 'rate_limit must be from 0.00001 to 1000000'
		WHEN batch NOT BETWEEN 1 AND 1000 THEN 'batch must be from 1 to 1000'
		WHEN batch > 1 AND format <> 'cloudevents' THEN 'batch must be 1 unless the format is cloudevents'
		WHEN octet_length(filter::text) > 8192 THEN 'filter is too long'
		WHEN priority NOT BETWEEN 1 AND 100 THEN 'priority must be from 1 to 100'
		WHEN keep_deliveries NOT BETWEEN '1 min' AND '366 days'
			THEN 'keep_deliveries must be from 1 min to 366 days' END;
BEGIN
	IF missing IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			format('%s must not be null', missing));
	ELSIF wrong IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22023', wrong);
	ELSIF NOT idempotency_internal.outbox_filter_is_predicate(filter) THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'filter must be a predicate',
			'Compare a value, as in $.amount > 100, or use exists ($.items[*] ? (@.amount > 100)).');
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_check_subscription(
	text, text[], text, integer, interval, interval[], text, boolean,
	integer, numeric, integer, jsonpath, integer, interval) IS
	'Internal: checks arguments of outbox_subscribe.';

CREATE FUNCTION idempotency_internal.outbox_check_without_url(
	secret text, headers jsonb, format text, rate_limit numeric, batch integer,
	priority integer, keep_deliveries interval)
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	useless text := CASE WHEN secret IS NOT NULL THEN 'secret'
		WHEN headers IS NOT NULL THEN 'headers'
		WHEN format <> 'standard' THEN 'format'
		WHEN rate_limit IS NOT NULL THEN 'rate_limit'
		WHEN batch <> 1 THEN 'batch'
		WHEN priority <> 1 THEN 'priority'
		WHEN keep_deliveries IS NOT NULL THEN 'keep_deliveries' END;
BEGIN
	IF useless IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			format('%s must not be given without a url', useless),
			'The subscription has no URL: its events are read by outbox_fetch.');
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_check_without_url(
	text, jsonb, text, numeric, integer, integer, interval) IS
	'Internal: raises an error if a subscription without a URL has what only requests need.';

/*
 * Before the first subscription, no database is the home of the outbox.  An
 * event id that is returned before must stay valid, even if the transaction
 * that asked for it rolls back or is read-only.  So the first identity is not
 * random: it is made of values that identify this database.  If there are rows
 * of several homes, one is ours or will be; the relay sends nothing before.
 */
CREATE FUNCTION idempotency_internal.outbox_identity()
RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN coalesce(
		(SELECT min(h.identity::text) FROM idempotency_internal.outbox_home h),
		(SELECT encode(substr(sha256(convert_to(
				format('%s %s %s', s.system_identifier, d.oid,
					'idempotency_internal.outbox_home'::regclass::oid),
				'UTF8')), 1, 16), 'hex')
			FROM pg_control_system() s, pg_database d
			WHERE d.datname = current_database()))::uuid;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_identity() IS
	'Internal: the identity of this database in the ids of its events.';

CREATE FUNCTION outbox_event_id("position" bigint)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	created timestamptz;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	IF position IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'position must not be null');
	END IF;
	SELECT e.created_at INTO created FROM idempotency_internal.outbox_event e
	WHERE e.position = outbox_event_id.position;
	IF created IS NULL THEN
		RETURN NULL;
	END IF;
	RETURN format('msg_%s_%s_%s',
		replace(idempotency_internal.outbox_identity()::text, '-', ''), position,
		(extract(epoch FROM created) * 1000000)::bigint);
END
$$;
COMMENT ON FUNCTION outbox_event_id(bigint) IS
	'The id that receivers get with an event, as webhook-id, Idempotency-Key and ce-id, or as id in a batch; null if the event is no longer in the log.';

CREATE FUNCTION idempotency_internal.outbox_require_directory(file text)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF file IS NOT NULL
		AND current_setting('idempotency.webhook_credentials_directory') = ''
	THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			'idempotency.webhook_credentials_directory is not set',
			'A superuser can set it to the directory with the credentials of receivers.');
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_require_directory(text) IS
	'Internal: raises an error if a file is given and there is no directory for it.';

CREATE FUNCTION idempotency_internal.outbox_timeline()
RETURNS integer
LANGUAGE sql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN NOT pg_is_in_recovery() THEN
		('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()),
			8))::bit(32)::integer END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_timeline() IS
	'Internal: the timeline that this server writes to; null on a standby.';

CREATE FUNCTION outbox_subscribe(
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
	partitions     integer DEFAULT 1,
	rate_limit     numeric DEFAULT NULL,
	batch          integer DEFAULT 1,
	filter         jsonpath DEFAULT NULL,
	signing_key    text DEFAULT NULL,
	authorization_file text DEFAULT NULL,
	client_certificate text DEFAULT NULL,
	priority       integer DEFAULT 1,
	keep_deliveries interval DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	signing_secret  text := coalesce(secret, CASE WHEN url IS NOT NULL
		THEN @extschema@.outbox_secret_generate() END);
	finite_limit    numeric := nullif(rate_limit, 'infinity');
	given_filter    jsonpath :=
		CASE WHEN filter::text <> 'true' THEN filter END;
	given_keep      interval := nullif(keep_deliveries, '0');
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_subscribe()');
	PERFORM idempotency_internal.idempotency_require_preload('the outbox'::text);
	PERFORM idempotency_internal.outbox_check_subscription(name, topics, format,
		max_in_flight, timeout, retry_schedule, start, ordered, partitions,
		finite_limit, batch, given_filter, priority, given_keep);
	IF url IS NULL THEN
		PERFORM idempotency_internal.outbox_check_without_url(
			secret, headers, format, finite_limit, batch, priority, given_keep);
	ELSE
		PERFORM idempotency_internal.outbox_check_url(url);
		PERFORM idempotency_internal.outbox_check_secret(signing_secret);
		PERFORM idempotency_internal.outbox_check_headers(headers);
	END IF;
	PERFORM idempotency_internal.outbox_check_credentials(url, headers,
		signing_key, authorization_file, client_certificate);
	PERFORM idempotency_internal.outbox_require_directory(
		coalesce(authorization_file, client_certificate,
			substring(secret, '^file:'), substring(signing_key, '^file:')));

	PERFORM idempotency_internal.idempotency_record('outbox_subscribe', name,
		alters => true);
	-- If no database is the home of the outbox yet, this one becomes it.
	INSERT INTO idempotency_internal.outbox_home
		(identity, system_identifier, database, relation, timeline)
	SELECT idempotency_internal.outbox_identity(), s.system_identifier, d.oid,
		'idempotency_internal.outbox_home'::regclass,
		idempotency_internal.outbox_timeline()
	FROM pg_control_system() s, pg_database d
	WHERE d.datname = current_database()
		AND NOT EXISTS (SELECT FROM idempotency_internal.outbox_home)
	ON CONFLICT DO NOTHING;
	INSERT INTO idempotency_internal.outbox_subscription
		(name, url, topics, secret, headers, format, ordered,
		 max_in_flight, timeout, retry_schedule, partitions, rate_limit, batch,
		 filter, signing_key, authorization_file, client_certificate, priority,
		 keep_deliveries)
	VALUES (name, url, topics, signing_secret, headers, format, ordered,
		max_in_flight, timeout, retry_schedule, partitions, finite_limit,
		batch, given_filter, signing_key, authorization_file,
		client_certificate, priority, given_keep)
	ON CONFLICT DO NOTHING
	RETURNING id INTO subscription_id;
	IF subscription_id IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('42710',
			format('subscription "%s" already exists', name));
	END IF;

	IF start = 'latest' THEN
		INSERT INTO idempotency_internal.outbox_partition
			(subscription, number, position, stragglers, straggler_froms)
		SELECT
			subscription_id, number, p.position, p.stragglers, p.straggler_froms
		FROM idempotency_internal.outbox_start_position() p,
			generate_series(0, partitions - 1) number;
	ELSE
		-- No segment is retired now.
		LOCK TABLE idempotency_internal.outbox_partition IN ROW EXCLUSIVE MODE;
		INSERT INTO idempotency_internal.outbox_partition (
			subscription, number, position)
		SELECT
			subscription_id, number, idempotency_internal.outbox_retired_to()
		FROM generate_series(0, partitions - 1) number;
	END IF;
	PERFORM idempotency_internal.outbox_wake();
	RETURN signing_secret;
END
$$;
COMMENT ON FUNCTION outbox_subscribe(
	text, text, text[], text, jsonb, text, boolean, integer, interval,
	interval[], text, integer, numeric, integer, jsonpath, text, text, text,
	integer,
	interval) IS
	'Subscribes a URL to the events of some topics; returns the secret that signs the requests. Without a URL, the events are read by outbox_fetch.';

CREATE FUNCTION idempotency_internal.outbox_subscription_id(name text)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	found_id bigint;
BEGIN
	IF name IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'name must not be null');
	END IF;
	SELECT s.id INTO found_id FROM idempotency_internal.outbox_subscription s
	WHERE s.name = outbox_subscription_id.name;
	IF NOT FOUND THEN
		PERFORM idempotency_internal.idempotency_raise('42704',
			format('subscription "%s" does not exist', name));
	END IF;
	RETURN found_id;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_subscription_id(text) IS
	'Internal: finds a subscription by name, or raises an error.';

CREATE FUNCTION outbox_alter(
	name           text,
	url            text DEFAULT NULL,
	topics         text[] DEFAULT NULL,
	headers        jsonb DEFAULT NULL,
	format         text DEFAULT NULL,
	max_in_flight  integer DEFAULT NULL,
	timeout        interval DEFAULT NULL,
	retry_schedule interval[] DEFAULT NULL,
	rate_limit     numeric DEFAULT NULL,
	batch          integer DEFAULT NULL,
	filter         jsonpath DEFAULT NULL,
	authorization_file text DEFAULT NULL,
	client_certificate text DEFAULT NULL,
	priority       integer DEFAULT NULL,
	keep_deliveries interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	altered idempotency_internal.outbox_subscription;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_alter()');
	SELECT * INTO altered FROM idempotency_internal.outbox_subscription s
	WHERE s.id = idempotency_internal.outbox_subscription_id(outbox_alter.name)
	FOR NO KEY UPDATE;
	IF altered.url IS NULL AND url IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			format('subscription "%s" has no URL', name),
			'Its events are read by outbox_fetch. Make another subscription for the URL.');
	END IF;
	IF headers IS NOT NULL THEN
		altered.headers := headers;
	ELSIF altered.headers <> '{}'
		AND NOT idempotency_internal.outbox_same_origin(altered.url, url)
	THEN
		-- Headers may be credentials, which another host must not get.
		altered.headers := NULL;
		RAISE NOTICE 'the headers of subscription "%" are dropped', name
			USING DETAIL = 'The new URL has another scheme, host or port.',
				HINT = 'Pass the headers together with the url.';
	END IF;
	IF coalesce(altered.authorization_file, altered.client_certificate)
			IS NOT NULL
		AND authorization_file IS NULL AND client_certificate IS NULL
		AND NOT idempotency_internal.outbox_same_origin(altered.url, url)
	THEN
		altered.authorization_file := NULL;
		altered.client_certificate := NULL;
		RAISE NOTICE 'authorization_file and client_certificate of subscription "%" are dropped', name
			USING DETAIL = 'The new URL has another scheme, host or port.',
				HINT = 'Pass them together with the url.';
	END IF;
	altered.authorization_file :=
		nullif(coalesce(authorization_file, altered.authorization_file), '');
	altered.client_certificate :=
		nullif(coalesce(client_certificate, altered.client_certificate), '');
	altered.url := coalesce(url, altered.url);
	altered.topics := coalesce(topics, altered.topics);
	altered.format := coalesce(format, altered.format);
	altered.max_in_flight := coalesce(max_in_flight, altered.max_in_flight);
	altered.timeout := coalesce(timeout, altered.timeout);
	altered.retry_schedule := coalesce(retry_schedule, altered.retry_schedule);
	altered.rate_limit :=
		nullif(coalesce(rate_limit, altered.rate_limit), 'infinity');
	altered.batch := coalesce(batch, altered.batch);
	altered.filter := coalesce(filter, altered.filter);
	IF altered.filter::text = 'true' THEN
		altered.filter := NULL;
	END IF;
	altered.priority := coalesce(priority, altered.priority);
	altered.keep_deliveries :=
		nullif(coalesce(keep_deliveries, altered.keep_deliveries), '0');
	PERFORM idempotency_internal.outbox_check_subscription(
		altered.name, altered.topics, altered.format, altered.max_in_flight,
		altered.timeout, altered.retry_schedule, 'latest'::text,
		altered.ordered, altered.partitions, altered.rate_limit,
		altered.batch, altered.filter, altered.priority,
		altered.keep_deliveries);
	IF altered.url IS NULL THEN
		PERFORM idempotency_internal.outbox_check_without_url(altered.secret,
			altered.headers, altered.format, altered.rate_limit, altered.batch,
			altered.priority, altered.keep_deliveries);
	ELSE
		-- Settings may refuse the URL since; all else can be changed.
		IF url IS NOT NULL THEN
			PERFORM idempotency_internal.outbox_check_url(url);
		END IF;
		PERFORM idempotency_internal.outbox_check_headers(altered.headers);
	END IF;
	PERFORM idempotency_internal.outbox_check_credentials(
		altered.url, altered.headers, altered.signing_key,
		altered.authorization_file, altered.client_certificate);
	PERFORM idempotency_internal.outbox_require_directory(
		coalesce(nullif(authorization_file, ''), nullif(client_certificate, '')));
	PERFORM idempotency_internal.idempotency_record('outbox_alter', name,
		alters => true);
	UPDATE idempotency_internal.outbox_subscription s
	SET url = altered.url, topics = altered.topics, headers = altered.headers,
		format = altered.format, max_in_flight = altered.max_in_flight,
		timeout = altered.timeout,
		retry_schedule = altered.retry_schedule,
		rate_limit = altered.rate_limit, batch = altered.batch,
		filter = altered.filter,
		authorization_file = altered.authorization_file,
		client_certificate = altered.client_certificate,
		priority = altered.priority,
		keep_deliveries = altered.keep_deliveries,
		version = s.version + 1
	WHERE s.id = altered.id;
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_alter(
	text, text, text[], jsonb, text, integer, interval, interval[],
	numeric, integer, jsonpath, text, text, integer, interval) IS
	'Changes those properties of a subscription whose parameters are not null; its position and its waiting events stay.';

CREATE FUNCTION outbox_unsubscribe(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_unsubscribe()');
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	PERFORM idempotency_internal.idempotency_record('outbox_unsubscribe', name,
		alters => true);
	DELETE FROM idempotency_internal.outbox_subscription
	WHERE id = subscription_id;
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_unsubscribe(text) IS
	'Ends a subscription and drops its undelivered events, dead letters included.';

CREATE FUNCTION outbox_pause(name text, reason text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_pause()');
	IF octet_length(reason) > 1000 THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'reason is too long', 'It can have 1000 bytes.');
	END IF;
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	PERFORM idempotency_internal.idempotency_record('outbox_pause', name,
		alters => true);
	UPDATE idempotency_internal.outbox_subscription s
	SET state = 'paused', reason = outbox_pause.reason
	WHERE id = subscription_id;
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_pause(text, text) IS
	'Stops sending to a subscription until outbox_resume; requests in flight are finished.';

CREATE FUNCTION outbox_resume(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_resume()');
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	PERFORM idempotency_internal.idempotency_record('outbox_resume', name,
		alters => true);
	UPDATE idempotency_internal.outbox_subscription s
	SET state = 'active', reason = NULL, version = version + 1
	WHERE id = subscription_id;
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_resume(text) IS
	'Continues a subscription that was paused, or disabled by an answer 410; one that is stuck is tried again at once.';

CREATE FUNCTION idempotency_internal.outbox_is_at_home()
RETURNS boolean
LANGUAGE sql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(bool_and(
		h.relation = h.tableoid
		AND h.system_identifier = s.system_identifier
		AND h.database =
			(SELECT oid FROM pg_database WHERE datname = current_database())),
		false)
	FROM idempotency_internal.outbox_home h, pg_control_system() s
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_is_at_home() IS
	'Internal: whether this database, and no copy of it, may send the events.';

/*
 * The update of the subscription changes nothing.  It makes other sessions that
 * change or end the subscription wait for this transaction; one of them with an
 * older snapshot, which would leave the new delivery behind, fails.
 */
CREATE FUNCTION outbox_ping(name text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	found_state     text;
	ping            bigint;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_ping()');
	PERFORM idempotency_internal.idempotency_require_preload('the outbox'::text);
	UPDATE idempotency_internal.outbox_subscription s SET state = s.state
	WHERE s.id = idempotency_internal.outbox_subscription_id(outbox_ping.name);
	-- It may have been ended meanwhile.
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	SELECT CASE WHEN idempotency_internal.outbox_is_at_home() THEN s.state
		ELSE 'held' END INTO found_state
	FROM idempotency_internal.outbox_subscription s
	WHERE s.id = subscription_id;
	IF found_state IN ('paused', 'disabled', 'held') THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			format('subscription "%s" is %s', name, found_state),
			CASE found_state WHEN 'held' THEN 'See outbox_adopt().'
				ELSE 'See outbox_resume().' END);
	END IF;
	ping := idempotency_internal.outbox_enqueue_reserved('outbox.ping',
		jsonb_build_object('subscription', name));
	PERFORM idempotency_internal.idempotency_record('outbox_ping', name,
		jsonb_build_object('position', ping));
	INSERT INTO idempotency_internal.outbox_delivery
		(subscription, position, partition, state, blocks_key, attempts, due_at,
		 created_at, topic, payload)
	SELECT s.id, e.position,
		idempotency_internal.outbox_partition_number(
			NULL, e.position, s.partitions),
		'waiting', false, 0, clock_timestamp(), e.created_at, e.topic, e.payload
	FROM idempotency_internal.outbox_subscription s,
		idempotency_internal.outbox_event e
	WHERE s.id = subscription_id AND e.position = ping;
	PERFORM idempotency_internal.outbox_wake();
	RETURN ping;
END
$$;
COMMENT ON FUNCTION outbox_ping(text) IS
	'Sends a test event to one subscription, whatever its topics are; returns the position of the event.';

CREATE FUNCTION idempotency_internal.outbox_check_positions(positions bigint[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF array_ndims(positions) > 1 THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'positions must be a one-dimensional array');
	ELSIF array_position(positions, NULL) IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'none of positions must be null');
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_check_positions(bigint[]) IS
	'Internal: raises an error unless this is a list of positions.';

/*
 * A dead letter may be an event that no constraint has kept out of the log.
 * Other errors, such as out of memory, say nothing about the event.
 */
CREATE FUNCTION idempotency_internal.outbox_is_sendable(
	event idempotency_internal.outbox_delivery)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN isfinite(event.created_at)
		AND idempotency_internal.outbox_check_event(
			event.topic, 'null', event.key, event.type, event.headers, NULL);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_is_sendable(
	idempotency_internal.outbox_delivery) IS
	'Internal: could an event be delivered?';

CREATE FUNCTION idempotency_internal.outbox_handled(
	events bigint, positions bigint[])
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_build_object('events', events, 'positions', positions[:100])
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_handled(bigint, bigint[]) IS
	'Internal: what the audit says of a call that handles events at these positions, or all.';

CREATE FUNCTION idempotency_internal.outbox_dead_letters(
	subscription bigint, positions bigint[])
RETURNS SETOF idempotency_internal.outbox_delivery
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
	IF positions IS NULL THEN
		RETURN QUERY SELECT d.* FROM idempotency_internal.outbox_delivery d
			WHERE d.subscription = outbox_dead_letters.subscription
				AND d.state = 'dead';
	ELSE
		RETURN QUERY SELECT e.*
			FROM (SELECT DISTINCT p FROM unnest(positions) p) wanted(at)
			CROSS JOIN LATERAL (
				SELECT * FROM idempotency_internal.outbox_delivery d
				WHERE d.subscription = outbox_dead_letters.subscription
					AND d.position = wanted.at AND d.state LIKE 'dead'
				OFFSET 0) e;
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_dead_letters(
	bigint, bigint[]) IS
	'Internal: the dead letters of a subscription, all of them or those at the given positions.';

/*
 * An event that has expired is sent all the same: somebody has decided that.
 */
CREATE FUNCTION outbox_redrive(name text, positions bigint[] DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	chosen          record;
	redriven        bigint := bigint '0';
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_redrive()');
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	PERFORM idempotency_internal.outbox_check_positions(positions);
	-- A new version of the row makes the relay look for events that are due.
	UPDATE idempotency_internal.outbox_subscription s SET state = s.state
	WHERE s.id = subscription_id;
	-- The relay is not settling.
	PERFORM FROM idempotency_internal.outbox_partition
	WHERE subscription = subscription_id FOR UPDATE;

	-- One event of a key waits, and the others are parked.
	FOR chosen IN
		SELECT d.position, s.ordered AND d.key IS NOT NULL AS in_order,
			row_number() OVER (PARTITION BY d.key ORDER BY d.position) > 1
			OR (SELECT b.position FROM idempotency_internal.outbox_delivery b
				WHERE b.subscription = s.id AND b.key = d.key AND b.blocks_key
				LIMIT 1) IS NOT NULL AS behind
		FROM idempotency_internal.outbox_dead_letters(
				subscription_id, positions) d,
			idempotency_internal.outbox_subscription s
		WHERE s.id = subscription_id
			AND idempotency_internal.outbox_is_sendable(d)
	LOOP
		UPDATE idempotency_internal.outbox_delivery d
		SET state = CASE WHEN chosen.in_order AND chosen.behind
				THEN 'parked' ELSE 'waiting' END,
			blocks_key = chosen.in_order,
			attempts = 0,
			expires_at = NULL,
			due_at = CASE WHEN NOT (chosen.in_order AND chosen.behind)
				THEN clock_timestamp() END
		WHERE d.subscription = subscription_id
			AND d.position = chosen.position AND d.state LIKE 'dead';
		redriven := redriven + FOUND::integer;
	END LOOP;
	PERFORM idempotency_internal.idempotency_record('outbox_redrive', name,
		idempotency_internal.outbox_handled(redriven, positions));
	PERFORM idempotency_internal.outbox_wake();
	RETURN redriven;
END
$$;
COMMENT ON FUNCTION outbox_redrive(text, bigint[]) IS
	'Sends dead letters again, all of them or those at the given positions, in order per key; returns their number.';

/*
 * A delivery that was not tried yet waits for its own time, not for a retry.
 * The column attempts does not tell whether it was tried, since probes of a
 * failing endpoint do not count.  The subscription is locked before its
 * partitions, as in outbox_unsubscribe.
 */
CREATE FUNCTION outbox_retry(name text, positions bigint[] DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	at              bigint;
	due             bigint := bigint '0';
	named           CONSTANT bigint[] := positions;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_retry()');
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	PERFORM idempotency_internal.outbox_check_positions(positions);
	PERFORM FROM idempotency_internal.outbox_subscription s
	WHERE s.id = subscription_id FOR NO KEY UPDATE;
	IF current_setting('idempotency.outbox_events')::boolean THEN
		PERFORM idempotency_internal.outbox_announce('outbox.failing', s.name,
			'{"failing": false, "reason": "outbox_retry"}')
		FROM idempotency_internal.outbox_subscription s
		WHERE s.id = subscription_id AND s.failing_since IS NOT NULL
			AND idempotency_internal.outbox_is_announced(s.topics);
	END IF;
	UPDATE idempotency_internal.outbox_subscription s
	SET failing_since = NULL, version = s.version + 1
	WHERE s.id = subscription_id;
	-- The relay is not settling.
	PERFORM FROM idempotency_internal.outbox_partition
	WHERE subscription = subscription_id FOR UPDATE;
	IF positions IS NULL THEN
		-- By the index on last_at, which leaves out those that were not tried.
		positions := ARRAY(
			SELECT d.position FROM idempotency_internal.outbox_partition p
			CROSS JOIN LATERAL (
				SELECT e.position FROM idempotency_internal.outbox_delivery e
				WHERE e.subscription = subscription_id
					AND e.partition = p.number AND e.state = 'waiting'
					AND e.last_at > '-infinity'
				OFFSET 0) d
			WHERE p.subscription = subscription_id);
	END IF;
	-- The attempt comes in addition: it does not use up the schedule.
	FOR at IN SELECT DISTINCT p FROM unnest(positions) p LOOP
		UPDATE idempotency_internal.outbox_delivery d
		SET due_at = least(d.due_at, clock_timestamp()),
			attempts = d.attempts -
				(d.due_at > clock_timestamp() AND d.attempts > 0)::integer
		WHERE d.subscription = subscription_id AND d.position = at
			AND d.state LIKE 'waiting' AND d.last_at IS NOT NULL;
		due := due + FOUND::integer;
	END LOOP;
	PERFORM idempotency_internal.idempotency_record('outbox_retry', name,
		idempotency_internal.outbox_handled(due, named));
	PERFORM idempotency_internal.outbox_wake();
	RETURN due;
END
$$;
COMMENT ON FUNCTION outbox_retry(text, bigint[]) IS
	'Sends events that wait for a retry now, all of them or those at the given positions, in addition to the schedule; returns their number.';

CREATE FUNCTION outbox_discard(name text, positions bigint[] DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	at              bigint;
	discarded       bigint := bigint '0';
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_discard()');
	PERFORM idempotency_internal.outbox_check_positions(positions);
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	IF positions IS NULL THEN
		DELETE FROM idempotency_internal.outbox_delivery d
		WHERE d.subscription = subscription_id AND d.state = 'dead';
		GET DIAGNOSTICS discarded = ROW_COUNT;
	END IF;
	FOR at IN SELECT DISTINCT p FROM unnest(positions) p ORDER BY p LOOP
		DELETE FROM idempotency_internal.outbox_delivery d
		WHERE d.subscription = subscription_id AND d.position = at
			AND d.state LIKE 'dead';
		discarded := discarded + FOUND::integer;
	END LOOP;
	PERFORM idempotency_internal.idempotency_record('outbox_discard', name,
		idempotency_internal.outbox_handled(discarded, positions));
	RETURN discarded;
END
$$;
COMMENT ON FUNCTION outbox_discard(text, bigint[]) IS
	'Drops dead letters, all of them or those at the given positions; returns their number.';

CREATE FUNCTION idempotency_internal.outbox_erase_answers(
	keys text[], topics text[])
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE idempotency_internal.outbox_attempt a SET answer = NULL
	FROM idempotency_internal.outbox_delivery d
	WHERE d.key = ANY (keys)
		AND @extschema@.outbox_topic_matches(topics, d.topic)
		AND a.subscription = d.subscription AND a.position = d.position
		AND a.answer IS NOT NULL;
	UPDATE idempotency_internal.outbox_history_0 h SET answer = NULL
	WHERE h.key = ANY (keys) AND h.answer IS NOT NULL
		AND @extschema@.outbox_topic_matches(topics, h.topic);
	UPDATE idempotency_internal.outbox_history_1 h SET answer = NULL
	WHERE h.key = ANY (keys) AND h.answer IS NOT NULL
		AND @extschema@.outbox_topic_matches(topics, h.topic);
	UPDATE idempotency_internal.outbox_history_2 h SET answer = NULL
	WHERE h.key = ANY (keys) AND h.answer IS NOT NULL
		AND @extschema@.outbox_topic_matches(topics, h.topic);
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_erase_answers(text[], text[]) IS
	'Internal: removes what endpoints have answered to the events of keys.';

/*
 * The event about each key, and the record in the audit.
 */
CREATE FUNCTION idempotency_internal.outbox_erased(
	keys text[], topics text[], events jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	erased record;
BEGIN
	FOR erased IN
		SELECT k.key, coalesce((events ->> k.key)::bigint, 0) AS events
		FROM (SELECT DISTINCT unnest(keys) COLLATE "C") k(key) ORDER BY k.key
	LOOP
		IF erased.events > 0 THEN
			PERFORM idempotency_internal.outbox_enqueue_reserved(
				'outbox.erased',
				jsonb_build_object('key', erased.key, 'topics', topics,
					'events', erased.events, 'by', session_user), erased.key);
		END IF;
		PERFORM idempotency_internal.idempotency_record('outbox_erase',
			erased.key,
			jsonb_build_object('topics', topics, 'events', erased.events));
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_erased(text[], text[], jsonb) IS
	'Internal: tells receivers and the audit how many events of each key were erased.';

/*
 * Events keep their rows: only payload, headers and what endpoints have
 * answered are replaced, so positions, order and the state of deliveries stay
 * as they are.  A relay copies events that fail from the log.  A copy that is
 * being made meanwhile may be of the row as it was, so the log is written
 * first; the lock then waits for these copies, and later ones are of the row as
 * it is now.  A new version of a subscription makes its relays drop the events
 * that they have in memory and have not sent.
 *
 * The whole log is read, whatever the number of keys: an index on keys would
 * cost each event that is enqueued.
 */
CREATE FUNCTION idempotency_internal.outbox_erase_keys(
	keys text[], topics text[], max_events integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	positions     bigint[];
	position_keys text[];
	erased        jsonb;
BEGIN
	IF coalesce(array_ndims(keys), 0) <> 1 OR cardinality(keys) > 1000 THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'keys must be a one-dimensional array of 1 to 1000 keys');
	ELSIF array_position(keys, NULL) IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'a key must not be null');
	ELSIF NOT idempotency_internal.outbox_topics_valid(topics) THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'topics must be a one-dimensional array of 1 to 100 patterns, each of 1 to 255 bytes');
	ELSIF max_events NOT BETWEEN 1 AND 100000 THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'max_events must be from 1 to 100000');
	ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
		PERFORM idempotency_internal.idempotency_raise('25001',
			'outbox_erase() must run in a transaction that is READ COMMITTED');
	END IF;
	SELECT coalesce(array_agg(w.position ORDER BY w.position), '{}'),
		array_agg(w.key ORDER BY w.position)
	INTO positions, position_keys
	FROM (SELECT e.position, e.key FROM idempotency_internal.outbox_event e
		WHERE e.key = ANY (keys)
			AND (e.payload <> 'null' OR e.headers IS NOT NULL)
			AND @extschema@.outbox_topic_matches(topics, e.topic)
			AND e.topic <> 'outbox.erased'
		ORDER BY e.position LIMIT max_events) w;
	UPDATE idempotency_internal.outbox_log_0 e
	SET payload = 'null', headers = NULL WHERE e.position = ANY (positions);
	UPDATE idempotency_internal.outbox_log_1 e
	SET payload = 'null', headers = NULL WHERE e.position = ANY (positions);
	UPDATE idempotency_internal.outbox_log_2 e
	SET payload = 'null', headers = NULL WHERE e.position = ANY (positions);
	UPDATE idempotency_internal.outbox_subscription s
	SET version = s.version + 1
	WHERE s.url IS NOT NULL
		AND (EXISTS (SELECT FROM idempotency_internal.outbox_reached p
				WHERE p.subscription = s.id
					AND (p.position < positions[cardinality(positions)]
						OR p.stragglers <> '{}'))
			OR EXISTS (SELECT FROM idempotency_internal.outbox_delivery d
				WHERE d.subscription = s.id AND d.key = ANY (keys)
					AND d.state <> 'dead'));
	PERFORM idempotency_internal.outbox_wake();

	LOCK TABLE idempotency_internal.outbox_delivery IN SHARE ROW EXCLUSIVE MODE;
	WITH written AS (
		UPDATE idempotency_internal.outbox_delivery d
		SET payload = 'null', headers = NULL
		WHERE d.key = ANY (keys)
			AND (d.payload <> 'null' OR d.headers IS NOT NULL)
			AND @extschema@.outbox_topic_matches(topics, d.topic)
			AND d.topic <> 'outbox.erased'
		RETURNING d.position, d.key),
	counted AS (
		SELECT e.key, count(*) AS events
		FROM (SELECT u.at, u.key
			FROM unnest(positions, position_keys) u(at, key)
			UNION SELECT w.position, w.key FROM written w) e
		GROUP BY e.key)
	SELECT jsonb_object_agg(c.key, c.events) INTO erased FROM counted c;
	PERFORM idempotency_internal.outbox_erase_answers(keys, topics);
	PERFORM idempotency_internal.outbox_erased(keys, topics, erased);
	RETURN (SELECT coalesce(sum(e.value::bigint), 0)::bigint
		FROM jsonb_each_text(erased) e);
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_erase_keys(
	text[], text[], integer) IS
	'Internal: outbox_erase, without checks for null.';

CREATE FUNCTION idempotency_internal.outbox_erase_check(
	missing text, topics text[], max_events integer)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_erase()');
	missing := coalesce(missing, CASE WHEN topics IS NULL THEN 'topics'
		WHEN max_events IS NULL THEN 'max_events' END);
	IF missing IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			format('%s must not be null', missing));
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_erase_check(
	text, text[], integer) IS
	'Internal: raises an error unless events may be erased, and no argument is null.';

CREATE FUNCTION outbox_erase(
	key        text,
	topics     text[] DEFAULT '{*}',
	max_events integer DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.outbox_erase_check(
		CASE WHEN key IS NULL THEN 'key' END, topics, max_events);
	RETURN idempotency_internal.outbox_erase_keys(ARRAY[key], topics,
		max_events);
END
$$;
COMMENT ON FUNCTION outbox_erase(text, text[], integer) IS
	'Erases the payloads and headers of the events of a key, and what endpoints have answered; returns the number of events. For administrators.';

CREATE FUNCTION outbox_erase(
	keys       text[],
	topics     text[] DEFAULT '{*}',
	max_events integer DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.outbox_erase_check(
		CASE WHEN keys IS NULL THEN 'keys' END, topics, max_events);
	RETURN idempotency_internal.outbox_erase_keys(keys, topics, max_events);
END
$$;
COMMENT ON FUNCTION outbox_erase(text[], text[], integer) IS
	'Erases the same of several keys, and reads the log once.';

CREATE FUNCTION outbox_acknowledge_lost(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_acknowledge_lost()');
	UPDATE idempotency_internal.outbox_partition p SET lost = 0
	WHERE p.subscription = idempotency_internal.outbox_subscription_id(
			outbox_acknowledge_lost.name)
		AND p.lost > 0;
	PERFORM idempotency_internal.idempotency_record('outbox_acknowledge_lost',
		name);
END
$$;
COMMENT ON FUNCTION outbox_acknowledge_lost(text) IS
	'Confirms that the lost events of a subscription are known; idempotency_status does not report them any more.';

CREATE FUNCTION outbox_replay(
	name          text,
	from_position bigint DEFAULT NULL,
	since         timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	retired_to      bigint;
	first           bigint;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_replay()');
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	IF (from_position IS NULL) = (since IS NULL) THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'exactly one of from_position and since must be given');
	END IF;
	-- Wait for a relay that settles.
	PERFORM FROM idempotency_internal.outbox_partition
	WHERE subscription = subscription_id FOR UPDATE;
	-- No segment is retired now.
	LOCK TABLE idempotency_internal.outbox_partition IN ROW EXCLUSIVE MODE;
	retired_to := idempotency_internal.outbox_retired_to();
	SELECT e.position INTO first FROM idempotency_internal.outbox_event e
	WHERE e.position >= coalesce(from_position, 0) AND e.position > retired_to
		AND e.created_at >= coalesce(since, '-infinity')
	ORDER BY e.position LIMIT 1;
	UPDATE idempotency_internal.outbox_partition p
	SET position = first - 1, stragglers = r.stragglers,
		straggler_froms = r.straggler_froms, head = NULL,
		token = NULL, leased_until = NULL, lapsed_to = r.position
	FROM idempotency_internal.outbox_reached r
	WHERE p.subscription = subscription_id AND r.position >= first
		AND r.subscription = p.subscription AND r.number = p.number;
	IF NOT FOUND THEN
		first := NULL;
	END IF;
	PERFORM idempotency_internal.idempotency_record('outbox_replay', name,
		jsonb_build_object('from_position', from_position, 'since', since,
			'position', first));
	IF first IS NULL THEN
		RETURN NULL;
	END IF;
	-- Events that are read again are not dead letters any more.
	DELETE FROM idempotency_internal.outbox_delivery
	WHERE subscription = subscription_id AND state = 'dead' AND position >= first;
	PERFORM idempotency_internal.outbox_wake();
	RETURN first;
END
$$;
COMMENT ON FUNCTION outbox_replay(text, bigint, timestamptz) IS
	'Makes a subscription read the log again, from a position or a time on; returns the first position, or null if nothing is read again.';

CREATE FUNCTION outbox_rotate_secret(
	name    text,
	overlap interval DEFAULT '24 h',
	secret  text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	new_secret      text :=
		coalesce(secret, @extschema@.outbox_secret_generate());
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_rotate_secret()');
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	IF overlap IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'overlap must not be null');
	ELSIF NOT overlap BETWEEN '0' AND '366 days' THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'overlap must be from 0 to 366 days');
	END IF;
	PERFORM idempotency_internal.outbox_check_secret(new_secret);
	PERFORM idempotency_internal.outbox_require_directory(
		substring(new_secret, '^file:'));
	IF EXISTS (SELECT FROM idempotency_internal.outbox_subscription s
		WHERE s.id = subscription_id AND s.url IS NULL)
	THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			format('subscription "%s" has no URL', name),
			'Its events are read by outbox_fetch and are not signed.');
	END IF;
	PERFORM idempotency_internal.idempotency_record('outbox_rotate_secret', name,
		alters => true);
	UPDATE idempotency_internal.outbox_subscription s
	SET old_secret = s.secret, old_until = clock_timestamp() + overlap,
		secret = new_secret, version = s.version + 1
	WHERE id = subscription_id;
	PERFORM idempotency_internal.outbox_wake();
	RETURN new_secret;
END
$$;
COMMENT ON FUNCTION outbox_rotate_secret(text, interval, text) IS
	'Sets a new secret for a subscription, and signs with the old one too until the overlap is over; returns the new secret.';

CREATE FUNCTION outbox_rotate_key(
	name        text,
	overlap     interval DEFAULT '24 h',
	signing_key text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
	new_key         text :=
		nullif(coalesce(signing_key, @extschema@.outbox_key_generate()), '');
	public_key      text;
	url             text;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_rotate_key()');
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	IF overlap IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'overlap must not be null');
	ELSIF NOT overlap BETWEEN '0' AND '366 days' THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'overlap must be from 0 to 366 days');
	END IF;
	public_key := idempotency_internal.outbox_derive_public_key(new_key);
	PERFORM idempotency_internal.outbox_require_directory(
		substring(new_key, '^file:'));
	SELECT s.url INTO url FROM idempotency_internal.outbox_subscription s
	WHERE s.id = subscription_id;
	IF url IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			format('subscription "%s" has no URL', name),
			'Its events are read by outbox_fetch and are not signed.');
	END IF;
	public_key := coalesce(public_key,
		idempotency_internal.outbox_read_public_key(url, new_key));
	PERFORM idempotency_internal.idempotency_record('outbox_rotate_key', name,
		alters => true);
	UPDATE idempotency_internal.outbox_subscription s
	SET old_signing_key = s.signing_key,
		old_key_until = CASE WHEN s.signing_key IS NOT NULL
			THEN clock_timestamp() + overlap END,
		signing_key = new_key, version = s.version + 1
	WHERE id = subscription_id;
	PERFORM idempotency_internal.outbox_wake();
	RETURN public_key;
END
$$;
COMMENT ON FUNCTION outbox_rotate_key(text, interval, text) IS
	'Signs the requests of a subscription with a new Ed25519 key, besides its secret; the old one signs, too, for as long as overlap. Returns the new public key.';

CREATE FUNCTION outbox_public_key(name text)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	RETURN (SELECT coalesce(
			idempotency_internal.outbox_derive_public_key(s.signing_key),
			idempotency_internal.outbox_read_public_key(s.url, s.signing_key))
		FROM idempotency_internal.outbox_subscription s
		WHERE s.id = idempotency_internal.outbox_subscription_id(
			outbox_public_key.name));
END
$$;
COMMENT ON FUNCTION outbox_public_key(text) IS
	'The public key by which a receiver verifies the v1a signatures of a subscription; null if it has no signing key.';

CREATE FUNCTION outbox_adopt(keep_identity boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	adopted uuid;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_adopt()');
	IF keep_identity IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'keep_identity must not be null');
	END IF;
	SELECT h.identity INTO adopted
	FROM idempotency_internal.outbox_home h, pg_control_system() s
	ORDER BY h.system_identifier = s.system_identifier, h.created_at LIMIT 1;
	DELETE FROM idempotency_internal.outbox_home;
	INSERT INTO idempotency_internal.outbox_home
		(identity, system_identifier, database, relation, timeline)
	SELECT
		coalesce(CASE WHEN keep_identity THEN adopted END, gen_random_uuid()),
		s.system_identifier, d.oid, 'idempotency_internal.outbox_home'::regclass,
		idempotency_internal.outbox_timeline()
	FROM pg_control_system() s, pg_database d
	WHERE d.datname = current_database()
	ON CONFLICT DO NOTHING;
	PERFORM idempotency_internal.idempotency_record('outbox_adopt',
		details => jsonb_build_object('keep_identity', keep_identity));
	-- A token of the original must not acknowledge anything here.
	UPDATE idempotency_internal.outbox_partition
	SET token = NULL, leased_until = NULL WHERE token IS NOT NULL;
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_adopt(boolean) IS
	'Lets this database, a restored copy, send its events, under a new identity or under that of the original.';

/* ---- topics ---- */

CREATE FUNCTION idempotency_internal.outbox_check_schema(schema jsonb)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_schema(jsonb) IS
	'Internal: raises an error unless payloads can be checked against this schema.';

CREATE FUNCTION idempotency_internal.outbox_check_topic(
	name text, schema jsonb, description text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	wrong text := CASE
		WHEN name = '' THEN 'name must not be empty'
		WHEN octet_length(name) > 255 THEN 'name is too long'
		WHEN jsonb_typeof(schema) NOT IN ('object', 'boolean')
			THEN 'schema must be an object or a boolean'
		WHEN octet_length(schema::text) > 262144 THEN 'schema is too long'
		WHEN octet_length(description) > 1000 THEN 'description is too long' END;
BEGIN
	IF name IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'name must not be null');
	ELSIF wrong IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22023', wrong);
	ELSIF strpos(name, '*') > 0 THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'name must not contain *',
			'Patterns are for subscriptions. Register each topic by its name.');
	ELSIF starts_with(name, 'outbox.') THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'topic is reserved',
			'Topics that begin with "outbox." are for events of the extension itself.');
	END IF;
	PERFORM idempotency_internal.outbox_check_schema(schema);
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_check_topic(
	text, jsonb, text) IS
	'Internal: checks the arguments of outbox_topic.';

/*
 * A topic that is registered again as it is keeps its row, so that no session
 * has to read the table again.
 */
CREATE FUNCTION outbox_topic(
	name        text,
	schema      jsonb DEFAULT NULL,
	description text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_topic()');
	PERFORM idempotency_internal.outbox_check_topic(name, schema, description);
	IF (SELECT count(*) >= 10000
			AND NOT coalesce(bool_or(t.topic = name), false)
		FROM idempotency_internal.outbox_registered_topic t)
	THEN
		PERFORM idempotency_internal.idempotency_raise('54000',
			'too many topics are registered',
			'There can be 10000. See outbox_drop_topic().');
	END IF;
	INSERT INTO idempotency_internal.outbox_registered_topic AS t
		(topic, schema, description)
	VALUES (name, outbox_topic.schema, outbox_topic.description)
	ON CONFLICT (topic) DO UPDATE
	SET schema = excluded.schema, description = excluded.description,
		changed_at = clock_timestamp()
	WHERE t.schema IS DISTINCT FROM excluded.schema
		OR t.description IS DISTINCT FROM excluded.description;
	IF FOUND THEN
		PERFORM idempotency_internal.idempotency_record('outbox_topic', name,
			jsonb_build_object('schema', schema IS NOT NULL,
				'description', description));
	END IF;
END
$$;
COMMENT ON FUNCTION outbox_topic(text, jsonb, text) IS
	'Registers a topic, or replaces what was registered: from now on, outbox_enqueue refuses payloads that do not match the JSON schema. Needs the extension pg_jsonschema, unless schema is null.';

CREATE FUNCTION outbox_drop_topic(name text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_drop_topic()');
	IF name IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'name must not be null');
	END IF;
	DELETE FROM idempotency_internal.outbox_registered_topic t
	WHERE t.topic = name;
	IF NOT FOUND THEN
		RETURN false;
	END IF;
	PERFORM idempotency_internal.idempotency_record('outbox_drop_topic', name);
	RETURN true;
END
$$;
COMMENT ON FUNCTION outbox_drop_topic(text) IS
	'Removes a topic and its schema from outbox_topics; false if it was not registered. Its events remain, and new ones are not checked.';

CREATE VIEW outbox_topics AS
	SELECT topic, schema, description, created_at, changed_at
	FROM idempotency_internal.outbox_registered_topic;
COMMENT ON VIEW outbox_topics IS
	'The topics that outbox_topic has registered, with the JSON schema of their payloads.';

CREATE FUNCTION outbox_fetch(
	name       text,
	max_events integer DEFAULT 100,
	lease      interval DEFAULT '30 s',
	OUT token bigint, OUT "position" bigint, OUT id text, OUT topic text,
	OUT key text, OUT type text, OUT payload jsonb, OUT headers jsonb,
	OUT created_at timestamptz, OUT attempt integer)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000 ROWS 100
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_fetch(text, integer, interval) IS
	'Reads the next events of a subscription without a URL: a batch that is this reader''s until outbox_ack, or until the lease ends.';

CREATE FUNCTION outbox_ack(
	name   text,
	token  bigint,
	failed bigint[] DEFAULT '{}',
	error  text DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_ack(text, bigint, bigint[], text) IS
	'Acknowledges a batch of outbox_fetch; the events at the positions in failed are read again by the retry schedule. False if the batch was acknowledged before.';

CREATE PROCEDURE outbox_wait(name text, timeout interval DEFAULT '20 s')
LANGUAGE C SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS 'MODULE_PATHNAME';
COMMENT ON PROCEDURE outbox_wait(text, interval) IS
	'Sleeps until a subscription without a URL has events to fetch, or until the timeout.';

CREATE FUNCTION idempotency_internal.outbox_flights(
	OUT subscription bigint, OUT in_flight integer)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_flights() IS
	'Internal: number of requests in flight, for each subscription of a relay.';

CREATE FUNCTION idempotency_internal.outbox_rate_limited()
RETURNS SETOF bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_rate_limited() IS
	'Internal: subscriptions whose rate_limit makes events wait now.';

CREATE FUNCTION idempotency_internal.outbox_turns(
	OUT relay integer, OUT since timestamptz, OUT subscription bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_turns() IS
	'Internal: since when the loop of each relay is in its present turn, and at which subscription; no row for one that rests.';

CREATE FUNCTION idempotency_internal.outbox_unreplicated_since()
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_unreplicated_since() IS
	'Internal: since when relays wait for a synchronous standby; null: they do not.';

CREATE FUNCTION idempotency_internal.outbox_troubles(
	OUT subscription bigint, OUT trouble text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_troubles() IS
	'Internal: what keeps a relay from serving a subscription, or some of its partitions.';

CREATE FUNCTION idempotency_internal.outbox_shares(
	OUT subscription bigint, OUT share double precision)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_shares() IS
	'Internal: the part of its places that a relay lets a subscription use now, for each one with requests in flight.';

CREATE VIEW outbox_dead WITH (security_barrier) AS
SELECT s.name AS subscription, d.position, d.topic, d.key, d.type,
	d.attempts, d.last_at, d.last_status, d.last_error, d.created_at
FROM idempotency_internal.outbox_delivery d
JOIN idempotency_internal.outbox_subscription s ON s.id = d.subscription
WHERE d.state = 'dead';
COMMENT ON VIEW outbox_dead IS
	'Dead letters: events for which every attempt of the schedule has failed. outbox_redrive sends them again.';

/*
 * ORDER BY and LIMIT do not reach into the view, which is a security barrier.
 */
CREATE FUNCTION outbox_dead_page(
	name       text,
	after      bigint DEFAULT 0,
	max_events integer DEFAULT 100)
RETURNS SETOF outbox_dead
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER ROWS 100
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
	subscription_id bigint;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	subscription_id := idempotency_internal.outbox_subscription_id(name);
	IF after IS NULL OR max_events IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004',
			'after and max_events must not be null');
	ELSIF max_events NOT BETWEEN 1 AND 10000 THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'max_events must be from 1 to 10000');
	END IF;
	RETURN QUERY
		SELECT outbox_dead_page.name, d.position, d.topic, d.key, d.type,
			d.attempts, d.last_at, d.last_status, d.last_error, d.created_at
		FROM idempotency_internal.outbox_delivery d
		WHERE d.subscription = subscription_id AND d.state = 'dead'
			AND d.position > after
		ORDER BY d.position LIMIT max_events;
END
$$;
COMMENT ON FUNCTION outbox_dead_page(text, bigint, integer) IS
	'The next dead letters of a subscription after a position, as in outbox_dead; reads only these.';

CREATE VIEW idempotency_internal.outbox_attempted AS
	SELECT * FROM idempotency_internal.outbox_history_0
	UNION ALL SELECT * FROM idempotency_internal.outbox_history_1
	UNION ALL SELECT * FROM idempotency_internal.outbox_history_2;
COMMENT ON VIEW idempotency_internal.outbox_attempted IS
	'Internal: the history of deliveries, with rows that are kept for longer than asked.';

/* The events of a key are found by two indexes. */
CREATE VIEW outbox_deliveries WITH (security_barrier) AS
SELECT s.name AS subscription, d.position, d.state, d.topic, d.key, d.type,
	d.attempts, d.due_at AS next_attempt_at,
	d.last_at, d.last_status, d.last_error, d.created_at,
	NULL::interval AS duration
FROM idempotency_internal.outbox_delivery d
JOIN idempotency_internal.outbox_subscription s ON s.id = d.subscription
WHERE d.blocks_key
UNION ALL
SELECT s.name, d.position, d.state, d.topic, d.key, d.type,
	d.attempts, d.due_at, d.last_at, d.last_status, d.last_error, d.created_at,
	NULL
FROM idempotency_internal.outbox_delivery d
JOIN idempotency_internal.outbox_subscription s ON s.id = d.subscription
WHERE NOT d.blocks_key
UNION ALL
SELECT s.name, h.position, 'delivered', h.topic, h.key, h.type,
	h.attempt, NULL, h.at, h.status, NULL, h.created_at,
	h.duration_ms::double precision * interval '1 ms'
FROM idempotency_internal.outbox_attempted h
JOIN idempotency_internal.outbox_subscription s ON s.id = h.subscription
WHERE h.error IS NULL AND h.at > now() - s.keep_deliveries;
COMMENT ON VIEW outbox_deliveries IS
	'Deliveries, without payloads: events that wait for an attempt, are parked behind one of the same key, or are dead, and delivered ones of subscriptions with keep_deliveries.';

CREATE VIEW outbox_history WITH (security_barrier) AS
SELECT s.name AS subscription, h.position, h.attempt, h.at,
	h.duration_ms::double precision * interval '1 ms' AS duration, h.status,
	h.error, h.answer, h.topic, h.key, h.type, h.created_at
FROM idempotency_internal.outbox_attempted h
JOIN idempotency_internal.outbox_subscription s ON s.id = h.subscription
WHERE h.at > now() - s.keep_deliveries;
COMMENT ON VIEW outbox_history IS
	'All attempts at events of subscriptions with keep_deliveries, successful ones too. For the owner only, since answers may quote payloads.';

CREATE VIEW outbox_attempts WITH (security_barrier) AS
SELECT s.name AS subscription, a.position, a.attempt, a.at,
	a.duration_ms::double precision * interval '1 ms' AS duration, a.status,
	a.error, a.answer
FROM idempotency_internal.outbox_attempt a
JOIN idempotency_internal.outbox_subscription s ON s.id = a.subscription;
COMMENT ON VIEW outbox_attempts IS
	'Failed attempts at events that wait, are parked or are dead. For the owner only, since answers may quote payloads.';

/*
 * The oldest event that a partition has not read comes right after its
 * position.  Each subscription reads its own rows of outbox_delivery.  An
 * equality would not do: if few subscriptions have all the rows, the planner
 * expects as many of any other, and reads the whole table for each.  What is an
 * aggregate in a LEFT JOIN is not read if its columns are not asked for.
 */
CREATE VIEW outbox_subscriptions WITH (security_barrier) AS
SELECT s.name,
	CASE WHEN NOT h.at_home THEN 'held'
		WHEN s.state = 'active' AND t.trouble IS NOT NULL THEN 'stuck'
		WHEN s.state = 'active' AND s.failing_since IS NOT NULL THEN 'failing'
		ELSE s.state END AS state,
	CASE WHEN h.at_home THEN
			coalesce(s.reason, CASE WHEN s.state = 'active' THEN t.trouble END)
		ELSE 'a copy of another database: see outbox_adopt()' END AS reason,
	s.partitions, p.position, q.last_value - p.position AS lag_events,
	coalesce(CASE WHEN isfinite(e.created_at)
		THEN clock_timestamp() - e.created_at END, '0') AS lag,
	coalesce(w.in_flight, p.in_flight) AS in_flight,
	d.waiting, d.parked, d.dead, p.lost, p.delivered,
	round(p.rate::numeric, 1) AS rate, s.failing_since,
	f.last_at AS last_failed_at, f.last_status, f.last_error, d.next_attempt_at,
	s.id IN (SELECT l FROM idempotency_internal.outbox_rate_limited() l)
		AS rate_limited,
	p.filtered, p.filter_errors, round(a.share::numeric, 4) AS share,
	CASE WHEN NOT h.at_home THEN 5 WHEN s.state = 'disabled' THEN 3
		WHEN s.state = 'paused' THEN 1 WHEN t.trouble IS NOT NULL THEN 4
		WHEN s.failing_since IS NOT NULL THEN 2 ELSE 0 END AS state_code,
	c.at AS changed_at, c.role AS changed_by
FROM idempotency_internal.outbox_subscription s
LEFT JOIN LATERAL (
	SELECT min(position) AS position, max(lost) AS lost,
		sum(delivered)::bigint AS delivered,
		sum(filtered)::bigint AS filtered,
		sum(filter_errors)::bigint AS filter_errors,
		sum(idempotency_internal.outbox_rate(rate, moved_at)) AS rate,
		sum(in_flight)::integer AS in_flight
	FROM idempotency_internal.outbox_reached WHERE subscription = s.id) p
	ON true
CROSS JOIN (SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS last_value
	FROM idempotency_internal.outbox_position_seq) q
CROSS JOIN (
	SELECT coalesce(bool_and(
		h.relation = h.tableoid
		AND h.system_identifier = s.system_identifier
		AND h.database =
			(SELECT oid FROM pg_database WHERE datname = current_database())),
		false) AS at_home
	FROM idempotency_internal.outbox_home h, pg_control_system() s) h
LEFT JOIN LATERAL (
	SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting,
		count(*) FILTER (WHERE state = 'parked') AS parked,
		count(*) FILTER (WHERE state = 'dead') AS dead,
		min(due_at) FILTER (WHERE state = 'waiting') AS next_attempt_at
	FROM idempotency_internal.outbox_delivery
	WHERE subscription BETWEEN s.id AND s.id) d ON true
LEFT JOIN LATERAL (
	SELECT min(created_at) AS created_at FROM (
		SELECT created_at FROM idempotency_internal.outbox_event
		WHERE position > p.position
		ORDER BY position LIMIT 1) first) e ON true
LEFT JOIN LATERAL (
	SELECT max(last_at) AS last_at, max(last_status) AS last_status,
		max(last_error) AS last_error
	FROM (
		SELECT last_at, last_status, last_error
		FROM idempotency_internal.outbox_delivery
		WHERE subscription BETWEEN s.id AND s.id AND last_at IS NOT NULL
		ORDER BY last_at DESC LIMIT 1) last) f ON true
LEFT JOIN (SELECT subscription, sum(in_flight)::integer AS in_flight
	FROM idempotency_internal.outbox_flights() GROUP BY subscription) w
	ON w.subscription = s.id
LEFT JOIN (SELECT subscription, min(trouble) AS trouble
	FROM idempotency_internal.outbox_troubles() GROUP BY subscription) t
	ON t.subscription = s.id
LEFT JOIN (SELECT subscription, avg(share) AS share
	FROM idempotency_internal.outbox_shares() GROUP BY subscription) a
	ON a.subscription = s.id
LEFT JOIN LATERAL (
	SELECT at, role FROM idempotency_internal.idempotency_audit_record
	WHERE object = s.name AND alters
	ORDER BY at DESC NULLS LAST LIMIT 1) c ON true;
COMMENT ON VIEW outbox_subscriptions IS
	'Each subscription: its state, how far behind it is, and the number of events that wait or are dead.';
