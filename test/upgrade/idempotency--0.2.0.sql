\echo Use "CREATE EXTENSION idempotency" to load this file. \quit

/* base: what all rooms use.  First part of the install script. */

CREATE FUNCTION idempotency_require_preload(what text)
RETURNS void
LANGUAGE C STABLE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_require_preload(text) IS
	'Internal: raises an error unless the library is preloaded.';

/*
 * The steps of a ring of tables (base/ring.c) that keys and log have in common.
 * ring is its state table. They wait for a lock for 0.1 s at most and then give
 * up until the next time.
 */

CREATE FUNCTION idempotency_ring_changed(ring regclass)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_ring_changed(regclass) IS
	'Internal: makes every session read the map of a ring again once this transaction has committed.';

CREATE FUNCTION idempotency_next_xid()
RETURNS xid8
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_next_xid() IS
	'Internal: later than every transaction that has written so far.';

CREATE FUNCTION idempotency_ring_switch(ring regclass)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	next_empty text := format('SELECT slot FROM %s WHERE state = %L ORDER BY slot LIMIT 1', ring, 'empty');
	next       smallint;
	quiet      xid8;
BEGIN
	EXECUTE next_empty INTO next;
	IF next IS NULL THEN
		RETURN false;
	END IF;
	EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', ring);
	EXECUTE next_empty INTO next;
	IF next IS NULL THEN
		RETURN false;
	END IF;
	quiet := @extschema@.idempotency_next_xid();
	EXECUTE format('UPDATE %s SET state = %L, closed_at = clock_timestamp(), quiet_xid = $1
		WHERE state = %L', ring, 'old', 'current') USING quiet;
	EXECUTE format('UPDATE %s SET state = %L, opened_at = clock_timestamp(),
		generation = (SELECT max(generation) + 1 FROM %1$s) WHERE slot = $1', ring, 'current') USING next;
	PERFORM @extschema@.idempotency_ring_changed(ring);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_ring_switch(regclass) IS
	'Internal: opens an empty table of a ring as the current one; false: there is none, or the ring is busy.';

CREATE FUNCTION idempotency_ring_truncate(ring regclass, tables text, unused_state text)
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
COMMENT ON FUNCTION idempotency_ring_truncate(regclass, text, text) IS
	'Internal: truncates the oldest table of a ring in a state; false: there is none, or it is locked.';

CREATE FUNCTION idempotency_is_quiet(generation_xid xid8)
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS 'SELECT pg_snapshot_xmin(pg_current_snapshot()) >= generation_xid';
COMMENT ON FUNCTION idempotency_is_quiet(xid8) IS
	'Internal: whether all transactions before this one have ended.';
/* claim: what is remembered of keys.  Written by src/claim/ alone. */

CREATE TYPE idem_outcome AS ENUM
	('claimed', 'in_progress', 'completed', 'failed', 'mismatch');
COMMENT ON TYPE idem_outcome IS
	'Answer of idem_claim: claimed (do the work), in_progress (somebody else is at it), completed and failed (done before, see response), mismatch (the key was used for another request).';

CREATE TYPE idem_answer AS (
	outcome     idem_outcome,
	token       bigint,
	attempt     integer,
	response    jsonb,
	retry_after interval);
COMMENT ON TYPE idem_answer IS
	'What idem_claim returns.';

/*
 * DROP EXTENSION locks relations in the order of their creation, and our code
 * in the same: the sequence, the ring, the keys.
 */
CREATE SEQUENCE idem_token_seq AS bigint;
COMMENT ON SEQUENCE idem_token_seq IS
	'Fencing tokens of idem_claim, each larger than the ones before.';

/*
 * Which of the tables of keys are live (base/ring.c).  It is not dumped: a
 * restored database begins with a new ring, and idem_key_redirect puts the
 * rows where they belong there.
 */
CREATE TABLE idem_ring (
	slot       smallint PRIMARY KEY CHECK (slot BETWEEN 0 AND 2),
	state      text NOT NULL CHECK (state IN ('current', 'old', 'retired', 'empty')),
	generation bigint UNIQUE,
	opened_at  timestamptz,
	closed_at  timestamptz,
	quiet_xid  xid8,
	rest_until timestamptz,
	CHECK ((state = 'empty') = (generation IS NULL)),
	CHECK ((state IN ('old', 'retired')) = (quiet_xid IS NOT NULL))
);
COMMENT ON TABLE idem_ring IS
	'The generations of keys: current takes new keys, old ones are looked into, retired ones wait to be truncated. Once every transaction before quiet_xid has ended, nobody writes into an old one any more.';
INSERT INTO idem_ring (slot, state, generation, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()), (1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

/*
 * state: p in progress, c completed, f failed for good, r failed and free for
 * the next claimer.  The columns of fixed width come first: they are what a
 * claim reads.  The key leads in the index, since it decides nearly every
 * comparison; nothing is looked up by scope alone.  Vacuum has nothing to gain from rows that are only inserted:
 * they are never read by index alone, and are truncated before they are old.
 */
CREATE TABLE idem_key_0 (
	token       bigint NOT NULL,
	expires_at  timestamptz NOT NULL,
	attempt     integer NOT NULL,
	state       "char" NOT NULL CHECK (state IN ('p', 'c', 'f', 'r')),
	scope       text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(scope) <= 255),
	key         text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(key) BETWEEN 1 AND 255),
	lease_until timestamptz,
	request     bytea,
	response    jsonb,
	PRIMARY KEY (key, scope),
	CHECK ((state = 'p') = (lease_until IS NOT NULL))
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idem_key_1 (LIKE idem_key_0 INCLUDING ALL) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idem_key_2 (LIKE idem_key_0 INCLUDING ALL) WITH (autovacuum_vacuum_insert_threshold = -1);

CREATE VIEW idem_key AS
	SELECT * FROM idem_key_0 WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
	UNION ALL
	SELECT * FROM idem_key_1 WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
	UNION ALL
	SELECT * FROM idem_key_2 WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
COMMENT ON VIEW idem_key IS
	'Keys that have been claimed and have not expired; request is a SHA-256.';

CREATE FUNCTION idem_key_redirect()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_key_redirect() IS
	'Internal: a key that is inserted by hand, or restored, goes into the current generation.';

DO $$
BEGIN
	FOR slot IN 0..2 LOOP
		EXECUTE pg_catalog.format('COMMENT ON TABLE idem_key_%s IS %L', slot,
			'A generation of keys. Written by the functions idem_* alone; see the view idem_key.');
		EXECUTE pg_catalog.format('CREATE TRIGGER idem_key_redirect BEFORE INSERT ON idem_key_%s
			FOR EACH ROW EXECUTE FUNCTION idem_key_redirect()', slot);
		EXECUTE pg_catalog.format('ALTER TABLE idem_key_%s ENABLE ALWAYS TRIGGER idem_key_redirect', slot);
		PERFORM pg_catalog.pg_extension_config_dump(pg_catalog.format('idem_key_%s', slot)::pg_catalog.regclass,
			'WHERE expires_at > clock_timestamp()');
	END LOOP;
END
$$;
SELECT pg_catalog.pg_extension_config_dump('idem_token_seq', '');
/* claim: the public functions.  EXECUTE is the gate; the C code checks no other privilege. */

CREATE FUNCTION idem_claim(
	key     text,
	scope   text DEFAULT '',
	lease   interval DEFAULT NULL,
	request text DEFAULT NULL,
	ttl     interval DEFAULT NULL,
	wait    boolean DEFAULT true)
RETURNS idem_answer
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_claim(text, text, interval, text, interval, boolean) IS
	'Claims a key for this transaction, or with a lease for work beyond it; says what became of it before otherwise.';

CREATE FUNCTION idem_claim_many(
	keys  text[],
	scope text DEFAULT '',
	lease interval DEFAULT NULL,
	ttl   interval DEFAULT NULL,
	wait  boolean DEFAULT true,
	OUT key         text,
	OUT outcome     idem_outcome,
	OUT token       bigint,
	OUT attempt     integer,
	OUT response    jsonb,
	OUT retry_after interval)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_claim_many(text[], text, interval, interval, boolean) IS
	'Claims a batch of keys as idem_claim does each, in an order in which batches cannot deadlock; answers in the order of the array.';

CREATE FUNCTION idem_complete(
	key      text,
	token    bigint,
	response jsonb DEFAULT NULL,
	scope    text DEFAULT '',
	ttl      interval DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_complete(text, bigint, jsonb, text, interval) IS
	'Completes a claimed key and saves the answer that later claims of it get.';

CREATE FUNCTION idem_fail(
	key   text,
	token bigint,
	error jsonb DEFAULT NULL,
	scope text DEFAULT '',
	retry boolean DEFAULT true)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_fail(text, bigint, jsonb, text, boolean) IS
	'Ends a claim in failure: free for the next claimer, or for good with retry => false.';

CREATE FUNCTION idem_renew(
	key   text,
	token bigint,
	lease interval DEFAULT NULL,
	scope text DEFAULT '')
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_renew(text, bigint, interval, text) IS
	'Extends the lease of a key in progress, counted from now; returns when it ends.';

CREATE FUNCTION idem_forget(key text, scope text DEFAULT '')
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_forget(text, text) IS
	'For operators: drops what is remembered of a key; says whether there was anything.';

/*
 * The steps by which keys expire. Each is one short transaction of the
 * sweeper's, which calls idem_expire; base/ring.c has the idea. They wait for a
 * lock for 0.1 s at most and then give up until the next time.
 */

CREATE FUNCTION idem_count_expired(keys bigint)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_count_expired(bigint) IS
	'Internal: adds to the counter that idem_stats shows.';

CREATE FUNCTION idem_switch()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT @extschema@.idempotency_ring_switch(''@extschema@.idem_ring''::regclass)';
COMMENT ON FUNCTION idem_switch() IS
	'Internal: opens an empty generation of keys as the current one; false: there is none, or the ring is busy.';

CREATE FUNCTION idem_carry(max_keys integer DEFAULT 1000, slot smallint DEFAULT NULL)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_carry(integer, smallint) IS
	'Internal: moves keys that have not expired from an old generation, the oldest by default, into the current one; returns how many.';

/*
 * The two looks have a snapshot each, the later one for the rows: once it is
 * quiet nothing is added, so a scan that finds nothing is true for good.
 */
CREATE FUNCTION idem_retire(slot smallint DEFAULT NULL)
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
COMMENT ON FUNCTION idem_retire(smallint) IS
	'Internal: takes an old generation of keys, the oldest by default, out of use once all in it has expired; false: not yet.';

CREATE FUNCTION idem_truncate()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT @extschema@.idempotency_ring_truncate(''@extschema@.idem_ring''::regclass, ''idem_key''::text, ''retired''::text)';
COMMENT ON FUNCTION idem_truncate() IS
	'Internal: truncates a retired generation of keys; false: there is none, or it is locked.';

CREATE FUNCTION idem_sample(
	slot             smallint,
	pages            integer,
	OUT keys         double precision,
	OUT expired      double precision,
	OUT in_progress  double precision,
	OUT completed    double precision,
	OUT failed       double precision,
	OUT retryable    double precision,
	OUT oldest_lease timestamptz)
RETURNS record
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_sample(smallint, integer) IS
	'Internal: what is in a generation of keys, by a sample of so many pages: exact as long as it has no more.';

/*
 * The next generation is opened when a tenth of the current one has expired:
 * it has then lived for a little more than one ttl. An old one is emptied when
 * nothing in it is needed any more. Keys that are kept for longer than the
 * others are only carried forward where no table is left to go on with: out of
 * the generation with the fewest of them, and not before that frees as many as
 * have to be moved. So each key that expires costs one move at most, and what
 * has expired never takes much more space than what has not.
 */
CREATE FUNCTION idem_next_to_empty(freed double precision)
RETURNS smallint
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT r.slot FROM @extschema@.idem_ring r, @extschema@.idem_sample(r.slot, 64) s
	WHERE r.state = 'old' AND (r.rest_until < clock_timestamp()) IS NOT FALSE
		AND @extschema@.idempotency_is_quiet(r.quiet_xid)
		AND (s.expired = s.keys OR s.keys - s.expired <= s.expired + freed)
	ORDER BY s.keys - s.expired, r.generation LIMIT 1
$$;
COMMENT ON FUNCTION idem_next_to_empty(double precision) IS
	'Internal: the old generation of keys that is to be emptied next, if any, where so many expired keys can go on account of it.';

CREATE FUNCTION idem_expire(max_keys integer DEFAULT 1000)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	now_used record;
	due      boolean;
	unused   smallint;
BEGIN
	IF @extschema@.idem_truncate() THEN
		RETURN true;
	END IF;
	SELECT s.* INTO now_used FROM @extschema@.idem_ring r, @extschema@.idem_sample(r.slot, 64) s
		WHERE r.state = 'current';
	due := now_used.expired > 0.1 * now_used.keys;
	IF due AND @extschema@.idem_switch() THEN
		RETURN true;
	END IF;
	unused := @extschema@.idem_next_to_empty(CASE WHEN due THEN now_used.expired ELSE '-infinity' END);
	RETURN unused IS NOT NULL AND (@extschema@.idem_carry(max_keys, unused) > 0 OR @extschema@.idem_retire(unused));
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idem_expire(integer) IS
	'Internal: the next step of forgetting keys past their ttl, if one is due; true: call it again.';

CREATE FUNCTION idem_counters(
	OUT since       timestamptz,
	OUT claimed     bigint,
	OUT replayed    bigint,
	OUT in_progress bigint,
	OUT mismatches  bigint,
	OUT takeovers   bigint,
	OUT expired     bigint)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_counters() IS
	'Internal: the counters that idem_stats shows.';

CREATE VIEW idem_stats AS
	SELECT c.*, s.*
	FROM idem_counters() c,
		(SELECT pg_catalog.round(coalesce(pg_catalog.sum(s.in_progress), 0)) AS keys_in_progress,
			pg_catalog.round(coalesce(pg_catalog.sum(s.completed), 0)) AS keys_completed,
			pg_catalog.round(coalesce(pg_catalog.sum(s.failed), 0)) AS keys_failed,
			pg_catalog.round(coalesce(pg_catalog.sum(s.retryable), 0)) AS keys_retryable,
			pg_catalog.min(s.oldest_lease) AS oldest_lease
		FROM idem_ring r, idem_sample(r.slot, 1000) s
		WHERE r.state OPERATOR(pg_catalog.=) 'current' OR r.state OPERATOR(pg_catalog.=) 'old') s;
COMMENT ON VIEW idem_stats IS
	'Answers of idem_claim since the server started, and the keys that are remembered now, by a sample if there are many.';
/* outbox: the log, who reads it, and how far.  Written by src/outbox/ alone. */

CREATE SEQUENCE outbox_position_seq AS bigint NO CYCLE CACHE 1;
COMMENT ON SEQUENCE outbox_position_seq IS
	'Positions in outbox_log.  CACHE must stay 1: the relay relies on it.';

CREATE FUNCTION outbox_check_event(
	topic text, payload jsonb, key text, type text, headers jsonb,
	deliver_at timestamptz)
RETURNS boolean
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_check_event(text, jsonb, text, text, jsonb, timestamptz) IS
	'Internal: raises an error unless the event can be delivered.';

/*
 * Which segments of the log are live (base/ring.c): current takes new events,
 * old ones are read. last_position is the last that had been handed out when a
 * segment was closed: nothing in it lies beyond. It is not dumped: a restored
 * database begins with a new ring, where each segment is read all the same.
 */
CREATE TABLE outbox_ring (
	LIKE idem_ring INCLUDING ALL,
	last_position bigint,
	warned        boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE outbox_ring IS
	'The segments of the log: current takes new events, old ones are truncated once every subscription has read them and the retention is over.';
INSERT INTO outbox_ring (slot, state, generation, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()), (1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

/*
 * Rows are only appended.  xid is the top-level transaction of the row: the
 * relay comes back for the rows of transactions that it had to pass.  Vacuum
 * has nothing to gain from them.
 */
CREATE TABLE outbox_log_0 (
	position   bigint PRIMARY KEY,
	xid        xid8 NOT NULL,
	created_at timestamptz NOT NULL,
	deliver_at timestamptz,
	topic      text NOT NULL,
	key        text,
	type       text,
	payload    jsonb NOT NULL,
	headers    jsonb,
	CHECK (outbox_check_event(topic, payload, key, type, headers, deliver_at))
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_log_1 (LIKE outbox_log_0 INCLUDING ALL) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_log_2 (LIKE outbox_log_0 INCLUDING ALL) WITH (autovacuum_vacuum_insert_threshold = -1);

COMMENT ON TABLE outbox_log_0 IS 'A segment of the log.  See the view outbox_log.';
COMMENT ON TABLE outbox_log_1 IS 'A segment of the log.  See the view outbox_log.';
COMMENT ON TABLE outbox_log_2 IS 'A segment of the log.  See the view outbox_log.';

CREATE VIEW outbox_log AS
	SELECT * FROM outbox_log_0 UNION ALL SELECT * FROM outbox_log_1 UNION ALL SELECT * FROM outbox_log_2;
COMMENT ON VIEW outbox_log IS
	'Events, in the order of their positions; only appended to.  An INSERT enqueues an event.';

CREATE TABLE outbox_subscription (
	id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name           text COLLATE "C" NOT NULL UNIQUE,
	url            text NOT NULL,
	topics         text[] NOT NULL,
	secret         text NOT NULL,
	old_secret     text,
	old_until      timestamptz,
	headers        jsonb,
	format         text NOT NULL CHECK (format IN ('standard', 'cloudevents')),
	ordered        boolean NOT NULL,
	max_in_flight  integer NOT NULL CHECK (max_in_flight BETWEEN 1 AND 256),
	timeout        interval NOT NULL,
	retry_schedule interval[] NOT NULL,
	partitions     integer NOT NULL CHECK (partitions BETWEEN 1 AND 64),
	state          text NOT NULL DEFAULT 'active'
		CHECK (state IN ('active', 'paused', 'disabled')),
	reason         text,
	failing_since  timestamptz,
	version        bigint NOT NULL DEFAULT 1,
	created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox_subscription IS
	'Who gets which events, where and how.  Holds secrets: for the owner only.';

/*
 * How far a subscription has read, in each of its partitions.  There are no
 * foreign keys between these tables, since pg_restore -j loads them in any
 * order.  Whoever writes rows of a subscription has locked it, or its lanes.
 *
 * Every row up to position was delivered or is in outbox_delivery, or belongs to one of the
 * stragglers: transactions that were still open when the relay passed them.
 * Of a straggler, rows from straggler_froms on are yet to be read.
 */
CREATE TABLE outbox_lane (
	subscription    bigint NOT NULL,
	lane            integer NOT NULL,
	position        bigint NOT NULL,
	stragglers      xid8[] NOT NULL DEFAULT '{}',
	straggler_froms bigint[] NOT NULL DEFAULT '{}',
	lost            bigint NOT NULL DEFAULT 0,
	delivered       bigint NOT NULL DEFAULT 0,
	rate            double precision NOT NULL DEFAULT 0,
	moved_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (subscription, lane),
	CHECK (pg_catalog.cardinality(stragglers) OPERATOR(pg_catalog.=)
		pg_catalog.cardinality(straggler_froms))
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox_lane IS
	'The position of each subscription in the log.';

/*
 * The exceptions: events that a subscription could not be given at once, each
 * a copy.  waiting for its time (a retry, or deliver_at), parked behind a
 * waiting one of the same key, or dead.  Of those with blocks_key one for each
 * key is waiting and the others are parked, and all later events of the key
 * park behind them.
 */
CREATE TABLE outbox_delivery (
	subscription bigint NOT NULL,
	position     bigint NOT NULL,
	lane         integer NOT NULL,
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
	PRIMARY KEY (subscription, position),
	CHECK ((state = 'waiting') = (due_at IS NOT NULL))
);
CREATE INDEX outbox_delivery_due_at_idx
	ON outbox_delivery (subscription, lane, due_at) WHERE state = 'waiting';
CREATE INDEX outbox_delivery_dead_idx
	ON outbox_delivery (last_at) WHERE state = 'dead';
CREATE INDEX outbox_delivery_key_idx
	ON outbox_delivery (subscription, key, position) WHERE blocks_key;
COMMENT ON TABLE outbox_delivery IS
	'Events that wait for a retry or their time, are parked behind one of the same key, or are dead.';

/* The attempts that failed, for as long as their event is an exception. */
CREATE TABLE outbox_attempt (
	subscription bigint NOT NULL,
	position     bigint NOT NULL,
	attempt      integer NOT NULL,
	at           timestamptz NOT NULL,
	duration_ms  integer NOT NULL,
	status       integer,
	error        text,
	answer       text
);
CREATE INDEX outbox_attempt_event_idx ON outbox_attempt (subscription, position);
COMMENT ON TABLE outbox_attempt IS
	'Failed attempts of the events in outbox_delivery.  Answers may quote payloads: for the owner only.';

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
CREATE TRIGGER outbox_subscription_deleted AFTER DELETE ON outbox_subscription
	REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION outbox_subscription_deleted();
CREATE TRIGGER outbox_subscription_truncated AFTER TRUNCATE ON outbox_subscription
	FOR EACH STATEMENT EXECUTE FUNCTION outbox_subscription_deleted();

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
CREATE TRIGGER outbox_delivery_deleted AFTER DELETE ON outbox_delivery
	REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION outbox_delivery_deleted();

/*
 * Where this outbox is at home: in this cluster, this database, and this very
 * table.  The first subscription makes a row.  A dump carries it along, so a
 * restored outbox has the row of another home, and sends nothing until it is
 * adopted.  Nor does one where that row is still to come: tables are restored
 * in any order, and before all are there events would be skipped.
 */
CREATE TABLE outbox_home (
	identity          uuid PRIMARY KEY,
	system_identifier bigint NOT NULL,
	database          oid NOT NULL,
	created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
	relation          oid NOT NULL DEFAULT 0,
	UNIQUE (system_identifier, database)
);
COMMENT ON TABLE outbox_home IS
	'The cluster and database that may send, and the random identity in webhook ids.';

SELECT pg_catalog.pg_extension_config_dump('outbox_position_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_log_0', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_log_1', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_log_2', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_subscription', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_subscription_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_lane', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_attempt', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_home', '');
/* outbox: the public functions, for producers first, then for operators. */

CREATE FUNCTION outbox_enqueue(
	topic      text,
	payload    jsonb,
	key        text DEFAULT NULL,
	type       text DEFAULT NULL,
	headers    jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_enqueue(text, jsonb, text, text, jsonb, timestamptz) IS
	'Announces an event if and only if this transaction commits; returns its position in the log.';

CREATE FUNCTION outbox_log_insert()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	NEW.position := @extschema@.outbox_enqueue(NEW.topic, NEW.payload, NEW.key,
		NEW.type, NEW.headers, NEW.deliver_at);
	NEW.xid := pg_current_xact_id();
	NEW.created_at := clock_timestamp();
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox_log_insert() IS
	'Internal: an INSERT into outbox_log, or a COPY, enqueues an event; position, xid and time are not the caller''s to choose.';
CREATE TRIGGER outbox_log_insert INSTEAD OF INSERT ON outbox_log
	FOR EACH ROW EXECUTE FUNCTION outbox_log_insert();

CREATE FUNCTION outbox_wake()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_wake() IS
	'Internal: the commit of this transaction wakes the relay.';

CREATE FUNCTION outbox_check_headers(headers jsonb)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_check_headers(jsonb) IS
	'Internal: raises an error unless these HTTP headers can be sent with an event.';

CREATE FUNCTION outbox_start_position(
	OUT "position" bigint, OUT stragglers xid8[], OUT straggler_froms bigint[])
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_start_position() IS
	'Internal: where a subscription that starts with the latest events begins to read.';

CREATE FUNCTION outbox_topic_matches(patterns text[], topic text)
RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_topic_matches(text[], text) IS
	'Does a topic match one of the patterns?  In a pattern * stands for any characters.';

CREATE FUNCTION outbox_lane_number(key text, "position" bigint, partitions integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
	SELECT (coalesce(pg_catalog.hashtextextended(key, 0), position)
		OPERATOR(pg_catalog.&) 65535)::pg_catalog.int4 OPERATOR(pg_catalog.%) partitions
$$;
COMMENT ON FUNCTION outbox_lane_number(text, bigint, integer) IS
	'Internal: which of the partitions of a subscription an event belongs to; the same for all events of a key.';

CREATE FUNCTION outbox_rate(rate double precision, since timestamptz, delivered bigint DEFAULT 0)
RETURNS double precision
LANGUAGE sql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT delivered / 10.0 + CASE
		WHEN rate < 0.01 OR clock_timestamp() - since > '1 min' THEN 0
		ELSE rate * exp(- greatest(0, extract(epoch FROM clock_timestamp() - since)) / 10) END
$$;
COMMENT ON FUNCTION outbox_rate(double precision, timestamptz, bigint) IS
	'Internal: events a second, averaged over the last ten seconds or so, now that so many more were delivered.';

CREATE FUNCTION outbox_milliseconds(span interval)
RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS 'SELECT (pg_catalog.extract(''epoch'', span) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8';
COMMENT ON FUNCTION outbox_milliseconds(interval) IS
	'Internal: an interval in milliseconds.';

/* Raises an error for the first argument of outbox_subscribe that is not acceptable. */
CREATE FUNCTION outbox_check_subscription(
	name text, topics text[], format text, max_in_flight integer,
	timeout interval, retry_schedule interval[], start text, ordered boolean,
	partitions integer)
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
		WHEN partitions IS NULL THEN 'partitions' END;
	wrong text := CASE
		WHEN name = '' THEN 'name must not be empty'
		WHEN octet_length(name) > 255 THEN 'name is too long'
		WHEN cardinality(topics) NOT BETWEEN 1 AND 100 THEN 'topics must have 1 to 100 elements'
		WHEN EXISTS (SELECT FROM unnest(topics) t WHERE t IS NULL OR octet_length(t) NOT BETWEEN 1 AND 255)
			THEN 'each of topics must have 1 to 255 bytes'
		WHEN format NOT IN ('standard', 'cloudevents') THEN 'format must be standard or cloudevents'
		WHEN max_in_flight NOT BETWEEN 1 AND 256 THEN 'max_in_flight must be from 1 to 256'
		WHEN NOT timeout BETWEEN '1 ms' AND '1 h' THEN 'timeout must be from 1 ms to 1 h'
		WHEN cardinality(retry_schedule) NOT BETWEEN 1 AND 100 THEN 'retry_schedule must have 1 to 100 elements'
		WHEN EXISTS (SELECT FROM unnest(retry_schedule) r WHERE r IS NULL OR NOT r BETWEEN '0' AND '366 days')
			THEN 'each of retry_schedule must be from 0 to 366 days'
		WHEN retry_schedule[array_lower(retry_schedule, 1)] <> '0'
			THEN 'the first of retry_schedule must be 0: an event is sent at once'
		WHEN start NOT IN ('latest', 'earliest') THEN 'start must be latest or earliest'
		WHEN partitions NOT BETWEEN 1 AND 64 THEN 'partitions must be from 1 to 64' END;
BEGIN
	IF missing IS NOT NULL THEN
		RAISE EXCEPTION '% must not be null', missing USING ERRCODE = '22004';
	ELSIF wrong IS NOT NULL THEN
		RAISE EXCEPTION '%', wrong USING ERRCODE = '22023';
	END IF;
END
$$;
COMMENT ON FUNCTION outbox_check_subscription(text, text[], text, integer, interval, interval[], text, boolean, integer) IS
	'Internal: checks arguments of outbox_subscribe.';

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
COMMENT ON FUNCTION outbox_subscribe(text, text, text[], text, jsonb, text, boolean, integer, interval, interval[], text, integer) IS
	'Sends events of the topics to a URL from now on; returns the secret that signs them.';

CREATE FUNCTION outbox_subscription_id(name text)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	found_id bigint;
BEGIN
	IF name IS NULL THEN
		RAISE EXCEPTION 'name must not be null' USING ERRCODE = '22004';
	END IF;
	SELECT s.id INTO found_id FROM @extschema@.outbox_subscription s
	WHERE s.name = outbox_subscription_id.name;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'subscription "%" does not exist', name
			USING ERRCODE = '42704';
	END IF;
	RETURN found_id;
END
$$;
COMMENT ON FUNCTION outbox_subscription_id(text) IS
	'Internal: finds a subscription by name, or raises an error.';

CREATE FUNCTION outbox_alter(
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
COMMENT ON FUNCTION outbox_alter(text, text, text[], jsonb, text, integer, interval, interval[]) IS
	'Changes what is given of a subscription, for events that are read from now on; its position and what waits stay.';

CREATE FUNCTION outbox_unsubscribe(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	DELETE FROM @extschema@.outbox_subscription
	WHERE id = @extschema@.outbox_subscription_id(outbox_unsubscribe.name);
	PERFORM @extschema@.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_unsubscribe(text) IS
	'Ends a subscription and drops what was not delivered to it, dead letters included.';

CREATE FUNCTION outbox_pause(name text, reason text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE @extschema@.outbox_subscription s
	SET state = 'paused', reason = outbox_pause.reason
	WHERE id = @extschema@.outbox_subscription_id(outbox_pause.name);
	PERFORM @extschema@.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_pause(text, text) IS
	'Stops sending to a subscription until outbox_resume; what is in flight is finished.';

CREATE FUNCTION outbox_resume(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE @extschema@.outbox_subscription s
	SET state = 'active', reason = NULL
	WHERE id = @extschema@.outbox_subscription_id(outbox_resume.name);
	PERFORM @extschema@.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_resume(text) IS
	'Goes on with a subscription that was paused, or disabled by an answer of 410.';

CREATE FUNCTION outbox_redrive(name text, ids bigint[] DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription_id bigint := @extschema@.outbox_subscription_id(name);
	redriven        bigint;
BEGIN
	PERFORM FROM @extschema@.outbox_lane
	WHERE subscription = subscription_id FOR UPDATE;  -- the relay is not settling

	-- Of the events of a key one waits, and the others are parked behind it.
	WITH chosen AS (
		SELECT d.position, s.ordered AND d.key IS NOT NULL AS in_order,
			row_number() OVER (PARTITION BY d.key ORDER BY d.position) > 1
			OR EXISTS (SELECT FROM @extschema@.outbox_delivery b
				WHERE b.subscription = s.id AND b.key = d.key AND b.blocks_key) AS behind
		FROM @extschema@.outbox_delivery d
		JOIN @extschema@.outbox_subscription s ON s.id = d.subscription
		WHERE s.id = subscription_id AND d.state = 'dead'
			AND (ids IS NULL OR d.position = ANY (ids)))
	UPDATE @extschema@.outbox_delivery d
	SET state = CASE WHEN c.in_order AND c.behind THEN 'parked' ELSE 'waiting' END,
		blocks_key = c.in_order,
		attempts = 0,
		due_at = CASE WHEN NOT (c.in_order AND c.behind) THEN clock_timestamp() END
	FROM chosen c
	WHERE d.subscription = subscription_id AND d.position = c.position;
	GET DIAGNOSTICS redriven = ROW_COUNT;
	PERFORM @extschema@.outbox_wake();
	RETURN redriven;
END
$$;
COMMENT ON FUNCTION outbox_redrive(text, bigint[]) IS
	'Sends dead letters again, all of them or those at the given positions, in order per key; returns how many.';

CREATE FUNCTION outbox_discard(name text, ids bigint[] DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	discarded bigint;
BEGIN
	DELETE FROM @extschema@.outbox_delivery d
	WHERE d.subscription = @extschema@.outbox_subscription_id(outbox_discard.name)
		AND d.state = 'dead' AND (ids IS NULL OR d.position = ANY (ids));
	GET DIAGNOSTICS discarded = ROW_COUNT;
	RETURN discarded;
END
$$;
COMMENT ON FUNCTION outbox_discard(text, bigint[]) IS
	'Drops dead letters, all of them or those at the given positions; returns how many.';

CREATE FUNCTION outbox_replay(
	name          text,
	from_position bigint DEFAULT NULL,
	since         timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription_id bigint := @extschema@.outbox_subscription_id(name);
	first           bigint;
BEGIN
	IF (from_position IS NULL) = (since IS NULL) THEN
		RAISE EXCEPTION 'one of from_position and since must be given'
			USING ERRCODE = '22023';
	END IF;
	PERFORM FROM @extschema@.outbox_lane
	WHERE subscription = subscription_id FOR UPDATE;  -- the relay is not settling
	SELECT e.position INTO first FROM @extschema@.outbox_log e
	WHERE e.position >= coalesce(from_position, 0)
		AND e.created_at >= coalesce(since, '-infinity')
	ORDER BY e.position LIMIT 1;
	UPDATE @extschema@.outbox_lane SET position = first - 1
	WHERE subscription = subscription_id AND position >= first;
	IF NOT FOUND THEN
		RETURN NULL;
	END IF;
	-- What is read again is not dead any more.
	DELETE FROM @extschema@.outbox_delivery
	WHERE subscription = subscription_id AND state = 'dead' AND position >= first;
	PERFORM @extschema@.outbox_wake();
	RETURN first;
END
$$;
COMMENT ON FUNCTION outbox_replay(text, bigint, timestamptz) IS
	'Sends events of the log again, from a position or a time on; returns the first position, null if all that is yet to be sent for the first time.';

CREATE FUNCTION outbox_rotate_secret(
	name    text,
	overlap interval DEFAULT '24 h',
	secret  text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription_id bigint := @extschema@.outbox_subscription_id(name);
	new_secret      text := coalesce(secret, @extschema@.outbox_secret_generate());
BEGIN
	IF overlap IS NULL THEN
		RAISE EXCEPTION 'overlap must not be null' USING ERRCODE = '22004';
	ELSIF NOT overlap BETWEEN '0' AND '366 days' THEN
		RAISE EXCEPTION 'overlap must be from 0 to 366 days' USING ERRCODE = '22023';
	END IF;
	PERFORM @extschema@.outbox_check_secret(new_secret);
	UPDATE @extschema@.outbox_subscription s
	SET old_secret = s.secret, old_until = clock_timestamp() + overlap, secret = new_secret,
		version = s.version + 1
	WHERE id = subscription_id;
	PERFORM @extschema@.outbox_wake();
	RETURN new_secret;
END
$$;
COMMENT ON FUNCTION outbox_rotate_secret(text, interval, text) IS
	'Signs with a new secret, and until the overlap is over with the present one as well; returns the new one.';

CREATE FUNCTION outbox_adopt(keep_identity boolean DEFAULT false)
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
COMMENT ON FUNCTION outbox_adopt(boolean) IS
	'Makes this database, a restored copy, the home of the outbox: it sends from now on, under a new identity unless the one of the original is to be kept.';

CREATE FUNCTION outbox_flights(OUT subscription bigint, OUT in_flight integer)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_flights() IS
	'Internal: requests that are out, for each lane that a relay serves.';

CREATE VIEW outbox_dead AS
SELECT s.name AS subscription, d.position, d.topic, d.key, d.type,
	d.attempts, d.last_at, d.last_status, d.last_error, d.created_at
FROM outbox_delivery d JOIN outbox_subscription s ON s.id = d.subscription
WHERE d.state = 'dead';
COMMENT ON VIEW outbox_dead IS
	'Events that were given up: every attempt of the schedule failed.  outbox_redrive sends them again.';

CREATE VIEW outbox_attempts AS
SELECT s.name AS subscription, a.position, a.attempt, a.at,
	a.duration_ms::double precision * interval '1 ms' AS duration, a.status, a.error, a.answer
FROM outbox_attempt a JOIN outbox_subscription s ON s.id = a.subscription;
COMMENT ON VIEW outbox_attempts IS
	'Failed attempts at events that are not delivered yet, or dead.  For the owner only: answers may quote payloads.';

/* The oldest event that a lane has not read stands right behind its position. */
CREATE VIEW outbox_subscriptions AS
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
COMMENT ON VIEW outbox_subscriptions IS
	'Each subscription: its state, how far behind it is, and what could not be delivered to it.';
/*
 * outbox: how space of the log comes back.  The log is a ring of three segments
 * (base/ring.c).  A segment is closed when it has taken events for half of the
 * retention, and truncated once it has been closed for as long as the retention
 * and nobody is to read it any more.  Each step is a short transaction of the sweeper's.
 */

CREATE FUNCTION outbox_switch()
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
COMMENT ON FUNCTION outbox_switch() IS
	'Internal: opens the next segment of the log; false: there is none, or the ring is busy.';

CREATE FUNCTION outbox_lanes_behind(last_position bigint)
RETURNS SETOF outbox_lane
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT l.* FROM @extschema@.outbox_lane l
	WHERE l.position < last_position
		OR EXISTS (SELECT FROM unnest(l.straggler_froms) f WHERE f <= last_position)
$$;
COMMENT ON FUNCTION outbox_lanes_behind(bigint) IS
	'Internal: who has yet to read something up to this position, as far as is written down.';

/*
 * Lanes cannot move back, none can be added, and nobody else truncates, until
 * this is committed.  Whoever has rows in the segment and is still open has it
 * locked.
 */
CREATE FUNCTION outbox_truncate()
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
COMMENT ON FUNCTION outbox_truncate() IS
	'Internal: truncates the oldest segment of the log; false: there is none, somebody has yet to read it, or it is locked.';

/*
 * A subscription that holds back more of the log than it may loses what it has
 * not read.  Its relay notices that the lane was moved, and reads on from there.
 * Nothing is given up that could not be truncated anyway, since an open
 * transaction has rows there.
 */
CREATE FUNCTION outbox_pass_over()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	segment    smallint;
	upto       bigint;
	passed     record;
	any_passed boolean := false;
BEGIN
	SELECT slot, last_position INTO segment, upto FROM @extschema@.outbox_ring
		WHERE state = 'old' ORDER BY generation LIMIT 1;
	IF segment IS NULL THEN
		RETURN false;
	END IF;
	EXECUTE 'LOCK TABLE @extschema@.outbox_log_' || segment || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
	FOR passed IN
		WITH behind AS (
			SELECT l.subscription, l.lane, l.position FROM @extschema@.outbox_lanes_behind(upto) l)
		UPDATE @extschema@.outbox_lane l
		SET position = greatest(l.position, upto),
			lost = l.lost + greatest(upto - b.position, 0),
			straggler_froms = ARRAY(SELECT greatest(k.f, upto + 1)
				FROM unnest(l.straggler_froms) WITH ORDINALITY AS k(f, number) ORDER BY k.number)
		FROM behind b, @extschema@.outbox_subscription s
		WHERE b.subscription = l.subscription AND b.lane = l.lane AND s.id = l.subscription
		RETURNING s.name, b.position
	LOOP
		RAISE WARNING 'subscription "%" loses events up to position %', passed.name, upto
			USING DETAIL = format('It had read up to position %s, and the log is larger than idempotency.outbox_keep_size.',
				passed.position);
		any_passed := true;
	END LOOP;
	RETURN any_passed;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION outbox_pass_over() IS
	'Internal: makes subscriptions pass over the oldest segment of the log, unread; false: nobody was behind, or the lanes are locked.';

CREATE FUNCTION outbox_warn_behind()
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
COMMENT ON FUNCTION outbox_warn_behind() IS
	'Internal: says once for each segment who is behind, when the log has reached half of its limit.';

CREATE FUNCTION outbox_log_size()
RETURNS numeric
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT sum(pg_total_relation_size(('@extschema@.outbox_log_' || slot)::regclass))
	FROM @extschema@.outbox_ring
$$;
COMMENT ON FUNCTION outbox_log_size() IS
	'Internal: bytes that the log takes, indexes included.';

/*
 * The limit of size goes before the retention: beyond it the oldest segment
 * is given up at once.  So that one is there to be given up, segments are then
 * closed at a quarter of it.
 */
CREATE FUNCTION outbox_expire_log()
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
COMMENT ON FUNCTION outbox_expire_log() IS
	'Internal: the next step of returning space of the log, if one is due; true: call it again.';

CREATE FUNCTION outbox_expire(max_events integer DEFAULT 1000)
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
COMMENT ON FUNCTION outbox_expire(integer) IS
	'Internal: the next step of forgetting events, dead letters and secrets past their time; true: call it again.';
/*
 * The relay's SQL functions: what a webhook is made of is checked and signed
 * here.  The checks are called by outbox_subscribe().
 */

CREATE FUNCTION outbox_check_url(url text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_check_url(text) IS
	'Internal: raise an error unless events can be sent to this URL.';

CREATE FUNCTION outbox_check_secret(secret text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_check_secret(text) IS
	'Internal: raise an error unless this is a secret that can sign events.';

CREATE FUNCTION outbox_secret_generate()
RETURNS text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_secret_generate() IS
	'A new random secret for signing events, as Standard Webhooks writes it.';

CREATE FUNCTION outbox_signature(secret text, id text, "timestamp" bigint, body text)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_signature(text, text, bigint, text) IS
	'The Standard Webhooks signature of a body, for a receiver to compare webhook-signature with.';
/*
 * stock: types and tables
 *
 * stock_log is the truth: every change of a quantity appends one row per item,
 * and no row is ever changed.  stock_item has an item's root record: the sums of
 * those rows that were compacted and have moved to the history.  stock_hold has
 * the lines of open reservations and nothing else.  For every item, always, the
 * root record and the log together make
 *
 *     available = received + adjusted - confirmed - reserved >= 0
 *     reserved  = sum of the quantities of its holds
 *
 * Only the functions of this room write here; who does it by other means has the
 * counters in shared memory dropped (guard.c).  stock_verify compares it all.
 */

CREATE TYPE stock_outcome AS ENUM ('reserved', 'insufficient', 'unknown_sku');

CREATE TYPE stock_settlement AS ENUM
	('done', 'expired', 'already_confirmed', 'already_cancelled', 'already_reserved',
	 'insufficient', 'unknown');

CREATE TYPE stock_change AS ENUM
	('receive', 'adjust', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate');

CREATE TYPE stock_line AS (
	sku         text COLLATE "C",
	quantity    bigint
);

CREATE TYPE stock_shortage AS (
	sku         text COLLATE "C",
	wanted      bigint,
	available   bigint,
	missing     bigint
);

CREATE TYPE stock_reservation AS (
	outcome     stock_outcome,
	expires_at  timestamptz,
	shortages   stock_shortage[]
);

COMMENT ON TYPE stock_outcome IS
	'Whether stock_reserve has reserved.';
COMMENT ON TYPE stock_settlement IS
	'What stock_confirm, stock_cancel, stock_extend and stock_reinstate answer.';
COMMENT ON TYPE stock_change IS
	'What a row of stock_log did to the item.';
COMMENT ON TYPE stock_line IS
	'One line of an order: so many pieces of one item.';
COMMENT ON TYPE stock_shortage IS
	'A line that could not be reserved: missing = wanted - available.';
COMMENT ON TYPE stock_reservation IS
	'What stock_reserve answers.';

/*
 * DROP EXTENSION locks relations in the order of their creation, and our code
 * in the same: the log before the others.  The columns of fixed width come
 * first.  line is the number of a line in its reservation, once it is settled:
 * only how a reservation went on is ever looked up by its name, and the
 * row that made it, which costs the most time, is in one index only.
 */
CREATE TABLE stock_log (
	id          bigint GENERATED ALWAYS AS IDENTITY,
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	change      stock_change NOT NULL,
	line        smallint,
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C",
	actor       text,
	note        text,
	PRIMARY KEY (sku, id),
	CHECK (quantity > 0 OR (change = 'adjust' AND quantity < 0)),
	CHECK ((reservation IS NULL) = (change IN ('receive', 'adjust'))),
	CHECK ((line IS NULL) = (change IN ('receive', 'adjust', 'reserve')))
);
CREATE INDEX stock_log_settled ON stock_log (reservation) WHERE line IS NOT NULL;

COMMENT ON TABLE stock_log IS
	'Changes of items that are not in their root records yet; only appended to. See the view stock_history.';
COMMENT ON COLUMN stock_log.actor IS
	'Who did it; null where nobody did, as when a reservation expires.';

CREATE TABLE stock_hold (
	quantity    bigint NOT NULL CHECK (quantity > 0),
	expires_at  timestamptz NOT NULL,
	line        smallint CHECK (line >= 0),
	reservation text COLLATE "C",
	sku         text COLLATE "C" NOT NULL,
	PRIMARY KEY (reservation, line)
);

/* The sweeper asks for the oldest lapsed holds, a reserve for an item's. */
CREATE INDEX stock_hold_expires_at ON stock_hold (expires_at);
CREATE INDEX stock_hold_sku_expires_at ON stock_hold (sku, expires_at);

COMMENT ON TABLE stock_hold IS
	'One row per line of an open reservation.';

/*
 * Sums of many bigints may be larger than one: what was ever received, say.
 */
CREATE TABLE stock_item (
	sku         text COLLATE "C" CONSTRAINT stock_item_pkey PRIMARY KEY,
	received    numeric NOT NULL DEFAULT 0 CHECK (received >= 0),
	adjusted    numeric NOT NULL DEFAULT 0,
	confirmed   numeric NOT NULL DEFAULT 0 CHECK (confirmed >= 0),
	reserved    numeric NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

COMMENT ON TABLE stock_item IS
	'One row per item, its root record: the sums of its compacted rows.';

/*
 * Which table of the history is in use (base/ring.c).  It is not dumped: a
 * restored database begins with a new ring, and each table is read all the same.
 */
CREATE TABLE stock_ring (LIKE idem_ring INCLUDING ALL);
COMMENT ON TABLE stock_ring IS
	'The tables of the history of stock: rows that are compacted go to the current one, old ones are truncated once idempotency.stock_history is over.';
INSERT INTO stock_ring (slot, state, generation, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()), (1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

CREATE TABLE stock_history_0 (
	id          bigint NOT NULL,
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL,
	change      stock_change NOT NULL,
	line        smallint,
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C",
	actor       text,
	note        text
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX stock_history_0_settled ON stock_history_0 (reservation) WHERE line IS NOT NULL;
CREATE TABLE stock_history_1 (LIKE stock_history_0 INCLUDING ALL) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE stock_history_2 (LIKE stock_history_0 INCLUDING ALL) WITH (autovacuum_vacuum_insert_threshold = -1);

COMMENT ON TABLE stock_history_0 IS 'Compacted changes of items.  See the view stock_history.';
COMMENT ON TABLE stock_history_1 IS 'Compacted changes of items.  See the view stock_history.';
COMMENT ON TABLE stock_history_2 IS 'Compacted changes of items.  See the view stock_history.';

CREATE VIEW stock_history AS
	SELECT * FROM stock_log UNION ALL SELECT * FROM stock_history_0
	UNION ALL SELECT * FROM stock_history_1 UNION ALL SELECT * FROM stock_history_2;
COMMENT ON VIEW stock_history IS
	'Every change of every item that is still kept: who, when, why.';

/*
 * The levels as a caller finds them: what a lapsed hold kept is free, whether
 * it has been settled or not.  The subselect makes the time one value for the
 * whole query, which an index can be searched with.
 */
CREATE VIEW stock_levels AS
	SELECT item.sku,
		   (item.received + item.adjusted - item.confirmed - item.reserved
			+ logged.received + logged.adjusted - logged.confirmed - logged.reserved
			+ lapsed.quantity)::bigint AS available,
		   (item.reserved + logged.reserved - lapsed.quantity)::bigint AS reserved,
		   item.received + logged.received AS received,
		   item.adjusted + logged.adjusted AS adjusted,
		   item.confirmed + logged.confirmed AS confirmed
	FROM stock_item item
	CROSS JOIN LATERAL (
		SELECT coalesce(sum(entry.quantity) FILTER (WHERE entry.change = 'receive'), 0) AS received,
			   coalesce(sum(entry.quantity) FILTER (WHERE entry.change = 'adjust'), 0) AS adjusted,
			   coalesce(sum(entry.quantity) FILTER (WHERE entry.change = 'confirm'), 0) AS confirmed,
			   coalesce(sum(CASE
					WHEN entry.change IN ('reserve', 'reinstate') THEN entry.quantity
					WHEN entry.change IN ('confirm', 'cancel', 'expire') THEN -entry.quantity
				   END), 0) AS reserved
		FROM stock_log entry
		WHERE entry.sku = item.sku
	) logged
	CROSS JOIN LATERAL (
		SELECT coalesce(sum(hold.quantity), 0) AS quantity
		FROM stock_hold hold
		WHERE hold.sku = item.sku
		  AND hold.expires_at <= (SELECT clock_timestamp())
	) lapsed;

COMMENT ON VIEW stock_levels IS
	'Every item: what is available, what is reserved, and the sums behind it.';

SELECT pg_catalog.pg_extension_config_dump('stock_item', '');
SELECT pg_catalog.pg_extension_config_dump('stock_hold', '');
SELECT pg_catalog.pg_extension_config_dump('stock_log', '');
SELECT pg_catalog.pg_extension_config_dump('stock_log_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('stock_history_0', '');
SELECT pg_catalog.pg_extension_config_dump('stock_history_1', '');
SELECT pg_catalog.pg_extension_config_dump('stock_history_2', '');
/*
 * stock: the public functions, and what workers call.  EXECUTE is the gate; the C
 * code checks no other privilege.
 */

CREATE FUNCTION stock_check_sku(sku text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_check_sku(text) IS
	'Internal: raises an error unless this can be a sku.';

CREATE FUNCTION stock_lines(lines jsonb)
RETURNS stock_line[]
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_lines(jsonb) IS
	'The lines of an order, written as {"sku": quantity, ...}, for stock_reserve.';

/* ---- stock in and corrections ---- */

CREATE FUNCTION stock_receive(
	sku      text,
	quantity bigint,
	note     text DEFAULT NULL,
	OUT available bigint)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_receive(text, bigint, text) IS
	'Takes stock in; creates the item; returns what is available now.';

CREATE FUNCTION stock_adjust(
	sku   text,
	delta bigint,
	note  text,
	OUT available bigint)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_adjust(text, bigint, text) IS
	'Corrects the stock of an item after a count, never below what is available; returns what is available now.';

/* ---- reservations ---- */

CREATE FUNCTION stock_reserve(
	lines       stock_line[],
	reservation text,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT session_user)
RETURNS stock_reservation
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'stock_reserve_lines';
COMMENT ON FUNCTION stock_reserve(stock_line[], text, interval, text) IS
	'Reserves all these lines or none, and lists every one that fell short; the same call again books nothing.';

CREATE FUNCTION stock_reserve(
	sku         text,
	quantity    bigint,
	reservation text,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT session_user)
RETURNS stock_reservation
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_reserve(text, bigint, text, interval, text) IS
	'Reserves a quantity of one item until it is confirmed, cancelled or expires; the same call again books nothing.';

CREATE FUNCTION stock_confirm(
	reservation text,
	skus        text[] DEFAULT NULL,
	OUT outcome stock_settlement)
RETURNS stock_settlement
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_confirm(text, text[]) IS
	'Makes a reservation final, or some of its lines: the quantities have left the stock.';

CREATE FUNCTION stock_cancel(
	reservation text,
	skus        text[] DEFAULT NULL,
	OUT outcome stock_settlement)
RETURNS stock_settlement
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_cancel(text, text[]) IS
	'Gives up a reservation, or some of its lines: the quantities are available again.';

CREATE FUNCTION stock_extend(
	reservation text,
	ttl         interval DEFAULT NULL,
	OUT outcome    stock_settlement,
	OUT expires_at timestamptz)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_extend(text, interval) IS
	'Lets an open reservation expire so long from now, and never sooner than it did.';

CREATE FUNCTION stock_reinstate(
	reservation text,
	ttl         interval DEFAULT NULL,
	OUT outcome    stock_settlement,
	OUT expires_at timestamptz,
	OUT shortages  stock_shortage[])
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_reinstate(text, interval) IS
	'Takes the cancelling of a reservation back, if all it held is still free.';

CREATE FUNCTION stock_expire(max_holds integer DEFAULT 1000)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_expire(integer) IS
	'Internal: the sweeper frees the quantities of lapsed reservations, oldest first; returns how many holds.';

/* ---- events ---- */

CREATE FUNCTION stock_announce(topic text, reservation text, skus text[], quantities bigint[])
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
COMMENT ON FUNCTION stock_announce(text, text, text[], bigint[]) IS
	'Internal: an event about lines of a reservation.';

CREATE FUNCTION stock_announce_available(sku text, available bigint)
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
COMMENT ON FUNCTION stock_announce_available(text, bigint) IS
	'Internal: an event about an item that is available again.';

/* ---- the tables changed by other hands: guard.c ---- */

CREATE FUNCTION stock_guard()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_guard() IS
	'Internal: drops the counters of stock when somebody else has changed the tables.';

DO $$
DECLARE
	guarded text;
BEGIN
	FOREACH guarded IN ARRAY '{stock_log,stock_item}'::pg_catalog.text[] LOOP
		EXECUTE pg_catalog.format('CREATE TRIGGER stock_guard BEFORE INSERT OR UPDATE OR DELETE ON %s
			FOR EACH ROW EXECUTE FUNCTION stock_guard()', guarded);
		EXECUTE pg_catalog.format('CREATE TRIGGER stock_guard_truncate BEFORE TRUNCATE ON %s
			FOR EACH STATEMENT EXECUTE FUNCTION stock_guard()', guarded);
		EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ALWAYS TRIGGER stock_guard', guarded);
		EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ALWAYS TRIGGER stock_guard_truncate', guarded);
	END LOOP;
END
$$;

/* ---- levels and verification ---- */

CREATE FUNCTION stock_level(sku text)
RETURNS TABLE (available bigint, reserved bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 1
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
BEGIN
	PERFORM @extschema@.stock_check_sku(sku);
	RETURN QUERY
		SELECT level.available, level.reserved
		FROM @extschema@.stock_levels level
		WHERE level.sku = stock_level.sku;
END
$$;
COMMENT ON FUNCTION stock_level(text) IS
	'What of an item is available and what is reserved; no row for an unknown sku.';

CREATE FUNCTION stock_counters(
	OUT sku       text,
	OUT available bigint,
	OUT touches   bigint,
	OUT in_use    boolean)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_counters() IS
	'Internal: what is available of items, by the counters in shared memory.';

/*
 * What root records and log say, and the holds beside them.  Here a lapsed
 * hold counts as reserved until it is settled, since the books are compared as
 * they are written.
 */
CREATE VIEW stock_books AS
	SELECT sku, item.sku IS NOT NULL AS has_item,
		   coalesce(item.received + item.adjusted - item.confirmed - item.reserved, 0)
		   + coalesce(logged.available, 0) AS available,
		   coalesce(item.reserved, 0) + coalesce(logged.reserved, 0) AS reserved,
		   coalesce(held.reserved, 0) AS held
	FROM stock_item item
	FULL JOIN (
		SELECT entry.sku,
			   sum(CASE
					WHEN entry.change IN ('receive', 'adjust', 'cancel', 'expire') THEN entry.quantity
					WHEN entry.change IN ('reserve', 'reinstate') THEN -entry.quantity
					ELSE 0
				   END) AS available,
			   sum(CASE
					WHEN entry.change IN ('reserve', 'reinstate') THEN entry.quantity
					WHEN entry.change IN ('confirm', 'cancel', 'expire') THEN -entry.quantity
					ELSE 0
				   END) AS reserved
		FROM stock_log entry
		GROUP BY entry.sku
	) logged USING (sku)
	FULL JOIN (
		SELECT hold.sku, sum(hold.quantity) AS reserved
		FROM stock_hold hold
		GROUP BY hold.sku
	) held USING (sku);
COMMENT ON VIEW stock_books IS
	'Internal: every item as its root record and log have it, and as its holds do.';

/*
 * The counters are read before and after the snapshot is taken: one that nobody
 * has touched in between must be what the log says.  A snapshot that is kept for
 * several statements is no use for that.
 */
CREATE FUNCTION stock_verify(
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
COMMENT ON FUNCTION stock_verify(text) IS
	'Recomputes every item, or one, from its root record and log, and compares it with its holds and its counter; detail says what differs.';
/*
 * stock: how the log is kept short.  Once an item has more rows in the log than
 * idempotency.stock_compact_after, they are added to its root record and move to
 * the history, in one transaction.  Nobody who reserves waits for that, and no
 * sum changes: whoever adds an item up sees each row in one of the two.
 *
 * The history serves to look back, and to remember how a reservation ended.  It
 * is a ring of tables (base/ring.c), and only the compaction writes to it.
 */

CREATE FUNCTION stock_crowded(rows integer)
RETURNS SETOF text
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_crowded(integer) IS
	'Internal: the items in use whose log has more rows, about.';

CREATE FUNCTION stock_count_compacted(sku text, rows integer, complete boolean)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_count_compacted(text, integer, boolean) IS
	'Internal: so many rows of an item have left the log, or all of them.';

CREATE FUNCTION stock_archive(sku text, rows jsonb)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT @extschema@.outbox_enqueue(
		current_setting('idempotency.stock_archive_topic'),
		jsonb_build_object('sku', stock_archive.sku, 'rows', stock_archive.rows),
		stock_archive.sku, NULL::text, NULL::jsonb, NULL::timestamptz)
$$;
COMMENT ON FUNCTION stock_archive(text, jsonb) IS
	'Internal: an event with some compacted rows of an item.';

/*
 * The rows that are seen are those of transactions that have ended, up to a
 * number, oldest first: a smaller id that turns up later is left for the next
 * time.  Who has the root record compacts; a second one goes on to another item.
 * The smallest id spares the second walk over what earlier ones have removed.
 */
CREATE FUNCTION stock_compact_item(sku text, max_rows integer)
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
COMMENT ON FUNCTION stock_compact_item(text, integer) IS
	'Internal: adds the oldest rows of an item''s log to its root record; returns how many.';

/*
 * An item whose rows cannot be archived, or added up, does not keep the others.
 */
CREATE FUNCTION stock_compact_next(max_rows integer)
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
COMMENT ON FUNCTION stock_compact_next(integer) IS
	'Internal: the next step of compaction, for stock_compact.';

CREATE FUNCTION stock_compact(max_rows integer DEFAULT 1000)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_compact(integer) IS
	'Internal: the sweeper compacts the logs of items that have become long; true: call it again.';

/*
 * A table of the history takes rows for half of the time that they are kept.
 */
CREATE FUNCTION stock_forget(max_rows integer DEFAULT 1000)
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
COMMENT ON FUNCTION stock_forget(integer) IS
	'Internal: the next step of dropping what the history has kept for long enough; true: call it again.';
/*
 * Last part of the install script: who may do what, and a word to the launcher.
 * Nothing is for PUBLIC.  The names of functions are granted with all their
 * variants; EXECUTE is the gate, and no privilege on tables is needed.
 */

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

CREATE FUNCTION idempotency_grant(role regrole)
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
COMMENT ON FUNCTION idempotency_grant(regrole) IS
	'Lets an application role claim keys, enqueue events and reserve stock, and no more.';

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
