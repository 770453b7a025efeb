/* outbox: log, subscriptions and their positions.  Only src/outbox/ writes. */

CREATE SEQUENCE idempotency_internal.outbox_position_seq
	AS bigint NO CYCLE CACHE 1;
COMMENT ON SEQUENCE idempotency_internal.outbox_position_seq IS
	'Positions in outbox_log.  CACHE must stay 1: the relay relies on it.';

CREATE FUNCTION idempotency_internal.outbox_check_event(
	topic text, payload jsonb, key text, type text, headers jsonb,
	deliver_at timestamptz)
RETURNS boolean
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_event(
	text, jsonb, text, text, jsonb, timestamptz) IS
	'Internal: raises an error unless the event can be delivered.';

/*
 * Which segments of the log are live (base/ring.c): the current one takes new
 * events, old ones are read.  last_position is the last position that had been
 * handed out when the segment was closed; no row in it has a higher position.
 * This table is not dumped: a restored database begins with a new ring, and all
 * segments are read in any case.
 */
CREATE TABLE idempotency_internal.outbox_ring (
	LIKE idempotency_internal.idem_ring INCLUDING ALL,
	last_position bigint,
	warned        boolean NOT NULL DEFAULT false,
	CONSTRAINT outbox_ring_last_position_check CHECK (last_position >= 0)
);
COMMENT ON TABLE idempotency_internal.outbox_ring IS
	'The segments of the log: current takes new events, old ones are truncated once every subscription has read them and the retention is over.';
INSERT INTO idempotency_internal.outbox_ring (slot, state, segment, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()),
	(1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

/*
 * Only outbox_erase updates rows.  xid is the top-level transaction of the row:
 * the relay reads rows of transactions that it has passed when they have ended.
 * Otherwise vacuum gains nothing from these tables.
 */
CREATE TABLE idempotency_internal.outbox_log_0 (
	position   bigint PRIMARY KEY,
	xid        xid8 NOT NULL,
	created_at timestamptz NOT NULL,
	deliver_at timestamptz,
	topic      text NOT NULL,
	key        text,
	type       text,
	payload    jsonb NOT NULL,
	headers    jsonb,
	expires_at timestamptz,
	CHECK (idempotency_internal.outbox_check_event(
		topic, payload, key, type, headers, deliver_at)),
	CONSTRAINT outbox_log_position_check CHECK (position > 0),
	CONSTRAINT outbox_log_created_at_check
		CHECK (pg_catalog.isfinite(created_at)),
	CONSTRAINT outbox_log_expires_at_check
		CHECK (pg_catalog.isfinite(expires_at) IS NOT FALSE)
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.outbox_log_1 (
	LIKE idempotency_internal.outbox_log_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.outbox_log_2 (
	LIKE idempotency_internal.outbox_log_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);

COMMENT ON TABLE idempotency_internal.outbox_log_0 IS 'A segment of the log.  See the view outbox_log.';
COMMENT ON TABLE idempotency_internal.outbox_log_1 IS 'A segment of the log.  See the view outbox_log.';
COMMENT ON TABLE idempotency_internal.outbox_log_2 IS 'A segment of the log.  See the view outbox_log.';

CREATE VIEW idempotency_internal.outbox_event AS
	SELECT * FROM idempotency_internal.outbox_log_0
	UNION ALL SELECT * FROM idempotency_internal.outbox_log_1
	UNION ALL SELECT * FROM idempotency_internal.outbox_log_2;
COMMENT ON VIEW idempotency_internal.outbox_event IS
	'Internal: the log, for the relay.';

CREATE VIEW outbox_log AS
	SELECT * FROM idempotency_internal.outbox_event;
COMMENT ON VIEW outbox_log IS
	'Events, in the order of their positions. Rows are updated by outbox_erase only. An INSERT enqueues an event.';

/*
 * Events that were cancelled, as long as their segment is in the log or they
 * are in outbox_delivery.
 */
CREATE TABLE idempotency_internal.outbox_cancelled (
	position     bigint PRIMARY KEY,
	cancelled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
	swept        boolean NOT NULL DEFAULT false,
	CONSTRAINT outbox_cancelled_position_check CHECK (position > 0)
);
CREATE INDEX outbox_cancelled_unswept_idx
	ON idempotency_internal.outbox_cancelled (cancelled_at) WHERE NOT swept;
COMMENT ON TABLE idempotency_internal.outbox_cancelled IS
	'Events that outbox_cancel has cancelled: they are not sent when their time comes.';

CREATE FUNCTION idempotency_internal.outbox_topics_valid(topics text[])
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(array_ndims(topics) = 1 AND cardinality(topics) <= 100
		AND NOT EXISTS (SELECT FROM unnest(topics) t
			WHERE (octet_length(t) BETWEEN 1 AND 255) IS NOT TRUE), false)
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_topics_valid(text[]) IS
	'Internal: can these be the topics of a subscription?';

CREATE FUNCTION idempotency_internal.outbox_schedule_valid(
	retry_schedule interval[])
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(array_ndims(retry_schedule) = 1
		AND cardinality(retry_schedule) <= 100
		AND retry_schedule[array_lower(retry_schedule, 1)] = '0'
		AND NOT EXISTS (SELECT FROM unnest(retry_schedule) r
			WHERE (r BETWEEN '0' AND '366 days') IS NOT TRUE), false)
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_schedule_valid(interval[]) IS
	'Internal: can these be the waits before each attempt of a subscription?';

CREATE FUNCTION idempotency_internal.outbox_check_endpoint(
	url text, secret text, old_secret text, headers jsonb)
RETURNS boolean
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_endpoint(
	text, text, text, jsonb) IS
	'Internal: raises an error unless events can be sent there, and be signed.';

CREATE FUNCTION idempotency_internal.outbox_check_credentials(
	url text, headers jsonb, signing_key text, authorization_file text,
	client_certificate text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	useless text := CASE WHEN signing_key IS NOT NULL THEN 'signing_key'
		WHEN authorization_file IS NOT NULL THEN 'authorization_file'
		WHEN client_certificate IS NOT NULL THEN 'client_certificate' END;
	file    CONSTANT text := '^[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}$';
	wrong   text := CASE
		WHEN authorization_file !~ file
			THEN 'authorization_file must be the name of a file'
		WHEN client_certificate !~ file
			THEN 'client_certificate must be the name of a file' END;
BEGIN
	IF url IS NULL AND useless IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			format('%s must not be given without a url', useless),
			'The subscription has no URL: its events are read by outbox_fetch.');
	ELSIF wrong IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22023', wrong,
			'It has at most 255 letters, digits, dots, hyphens and underscores, and does not begin with a dot.');
	ELSIF coalesce(authorization_file, client_certificate) IS NOT NULL
		AND (url ~* '^https://') IS NOT TRUE
	THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'authorization_file and client_certificate need a URL that begins with https://');
	ELSIF url IS NULL AND signing_key IS NOT NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'signing_key must not be given without a url');
	ELSIF authorization_file IS NOT NULL AND EXISTS (
		SELECT FROM jsonb_object_keys(headers) h WHERE lower(h) = 'authorization')
	THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'authorization_file and a header Authorization exclude each other');
	END IF;
	PERFORM idempotency_internal.outbox_derive_public_key(signing_key);
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_check_credentials(
	text, jsonb, text, text, text) IS
	'Internal: raises an error unless a request can be authenticated by these.';

/*
 * This function is the only CHECK constraint of the table, so that the message
 * about a row that is refused does not show the row with its secrets.  The
 * message of a NOT NULL constraint does show it.
 */
CREATE FUNCTION idempotency_internal.outbox_check_subscription_row(
	name text, url text, topics text[], secret text, old_secret text,
	headers jsonb, format text, ordered boolean, max_in_flight integer,
	timeout interval, retry_schedule interval[], partitions integer,
	state text, rate_limit numeric, batch integer, filter jsonpath,
	signing_key text, old_signing_key text, authorization_file text,
	client_certificate text, priority integer, keep_deliveries interval)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF state NOT IN ('active', 'paused', 'disabled') THEN
		RAISE EXCEPTION 'state must be active, paused or disabled' USING ERRCODE = '22023';
	END IF;
	PERFORM idempotency_internal.outbox_check_subscription(name, topics, format,
		max_in_flight, timeout, retry_schedule, 'latest', ordered, partitions,
		rate_limit, batch, filter, priority, keep_deliveries);
	IF url IS NULL THEN
		PERFORM idempotency_internal.outbox_check_without_url(
			coalesce(secret, old_secret), headers, format, rate_limit, batch,
			priority, keep_deliveries);
	ELSIF secret IS NULL THEN
		RAISE EXCEPTION 'secret must not be null' USING ERRCODE = '22004';
	END IF;
	PERFORM idempotency_internal.outbox_derive_public_key(old_signing_key);
	IF NOT idempotency_internal.outbox_check_endpoint(
		url, secret, old_secret, headers) THEN
		RETURN false;
	END IF;
	PERFORM idempotency_internal.outbox_check_credentials(url, headers,
		coalesce(signing_key, old_signing_key), authorization_file,
		client_certificate);
	RETURN true;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_check_subscription_row(
	text, text, text[], text, text, jsonb, text, boolean, integer, interval,
	interval[], integer, text, numeric, integer, jsonpath, text, text, text,
	text, integer,
	interval) IS
	'Internal: raises an error unless the relay can serve such a subscription.';

/*
 * The constraints of this table and of those below state what the relay relies
 * on.  It checks the rows all the same (subscription.c, reader.c), since
 * constraints can be dropped.
 */
CREATE TABLE idempotency_internal.outbox_subscription (
	id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name           text COLLATE "C" NOT NULL UNIQUE,
	url            text,
	topics         text[] NOT NULL,
	secret         text,
	old_secret     text,
	old_until      timestamptz,
	headers        jsonb,
	format         text NOT NULL,
	ordered        boolean NOT NULL,
	max_in_flight  integer NOT NULL,
	timeout        interval NOT NULL,
	retry_schedule interval[] NOT NULL,
	partitions     integer NOT NULL,
	state          text NOT NULL DEFAULT 'active',
	reason         text,
	failing_since  timestamptz,
	version        bigint NOT NULL DEFAULT 1,
	created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
	recovered_at   timestamptz,
	rate_limit     numeric,
	batch          integer NOT NULL DEFAULT 1,
	filter         jsonpath,
	signing_key    text,
	old_signing_key text,
	old_key_until  timestamptz,
	authorization_file text,
	client_certificate text,
	priority       integer NOT NULL DEFAULT 1,
	keep_deliveries interval,
	CONSTRAINT outbox_subscription_row_check CHECK (
		idempotency_internal.outbox_check_subscription_row(
			name, url, topics, secret, old_secret, headers, format, ordered,
			max_in_flight, timeout, retry_schedule, partitions, state,
			rate_limit, batch, filter, signing_key, old_signing_key,
			authorization_file, client_certificate, priority, keep_deliveries))
);
/* For the sweeper, which looks every second. */
CREATE INDEX outbox_subscription_old_idx
	ON idempotency_internal.outbox_subscription
		(least(old_until, old_key_until));
CREATE INDEX outbox_subscription_keep_idx
	ON idempotency_internal.outbox_subscription (keep_deliveries)
	WHERE keep_deliveries IS NOT NULL;
COMMENT ON TABLE idempotency_internal.outbox_subscription IS
	'Subscriptions: URL, or null if they are read by outbox_fetch, topics, format and limits. For the owner only, since it holds secrets.';

/*
 * How far a subscription has read, in each of its partitions.  There are no
 * foreign keys between these tables, since pg_restore -j loads them in any
 * order.  Sessions that write rows of a subscription have locked it or its
 * partitions.
 *
 * Every row up to position was delivered, or is in outbox_delivery, or belongs
 * to one of the stragglers: transactions that were open when the relay passed
 * them.  Rows of a straggler from straggler_froms on have not been read yet.
 *
 * If head is set, the partition follows the head of that relay: the same is
 * true of the head's columns, if the head's position is higher.
 *
 * The columns from token on are for subscriptions without a URL: the batch that
 * outbox_fetch handed out last (pull.c).  outbox_ack moves the partition to
 * leased_position; if that is null, the batch has the deferred deliveries in
 * leased_events.
 */
CREATE TABLE idempotency_internal.outbox_partition (
	subscription    bigint NOT NULL,
	number          integer NOT NULL,
	position        bigint NOT NULL,
	stragglers      xid8[] NOT NULL DEFAULT '{}',
	straggler_froms bigint[] NOT NULL DEFAULT '{}',
	lost            bigint NOT NULL DEFAULT 0,
	delivered       bigint NOT NULL DEFAULT 0,
	rate            double precision NOT NULL DEFAULT 0,
	moved_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
	head            smallint,
	filtered        bigint NOT NULL DEFAULT 0,
	filter_errors   bigint NOT NULL DEFAULT 0,
	token             bigint,
	leased_until      timestamptz,
	leased_position   bigint,
	leased_stragglers xid8[],
	leased_froms      bigint[],
	leased_count      integer NOT NULL DEFAULT 0,
	leased_events     bigint[],
	lapsed_to         bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (subscription, number),
	CHECK (pg_catalog.cardinality(stragglers) OPERATOR(pg_catalog.=)
		pg_catalog.cardinality(straggler_froms)),
	CONSTRAINT outbox_partition_number_check
		CHECK (subscription > 0 AND number BETWEEN 0 AND 63),
	CONSTRAINT outbox_partition_position_check CHECK (position >= 0),
	CONSTRAINT outbox_partition_stragglers_check CHECK (
		CASE WHEN pg_catalog.array_ndims(stragglers) > 1
			OR pg_catalog.array_ndims(straggler_froms) > 1 THEN false
			ELSE pg_catalog.array_position(stragglers, NULL) IS NULL
				AND pg_catalog.array_position(straggler_froms, NULL) IS NULL
			END),
	CONSTRAINT outbox_partition_counts_check CHECK (lost >= 0 AND delivered >= 0
		AND filtered >= 0 AND filter_errors >= 0
		AND rate BETWEEN '0' AND '1e15' AND pg_catalog.isfinite(moved_at)),
	CONSTRAINT outbox_partition_lease_check CHECK (
		(token > 0) IS NOT FALSE AND leased_count >= 0 AND lapsed_to >= 0
		AND pg_catalog.isfinite(leased_until) IS NOT FALSE
		AND (leased_until IS NULL OR token IS NOT NULL)
		AND (pg_catalog.array_ndims(leased_events) > 1) IS NOT TRUE
		AND pg_catalog.array_position(leased_events, NULL) IS NULL)
) WITH (fillfactor = 50);
COMMENT ON TABLE idempotency_internal.outbox_partition IS
	'The position of each partition of a subscription in the log.';

/*
 * How far each relay has read for all the partitions that follow it.  So a
 * partition that no event concerns needs no write of its own.
 */
CREATE TABLE idempotency_internal.outbox_head (
	relay           smallint PRIMARY KEY,
	position        bigint NOT NULL,
	stragglers      xid8[] NOT NULL,
	straggler_froms bigint[] NOT NULL,
	CHECK (pg_catalog.cardinality(stragglers) OPERATOR(pg_catalog.=)
		pg_catalog.cardinality(straggler_froms)),
	CONSTRAINT outbox_head_position_check
		CHECK (relay >= 0 AND position >= 0),
	CONSTRAINT outbox_head_stragglers_check CHECK (
		CASE WHEN pg_catalog.array_ndims(stragglers) > 1
			OR pg_catalog.array_ndims(straggler_froms) > 1 THEN false
			ELSE pg_catalog.array_position(stragglers, NULL) IS NULL
				AND pg_catalog.array_position(straggler_froms, NULL) IS NULL
			END)
) WITH (fillfactor = 50);
COMMENT ON TABLE idempotency_internal.outbox_head IS
	'How far each relay has read the log for the partitions that follow it.';

CREATE VIEW idempotency_internal.outbox_reached AS
SELECT p.subscription, p.number, p.lost, p.delivered, p.filtered,
	p.filter_errors, p.rate, p.moved_at,
	CASE WHEN h.position > p.position THEN h.position ELSE p.position END
		AS position,
	CASE WHEN h.position > p.position THEN h.stragglers ELSE p.stragglers END
		AS stragglers,
	CASE WHEN h.position > p.position THEN h.straggler_froms
		ELSE p.straggler_froms END AS straggler_froms,
	CASE WHEN p.leased_until > clock_timestamp() THEN p.leased_count ELSE 0 END
		AS in_flight
FROM idempotency_internal.outbox_partition p
LEFT JOIN idempotency_internal.outbox_head h ON h.relay = p.head;
COMMENT ON VIEW idempotency_internal.outbox_reached IS
	'Internal: how far each partition has read, as far as is recorded.';

/*
 * Deferred deliveries: copies of events that could not be delivered at once.
 * Each is waiting for its time (a retry, or deliver_at), parked behind a
 * waiting one of the same key, or dead.  Of those with blocks_key, one per key
 * is waiting and the others are parked, and all later events of the key park
 * behind them.
 */
CREATE TABLE idempotency_internal.outbox_delivery (
	subscription bigint NOT NULL,
	position     bigint NOT NULL,
	partition    integer NOT NULL,
	state        text NOT NULL CHECK (state IN ('waiting', 'parked', 'dead')),
	blocks_key   boolean NOT NULL,
	attempts     integer NOT NULL,
	due_at       timestamptz,
	last_at      timestamptz,
	last_status  integer,
	last_error   text,
	created_at   timestamptz NOT NULL,
	topic        text NOT NULL,
	key          text COLLATE "C",
	type         text,
	payload      jsonb NOT NULL,
	headers      jsonb,
	expires_at   timestamptz,
	deliver_at   timestamptz,
	PRIMARY KEY (subscription, position),
	CHECK ((state = 'waiting') = (due_at IS NOT NULL)),
	CONSTRAINT outbox_delivery_number_check CHECK (
		subscription > 0 AND partition BETWEEN 0 AND 63
		AND position > 0 AND attempts >= 0),
	CONSTRAINT outbox_delivery_key_check
		CHECK (key IS NOT NULL OR NOT blocks_key),
	CONSTRAINT outbox_delivery_times_check CHECK (
		pg_catalog.isfinite(created_at)
		AND pg_catalog.isfinite(due_at) IS NOT FALSE
		AND pg_catalog.isfinite(last_at) IS NOT FALSE
		AND pg_catalog.isfinite(expires_at) IS NOT FALSE
		AND pg_catalog.isfinite(deliver_at) IS NOT FALSE),
	-- A dead letter may be an event that could never have been sent.
	CONSTRAINT outbox_delivery_event_check CHECK (CASE WHEN state <> 'dead' THEN
		idempotency_internal.outbox_check_event(
			topic, 'null', key, type, headers, NULL) ELSE true END)
);
CREATE INDEX outbox_delivery_due_at_idx
	ON idempotency_internal.outbox_delivery
		(subscription, partition, due_at, position)
	WHERE state = 'waiting';
CREATE INDEX outbox_delivery_last_at_idx
	ON idempotency_internal.outbox_delivery
		(subscription, partition, last_at NULLS FIRST, position)
	WHERE state = 'waiting';
CREATE INDEX outbox_delivery_dead_idx
	ON idempotency_internal.outbox_delivery (last_at) WHERE state = 'dead';
CREATE INDEX outbox_delivery_dead_position_idx
	ON idempotency_internal.outbox_delivery (subscription, position)
	WHERE state = 'dead';
CREATE INDEX outbox_delivery_key_idx
	ON idempotency_internal.outbox_delivery (subscription, key, position)
	WHERE blocks_key;
CREATE INDEX outbox_delivery_other_key_idx
	ON idempotency_internal.outbox_delivery (subscription, key, position)
	WHERE key IS NOT NULL AND NOT blocks_key;
COMMENT ON TABLE idempotency_internal.outbox_delivery IS
	'Deferred deliveries: events that wait for a retry or their time, are parked behind another event of their key, or are dead.';

/*
 * The failed attempts of deferred deliveries.  They are numbered from 1 again
 * when the event is redriven.
 */
CREATE TABLE idempotency_internal.outbox_attempt (
	subscription bigint NOT NULL,
	position     bigint NOT NULL,
	attempt      integer NOT NULL,
	at           timestamptz NOT NULL,
	duration_ms  integer NOT NULL,
	status       integer,
	error        text,
	answer       text,
	PRIMARY KEY (subscription, position, attempt, at),
	CONSTRAINT outbox_attempt_number_check
		CHECK (attempt > 0 AND duration_ms >= 0),
	CONSTRAINT outbox_attempt_at_check CHECK (pg_catalog.isfinite(at))
);
COMMENT ON TABLE idempotency_internal.outbox_attempt IS
	'Failed attempts at the events in outbox_delivery. For the owner only, since answers may quote payloads.';

/*
 * The plans of this trigger and the next may have been made while there was
 * nothing to delete.  So each row that goes has to lead to its own ones by an
 * index.
 */
CREATE FUNCTION idempotency_internal.outbox_subscription_deleted()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	gone bigint;
BEGIN
	IF (TG_WHEN, TG_LEVEL, TG_RELID)
		IS DISTINCT FROM ('AFTER', 'STATEMENT', 'idempotency_internal.outbox_subscription'::regclass)
		OR TG_OP NOT IN ('DELETE', 'TRUNCATE') THEN
		PERFORM idempotency_internal.idempotency_refuse_trigger('outbox_subscription_deleted');
	END IF;
	IF TG_OP = 'TRUNCATE' THEN
		DELETE FROM idempotency_internal.outbox_partition;
		DELETE FROM idempotency_internal.outbox_delivery;
	ELSE
		FOR gone IN SELECT id FROM deleted LOOP
			DELETE FROM idempotency_internal.outbox_partition p
			WHERE p.subscription = gone;
			DELETE FROM idempotency_internal.outbox_delivery d
			WHERE d.subscription = gone;
		END LOOP;
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_subscription_deleted() IS
	'Internal: what belongs to a subscription goes with it.';
CREATE TRIGGER outbox_subscription_deleted
	AFTER DELETE ON idempotency_internal.outbox_subscription
	REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.outbox_subscription_deleted();
CREATE TRIGGER outbox_subscription_truncated
	AFTER TRUNCATE ON idempotency_internal.outbox_subscription
	FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.outbox_subscription_deleted();

CREATE FUNCTION idempotency_internal.outbox_delivery_deleted()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
	IF (TG_WHEN, TG_LEVEL, TG_OP, TG_RELID)
		IS DISTINCT FROM ('AFTER', 'STATEMENT', 'DELETE', 'idempotency_internal.outbox_delivery'::regclass) THEN
		PERFORM idempotency_internal.idempotency_refuse_trigger('outbox_delivery_deleted');
	END IF;
	-- Rows of this table are never updated, so they stay in their places.
	DELETE FROM idempotency_internal.outbox_attempt
	WHERE ctid = ANY (ARRAY(
		SELECT own.ctid FROM deleted CROSS JOIN LATERAL (
			SELECT a.ctid FROM idempotency_internal.outbox_attempt a
			WHERE a.subscription = deleted.subscription
				AND a.position = deleted.position
			OFFSET 0) own));
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_delivery_deleted() IS
	'Internal: the attempts at an event go with it.';
CREATE TRIGGER outbox_delivery_deleted
	AFTER DELETE ON idempotency_internal.outbox_delivery
	REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.outbox_delivery_deleted();

/*
 * The home of this outbox: this cluster, this database, and this very table.
 * The first subscription inserts a row.  A dump contains the row, so a
 * restored outbox has the row of another home and sends nothing until it is
 * adopted.  An outbox without the row sends nothing either: tables are
 * restored in any order, and events would be skipped before all of them are
 * restored.  A physical copy has the same home, and so has a server after a
 * failover; both have another timeline, so idempotency_status warns then.
 */
CREATE TABLE idempotency_internal.outbox_home (
	identity          uuid PRIMARY KEY,
	system_identifier bigint NOT NULL,
	database          oid NOT NULL,
	created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
	relation          oid NOT NULL DEFAULT 0,
	timeline          integer,
	UNIQUE (system_identifier, database)
);
COMMENT ON TABLE idempotency_internal.outbox_home IS
	'The cluster and database that may send, and the identity in webhook ids.';

/*
 * The topics that outbox_topic has registered.  A constraint must not check
 * that a schema is valid, since the extension that could may be restored later
 * (topic_schema.c).
 */
CREATE TABLE idempotency_internal.outbox_registered_topic (
	topic       text COLLATE "C" PRIMARY KEY,
	schema      jsonb,
	description text,
	created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
	changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
	CONSTRAINT outbox_registered_topic_topic_check
		CHECK (pg_catalog.octet_length(topic) BETWEEN 1 AND 255),
	CONSTRAINT outbox_registered_topic_schema_check
		CHECK (pg_catalog.jsonb_typeof(schema) IN ('object', 'boolean'))
);
COMMENT ON TABLE idempotency_internal.outbox_registered_topic IS
	'Topics that are announced, with the JSON schema that their payloads must match. See the view outbox_topics.';

CREATE FUNCTION idempotency_internal.outbox_topic_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_topic_changed() IS
	'Internal: makes every session read the topics with a schema again.';
CREATE TRIGGER outbox_topic_changed
	AFTER INSERT OR UPDATE OR DELETE
	ON idempotency_internal.outbox_registered_topic
	FOR EACH ROW EXECUTE FUNCTION idempotency_internal.outbox_topic_changed();
ALTER TABLE idempotency_internal.outbox_registered_topic
	ENABLE ALWAYS TRIGGER outbox_topic_changed;

/*
 * All attempts at events of subscriptions that keep their deliveries, in a ring
 * of tables (base/ring.c).  Relays insert rows (history.c); outbox_erase
 * removes answers from them.  Like the ring, they are not dumped.
 */
CREATE TABLE idempotency_internal.outbox_history_ring (
	LIKE idempotency_internal.idem_ring INCLUDING ALL);
COMMENT ON TABLE idempotency_internal.outbox_history_ring IS
	'The tables of the history of deliveries: attempts are inserted into the current one, old ones are truncated when no subscription keeps its deliveries for so long.';
INSERT INTO idempotency_internal.outbox_history_ring
	(slot, state, segment, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()),
	(1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

CREATE TABLE idempotency_internal.outbox_history_0 (
	subscription bigint NOT NULL,
	position     bigint NOT NULL,
	attempt      integer NOT NULL,
	at           timestamptz NOT NULL,
	duration_ms  integer,
	status       integer,
	error        text,
	answer       text,
	topic        text,
	key          text COLLATE "C",
	type         text,
	created_at   timestamptz
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX outbox_history_0_position
	ON idempotency_internal.outbox_history_0 (subscription, position);
CREATE TABLE idempotency_internal.outbox_history_1 (
	LIKE idempotency_internal.outbox_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.outbox_history_2 (
	LIKE idempotency_internal.outbox_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE idempotency_internal.outbox_history_0 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.outbox_history_1 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.outbox_history_2 REPLICA IDENTITY FULL;
COMMENT ON TABLE idempotency_internal.outbox_history_0 IS 'A segment of the history of deliveries.  See the view outbox_history.';
COMMENT ON TABLE idempotency_internal.outbox_history_1 IS 'A segment of the history of deliveries.  See the view outbox_history.';
COMMENT ON TABLE idempotency_internal.outbox_history_2 IS 'A segment of the history of deliveries.  See the view outbox_history.';

SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_position_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_log_0', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_log_1', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_log_2', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_cancelled', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_subscription', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_subscription_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_partition', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_head', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_delivery', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_attempt', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_home', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_registered_topic', '');
