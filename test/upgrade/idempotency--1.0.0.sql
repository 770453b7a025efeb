\echo Use "CREATE EXTENSION idempotency" to load this file. \quit

/*
 * base: functions that all modules use.  First part of the install script.
 *
 * Everything that is not public is in a schema of its own: tables, sequences
 * and the functions whose comments begin with "Internal".
 */

CREATE SCHEMA idempotency_internal;
COMMENT ON SCHEMA idempotency_internal IS
	'Internal objects of the extension idempotency. They can change with any version.';

/*
 * A public function in PL/pgSQL first calls idempotency_enter().  It and the
 * functions that it calls raise errors by idempotency_raise(), which leaves the
 * internal stack out of them (base/errors.c).
 */
CREATE FUNCTION idempotency_internal.idempotency_enter()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_enter() IS
	'Internal: the context of errors leaves out what is within the function that performs this.';

CREATE FUNCTION idempotency_internal.idempotency_raise(
	sqlstate text, message text, hint text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_raise(text, text, text) IS
	'Internal: raises an error, on account of the caller of a public function.';

CREATE FUNCTION idempotency_internal.idempotency_require_preload(what text)
RETURNS void
LANGUAGE C STABLE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_require_preload(text) IS
	'Internal: raises an error unless the library is preloaded.';

CREATE FUNCTION idempotency_internal.idempotency_prevent_write(function text)
RETURNS void
LANGUAGE C STABLE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_prevent_write(text) IS
	'Internal: raises an error unless a function that writes may be called.';

CREATE FUNCTION idempotency_internal.idempotency_refuse_trigger(function text)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RAISE EXCEPTION 'function "%" is for a trigger of extension idempotency only', function
		USING ERRCODE = 'trigger_protocol_violated';
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_refuse_trigger(text) IS
	'Internal: the error of a trigger function that is called as another trigger than it is.';

/*
 * Steps that all rings of tables share (base/ring.c).  The argument ring is the
 * state table.  The steps wait for a lock for at most 0.1 s; then they return
 * false and are tried again later.
 */

CREATE FUNCTION idempotency_internal.idempotency_ring_changed(ring regclass)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_ring_changed(regclass) IS
	'Internal: makes every session read the map of a ring again once this transaction has committed.';

CREATE FUNCTION idempotency_internal.idempotency_next_xid()
RETURNS xid8
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_next_xid() IS
	'Internal: later than every transaction that has written so far.';

CREATE FUNCTION idempotency_internal.idempotency_horizon(ring regclass)
RETURNS xid8
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_horizon(regclass) IS
	'Internal: all transactions before this one have ended for every snapshot in this database, those of prepared transactions and replication slots included.';

CREATE FUNCTION idempotency_internal.idempotency_ring_switch(ring regclass)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
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
	PERFORM pg_current_xact_id();
	quiet := idempotency_internal.idempotency_next_xid();
	EXECUTE format('UPDATE %s
		SET state = %L, closed_at = clock_timestamp(), quiet_xid = $1
		WHERE state = %L', ring, 'old', 'current') USING quiet;
	EXECUTE format('UPDATE %s
		SET state = %L, opened_at = clock_timestamp(),
			segment = (SELECT max(segment) + 1 FROM %1$s)
		WHERE slot = $1', ring, 'current') USING next;
	PERFORM idempotency_internal.idempotency_ring_changed(ring);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_ring_switch(regclass) IS
	'Internal: opens an empty table of a ring as the current one; false: there is none, or the ring is busy.';

/*
 * The next transaction id is read after this transaction has got its own.  A
 * snapshot for which all earlier transactions have ended therefore shows the
 * table as retired, and all rows that were moved out of it in the new place.
 */
CREATE FUNCTION idempotency_internal.idempotency_ring_retire(
	ring regclass, unused bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	retired bigint;
BEGIN
	EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', ring);
	PERFORM pg_current_xact_id();
	EXECUTE format('UPDATE %s
		SET state = %L, closed_at = clock_timestamp(), quiet_xid = $1
		WHERE segment = $2 AND state = %L', ring, 'retired', 'old')
		USING idempotency_internal.idempotency_next_xid(), unused;
	GET DIAGNOSTICS retired = ROW_COUNT;
	PERFORM idempotency_internal.idempotency_ring_changed(ring);
	RETURN retired > 0;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_ring_retire(
	regclass, bigint) IS
	'Internal: takes an old segment of a ring out of use; false: it is not there any more, or the ring is busy.';

/*
 * A snapshot from before a table was retired may show rows in it that it shows
 * in no other table.  So the table is truncated when no such snapshot is left.
 */
CREATE FUNCTION idempotency_internal.idempotency_ring_truncate(
	ring regclass, tables text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	horizon xid8;
	unused  smallint;
	emptied bigint;
BEGIN
	-- This may wait for a lock, too.
	horizon := idempotency_internal.idempotency_horizon(ring);
	EXECUTE format('SELECT slot FROM %s WHERE state = %L AND quiet_xid <= $1 ORDER BY segment LIMIT 1', ring, 'retired')
		INTO unused USING horizon;
	IF unused IS NULL THEN
		RETURN false;
	END IF;
	EXECUTE format('LOCK TABLE idempotency_internal.%I IN ACCESS EXCLUSIVE MODE NOWAIT', tables || '_' || unused);
	-- Another session may have truncated it meanwhile and put it to use again.
	EXECUTE format('UPDATE %s
		SET state = %L, segment = NULL, opened_at = NULL, closed_at = NULL,
			quiet_xid = NULL, rest_until = NULL
		WHERE slot = $1 AND state = %L AND quiet_xid <= $2',
		ring, 'empty', 'retired') USING unused, horizon;
	GET DIAGNOSTICS emptied = ROW_COUNT;
	IF emptied > 0 THEN
		EXECUTE format('TRUNCATE idempotency_internal.%I', tables || '_' || unused);
	END IF;
	RETURN emptied > 0;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_ring_truncate(
	regclass, text) IS
	'Internal: truncates a retired table of a ring; false: there is none, a snapshot is older than its retirement, or it is locked.';

/*
 * Snapshots count as well as transactions: for a snapshot that shows a key's
 * transaction as open the key does not expire (claim/key.c), so it must still
 * be found.  The horizon is the same for all ordinary tables of a database, so
 * that of idem_ring serves all rings.
 */
CREATE FUNCTION idempotency_internal.idempotency_is_quiet(segment_xid xid8)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN idempotency_internal.idempotency_horizon('idempotency_internal.idem_ring'::regclass) >= segment_xid;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_is_quiet(xid8) IS
	'Internal: whether all transactions before this one have ended, for every snapshot in this database too.';

/*
 * Triggers that were disabled, and rows that came in meanwhile
 * (base/trigger.c): what idem_repair and stock_repair share.
 */

CREATE FUNCTION idempotency_internal.idempotency_triggers(tables regclass[])
RETURNS TABLE ("table" regclass, name text)
LANGUAGE sql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT c.oid::regclass, w.name
	FROM pg_class c
	JOIN (VALUES ('idem_key', 'idem_key_redirect'), ('stock', 'stock_guard'),
			('stock_log', 'stock_guard_truncate'),
			('stock_hold', 'stock_guard_truncate'),
			('stock_item', 'stock_guard_truncate'),
			('stock_queue', 'stock_guard_truncate'))
		w(prefix, name) ON starts_with(c.relname, w.prefix)
	WHERE c.oid = ANY (tables::oid[])
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_triggers(regclass[]) IS
	'Internal: the triggers that our tables have to have.';

CREATE FUNCTION idempotency_internal.idempotency_trigger_state(
	tables regclass[])
RETURNS "char"
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN bool_and(t.tgenabled IS NOT DISTINCT FROM 'A') THEN 'A'
		WHEN bool_or(coalesce(t.tgenabled, 'D') = 'D') THEN 'D'
		ELSE 'O' END::"char"
	FROM idempotency_internal.idempotency_triggers(tables) w
	LEFT JOIN pg_trigger t ON t.tgrelid = w.table AND t.tgname = w.name
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_trigger_state(
	regclass[]) IS
	'Internal: state of our triggers on tables: A as they were made, D some are disabled or missing, O otherwise.';

/*
 * While a trigger is still disabled the sweeper repairs nothing (by_hand is
 * false then).
 */
CREATE FUNCTION idempotency_internal.idempotency_may_repair(
	tables regclass[], by_hand boolean)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	state CONSTANT "char" :=
		idempotency_internal.idempotency_trigger_state(tables);
BEGIN
	IF state = 'A' OR (state = 'D' AND NOT by_hand) THEN
		RETURN false;
	END IF;
	IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
		PERFORM idempotency_internal.idempotency_raise('25001',
			'repair must run in a transaction that is READ COMMITTED');
	END IF;
	RETURN true;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_may_repair(
	regclass[], boolean) IS
	'Internal: whether the triggers of tables were disabled, and it is time to repair what that has done.';

CREATE FUNCTION idempotency_internal.idempotency_enable_triggers(
	tables regclass[])
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	wanted record;
BEGIN
	FOR wanted IN
		SELECT w.* FROM idempotency_internal.idempotency_triggers(tables) w
		ORDER BY w.table, w.name
	LOOP
		IF NOT EXISTS (SELECT FROM pg_trigger t
			WHERE t.tgrelid = wanted.table AND t.tgname = wanted.name) THEN
			EXECUTE format(CASE wanted.name
				WHEN 'idem_key_redirect' THEN 'CREATE TRIGGER idem_key_redirect BEFORE INSERT ON %s
					FOR EACH ROW
					EXECUTE FUNCTION idempotency_internal.idem_key_redirect()'
				WHEN 'stock_guard' THEN 'CREATE TRIGGER stock_guard
					BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW
					EXECUTE FUNCTION idempotency_internal.stock_guard()'
				WHEN 'stock_guard_truncate' THEN 'CREATE TRIGGER stock_guard_truncate
					BEFORE TRUNCATE ON %s FOR EACH STATEMENT
					EXECUTE FUNCTION idempotency_internal.stock_guard()'
				END, wanted.table);
		END IF;
		EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', wanted.table, wanted.name);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_enable_triggers(
	regclass[]) IS
	'Internal: makes our triggers on tables fire always, and creates missing ones again.';

/*
 * A data-only restore sets sequences to their values in the dump, even if they
 * were ahead of that.  Only sequences that are behind are set.  If another
 * session advances a sequence at that moment, base/sequence.c skips the numbers
 * that were handed out.  Values so high that few numbers would be left after
 * them were written by hand and are ignored.
 */
CREATE FUNCTION idempotency_internal.idempotency_raise_sequences()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	most CONSTANT bigint := bigint '1' << 62;
	used bigint;
BEGIN
	SELECT max(token) INTO used FROM (
		SELECT token FROM idempotency_internal.idem_key_0
		UNION ALL SELECT token FROM idempotency_internal.idem_key_1
		UNION ALL SELECT token FROM idempotency_internal.idem_key_2) k
		WHERE token < most;
	PERFORM setval('idempotency_internal.idem_token_seq', used)
	FROM idempotency_internal.idem_token_seq
	WHERE (last_value, is_called) < (used, true);

	SELECT max(position) INTO used FROM (
		SELECT position FROM @extschema@.outbox_log
		UNION ALL SELECT position FROM idempotency_internal.outbox_delivery
		UNION ALL SELECT position FROM idempotency_internal.outbox_reached
		UNION ALL SELECT last_position FROM idempotency_internal.outbox_ring) e
		WHERE position < most;
	PERFORM setval('idempotency_internal.outbox_position_seq', used)
	FROM idempotency_internal.outbox_position_seq
	WHERE (last_value, is_called) < (used, true);

	SELECT max(id) INTO used FROM idempotency_internal.outbox_subscription
	WHERE id < most;
	PERFORM setval('idempotency_internal.outbox_subscription_id_seq', used)
	FROM idempotency_internal.outbox_subscription_id_seq
	WHERE (last_value, is_called) < (used, true);

	SELECT max(id) INTO used FROM @extschema@.stock_history WHERE id < most;
	PERFORM setval('idempotency_internal.stock_log_id_seq', used)
	FROM idempotency_internal.stock_log_id_seq
	WHERE (last_value, is_called) < (used, true);
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_raise_sequences() IS
	'Internal: sets sequences that are behind the numbers in our tables.';

/*
 * Takes all locks or none, and tries again: a session that holds a lock on one
 * of the tables may be waiting for another.  Stock is repaired first, since
 * that is quick.
 */
CREATE FUNCTION idempotency_repair()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	until CONSTANT timestamptz := clock_timestamp() + interval '1 min';
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_raise_sequences();
	WHILE clock_timestamp() < until LOOP
		BEGIN
			PERFORM idempotency_internal.stock_repair(true);
			PERFORM idempotency_internal.idem_repair(true);
			RETURN;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			PERFORM pg_sleep(0.1);
		END;
	END LOOP;
	PERFORM idempotency_internal.idempotency_raise('55P03',
		'could not lock the tables of extension idempotency',
		'Another session uses them in a long transaction. Try again when it has ended.');
END
$$;
COMMENT ON FUNCTION idempotency_repair() IS
	'Repairs keys, stock and sequences after pg_restore --data-only, and enables triggers that were disabled.';
/* claim: the tables of keys.  Only src/claim/ writes them. */

CREATE TYPE idem_outcome AS ENUM
	('claimed', 'in_progress', 'completed', 'failed', 'mismatch');
COMMENT ON TYPE idem_outcome IS
	'Outcome of idem_claim: claimed (do the work), in_progress (another caller does the work now), completed and failed (done before, see response), mismatch (the key was used for another request).';

CREATE TYPE idem_answer AS (
	outcome     idem_outcome,
	token       bigint,
	attempt     integer,
	response    jsonb,
	retry_after interval);
COMMENT ON TYPE idem_answer IS
	'Result of idem_claim.';

/*
 * DROP EXTENSION locks relations in the order of their creation.  Our code uses
 * the same order: the sequence, the ring, the keys.
 */
CREATE SEQUENCE idempotency_internal.idem_token_seq AS bigint;
COMMENT ON SEQUENCE idempotency_internal.idem_token_seq IS
	'Fencing tokens of idem_claim, each larger than all earlier ones.';

/*
 * Which of the tables of keys are live (base/ring.c).  This table is not
 * dumped: a restored database begins with a new ring, and idem_key_redirect
 * moves the rows into its current segment.
 */
CREATE TABLE idempotency_internal.idem_ring (
	slot       smallint PRIMARY KEY CHECK (slot BETWEEN 0 AND 2),
	state      text NOT NULL CHECK (state IN ('current', 'old', 'retired', 'empty')),
	segment bigint UNIQUE,
	opened_at  timestamptz,
	closed_at  timestamptz,
	quiet_xid  xid8,
	rest_until timestamptz,
	CHECK ((state = 'empty') = (segment IS NULL)),
	CHECK ((state IN ('old', 'retired')) = (quiet_xid IS NOT NULL)),
	CONSTRAINT idem_ring_segment_check CHECK (segment > 0),
	CONSTRAINT idem_ring_times_check CHECK (
		pg_catalog.isfinite(opened_at) IS NOT FALSE
		AND pg_catalog.isfinite(closed_at) IS NOT FALSE
		AND pg_catalog.isfinite(rest_until) IS NOT FALSE)
);
COMMENT ON TABLE idempotency_internal.idem_ring IS
	'The segments of keys: new keys are inserted into the current one, old ones are searched too, retired ones wait to be truncated. When every transaction before quiet_xid has ended, no transaction inserts into an old segment any more.';
INSERT INTO idempotency_internal.idem_ring (slot, state, segment, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()),
	(1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

/*
 * state: p in progress, c completed, f failed permanently, r failed and free
 * for the next claimer.  The columns of fixed width come first, since a claim
 * reads these.  The key comes first in the index, since it decides nearly
 * every comparison, and nothing is looked up by scope alone.  Vacuum gains
 * nothing from rows that are only inserted: index-only scans are not used, and
 * the rows are truncated before they need freezing.
 */
CREATE TABLE idempotency_internal.idem_key_0 (
	token       bigint NOT NULL,
	expires_at  timestamptz NOT NULL,
	attempt     integer NOT NULL,
	state       "char" NOT NULL CHECK (state IN ('p', 'c', 'f', 'r')),
	scope       text COLLATE "C" NOT NULL
		CHECK (pg_catalog.octet_length(scope) <= 255),
	key         text COLLATE "C" NOT NULL
		CHECK (pg_catalog.octet_length(key) BETWEEN 1 AND 255),
	lease_until timestamptz,
	request     bytea,
	response    jsonb,
	PRIMARY KEY (key, scope),
	CHECK ((state = 'p') = (lease_until IS NOT NULL)),
	CONSTRAINT idem_key_numbers_check CHECK (token > 0 AND attempt > 0),
	CONSTRAINT idem_key_times_check CHECK (expires_at < 'infinity'
		AND pg_catalog.isfinite(lease_until) IS NOT FALSE)
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.idem_key_1 (
	LIKE idempotency_internal.idem_key_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.idem_key_2 (
	LIKE idempotency_internal.idem_key_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);

CREATE VIEW idem_key AS
	SELECT * FROM idempotency_internal.idem_key_0
	WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
	UNION ALL
	SELECT * FROM idempotency_internal.idem_key_1
	WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
	UNION ALL
	SELECT * FROM idempotency_internal.idem_key_2
	WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
COMMENT ON VIEW idem_key IS
	'Keys that have been claimed and have not expired; request is a SHA-256.';

CREATE FUNCTION idempotency_internal.idem_key_redirect()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_key_redirect() IS
	'Internal: a key that is inserted by hand, or restored, goes into the current segment.';

DO $$
BEGIN
	FOR slot IN 0..2 LOOP
		EXECUTE pg_catalog.format('COMMENT ON TABLE idempotency_internal.idem_key_%s IS %L', slot,
			'A segment of keys. Written by the functions idem_* alone; see the view idem_key.');
		EXECUTE pg_catalog.format(
			'CREATE TRIGGER idem_key_redirect
				BEFORE INSERT ON idempotency_internal.idem_key_%s FOR EACH ROW
				EXECUTE FUNCTION idempotency_internal.idem_key_redirect()',
			slot);
		EXECUTE pg_catalog.format('ALTER TABLE idempotency_internal.idem_key_%s ENABLE ALWAYS TRIGGER idem_key_redirect', slot);
		PERFORM pg_catalog.pg_extension_config_dump(
			pg_catalog.format('idempotency_internal.idem_key_%s',
				slot)::pg_catalog.regclass,
			'WHERE expires_at > clock_timestamp()');
	END LOOP;
END
$$;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.idem_token_seq', '');

/*
 * Scopes that have moved to another database, or are on their way (fence.c).
 * Every session knows whether there are any.
 */
CREATE TABLE idempotency_internal.idem_fence (
	scope     text COLLATE "C" PRIMARY KEY
		CHECK (pg_catalog.octet_length(scope) <= 255),
	fenced_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE idempotency_internal.idem_fence IS
	'Scopes in which no key can be claimed or finished, since they have moved to another database. See the view idem_fences.';
CREATE FUNCTION idempotency_internal.idem_fence_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_fence_changed() IS
	'Internal: makes every session look again whether there are fences.';
CREATE TRIGGER idem_fence_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
	ON idempotency_internal.idem_fence
	FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.idem_fence_changed();
ALTER TABLE idempotency_internal.idem_fence
	ENABLE ALWAYS TRIGGER idem_fence_changed;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.idem_fence', '');
/*
 * claim: the public functions.  Callers need EXECUTE; the C code checks no
 * other privilege.
 */

CREATE FUNCTION idem_claim(
	key     text,
	scope   text DEFAULT '',
	lease   interval DEFAULT NULL,
	request text DEFAULT NULL,
	ttl     interval DEFAULT NULL,
	wait    boolean DEFAULT true)
RETURNS idem_answer
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_claim(text, text, interval, text, interval, boolean) IS
	'Claims a key, for this transaction or with a lease for work outside the database, or returns the outcome of an earlier claim.';

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
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_claim_many(
	text[], text, interval, interval, boolean) IS
	'Claims a batch of keys, each as idem_claim does; batches cannot deadlock with each other. Returns a row for each key, in the order of the array.';

CREATE PROCEDURE idem_wait(
	key     text,
	scope   text DEFAULT '',
	timeout interval DEFAULT '20 s',
	INOUT outcome     idem_outcome DEFAULT NULL,
	INOUT attempt     integer DEFAULT NULL,
	INOUT response    jsonb DEFAULT NULL,
	INOUT retry_after interval DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON PROCEDURE idem_wait(
	text, text, interval, idem_outcome, integer, jsonb, interval) IS
	'Sleeps until a key is completed, has failed or is free, or until the timeout; returns the outcome as idem_claim does, null if the key is free.';

CREATE FUNCTION idem_complete(
	key      text,
	token    bigint,
	response jsonb DEFAULT NULL,
	scope    text DEFAULT '',
	ttl      interval DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_complete(text, bigint, jsonb, text, interval) IS
	'Completes a claimed key and saves the answer for later claims of the key.';

CREATE FUNCTION idem_fail(
	key   text,
	token bigint,
	error jsonb DEFAULT NULL,
	scope text DEFAULT '',
	retry boolean DEFAULT true)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_fail(text, bigint, jsonb, text, boolean) IS
	'Ends a claim in failure: the key becomes free for the next claimer or, with retry => false, fails for good.';

CREATE FUNCTION idem_renew(
	key   text,
	token bigint,
	lease interval DEFAULT NULL,
	scope text DEFAULT '')
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_renew(text, bigint, interval, text) IS
	'Extends the lease of a key in progress, counted from now; returns when the lease ends.';

CREATE FUNCTION idem_forget(key text, scope text DEFAULT '')
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_forget(text, text) IS
	'Forgets a key, so that it is unknown and free again; returns whether it was known. For operators.';

/*
 * A scope moves to another database (fence.c).
 */

CREATE FUNCTION idempotency_internal.idem_fence_check_scope(scope text)
RETURNS void
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_fence_check_scope(text) IS
	'Internal: raises an error unless a scope can have a fence.';

CREATE FUNCTION idem_fence(scope text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	added boolean;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('idem_fence()');
	PERFORM idempotency_internal.idem_fence_check_scope(scope);
	INSERT INTO idempotency_internal.idem_fence AS f (scope) VALUES (scope)
	ON CONFLICT DO NOTHING;
	added := FOUND;
	-- As the trigger does, which may be disabled.
	PERFORM idempotency_internal.idempotency_ring_changed('idempotency_internal.idem_fence');
	RETURN added;
END
$$;
COMMENT ON FUNCTION idem_fence(text) IS
	'Makes every claim in a scope fail with ID007, since the scope moves to another database; false: it had a fence already.';

CREATE FUNCTION idem_unfence(scope text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('idem_unfence()');
	PERFORM idempotency_internal.idem_fence_check_scope(scope);
	DELETE FROM idempotency_internal.idem_fence f
	WHERE f.scope = idem_unfence.scope;
	RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem_unfence(text) IS
	'Allows claims in a scope again, since its keys are here now; false: it had no fence.';

CREATE VIEW idem_fences AS
	SELECT scope, fenced_at FROM idempotency_internal.idem_fence;
COMMENT ON VIEW idem_fences IS
	'Scopes that have moved to another database, or are on their way.';

CREATE FUNCTION idempotency_internal.idem_fence_wait(scopes text[])
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_fence_wait(text[]) IS
	'Internal: waits for the transactions that may have claimed keys before these scopes had their fences.';

/*
 * Expired and forgotten keys are exported too: they may be known in the other
 * database, from a time when the scope was there.
 */
CREATE FUNCTION idem_export(VARIADIC scopes text[])
RETURNS SETOF jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000 ROWS 1000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = on
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
		PERFORM idempotency_internal.idempotency_raise('25001',
			'idem_export() must run in a transaction that is READ COMMITTED');
	END IF;
	PERFORM idempotency_internal.idem_fence_wait(scopes);
	RETURN QUERY
		SELECT jsonb_build_object('scope', s.scope, 'last_token', t.last_value)
		FROM (SELECT DISTINCT unnest(scopes)) s(scope),
			idempotency_internal.idem_token_seq t;
	RETURN QUERY
		SELECT jsonb_strip_nulls(jsonb_build_object(
				'scope', k.scope, 'key', k.key, 'token', k.token, 'attempt', k.attempt,
				'state', CASE k.state WHEN 'p' THEN 'in_progress' WHEN 'c' THEN 'completed'
					WHEN 'f' THEN 'failed' WHEN 'r' THEN 'retryable' END,
				'expires_at', k.expires_at, 'lease_until', k.lease_until,
				'request', encode(k.request, 'hex')))
			|| CASE WHEN k.response IS NULL THEN '{}'
				ELSE jsonb_build_object('response', k.response) END
		FROM (SELECT * FROM idempotency_internal.idem_key_0
			UNION ALL SELECT * FROM idempotency_internal.idem_key_1
			UNION ALL SELECT * FROM idempotency_internal.idem_key_2) k
		WHERE k.scope = ANY (scopes);
END
$$;
COMMENT ON FUNCTION idem_export(text[]) IS
	'Returns the keys of scopes that have a fence, with their saved answers, for idem_import in another database. Waits for transactions that claimed keys before the fence.';

CREATE FUNCTION idempotency_internal.idem_import_key(
	key text, scope text, token bigint, attempt integer, state text,
	expires_at timestamptz, lease_until timestamptz, request bytea,
	response jsonb)
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_import_key(
	text, text, bigint, integer, text, timestamptz, timestamptz, bytea,
	jsonb) IS
	'Internal: inserts a key of another database, or replaces one that has a smaller token; false: what is here is newer.';

CREATE FUNCTION idempotency_internal.idem_import_token(
	scope text, last_token bigint)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_import_token(text, bigint) IS
	'Internal: makes all tokens from now on larger than those of another database.';

/*
 * The lock on the fence keeps another session from removing it before this
 * transaction, with the imported keys, is committed.
 */
CREATE FUNCTION idem_import(exported jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('idem_import()');
	IF exported IS NULL THEN
		PERFORM idempotency_internal.idempotency_raise('22004', 'exported must not be null');
	END IF;
	IF jsonb_typeof(exported) <> 'object'
		OR jsonb_typeof(exported -> 'scope') IS DISTINCT FROM 'string'
		OR NOT exported ?| '{key, last_token}' THEN
		PERFORM idempotency_internal.idempotency_raise('22023',
			'exported must be a row that idem_export() has returned');
	END IF;
	PERFORM FROM idempotency_internal.idem_fence f
	WHERE f.scope = exported ->> 'scope' FOR KEY SHARE;
	IF exported ? 'last_token' THEN
		PERFORM idempotency_internal.idem_import_token(
			exported ->> 'scope', (exported ->> 'last_token')::bigint);
		RETURN false;
	END IF;
	RETURN idempotency_internal.idem_import_key(
		exported ->> 'key', exported ->> 'scope',
		(exported ->> 'token')::bigint, (exported ->> 'attempt')::integer,
		exported ->> 'state', (exported ->> 'expires_at')::timestamptz,
		(exported ->> 'lease_until')::timestamptz,
		decode(exported ->> 'request', 'hex'), exported -> 'response');
END
$$;
COMMENT ON FUNCTION idem_import(jsonb) IS
	'Takes over a row of idem_export from another database; the scope must have a fence here. False: it is not a key, or the key has a newer token here.';

/*
 * The steps by which keys expire (base/ring.c).  The sweeper calls idem_expire,
 * each time in a short transaction.  The steps wait for a lock for at most
 * 0.1 s; then they return false and are tried again later.
 */

CREATE FUNCTION idempotency_internal.idem_count_expired(keys bigint)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_count_expired(bigint) IS
	'Internal: adds to the counter that idem_stats shows.';

CREATE FUNCTION idempotency_internal.idem_switch()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS 'SELECT idempotency_internal.idempotency_ring_switch(''idempotency_internal.idem_ring''::regclass)';
COMMENT ON FUNCTION idempotency_internal.idem_switch() IS
	'Internal: opens an empty segment of keys as the current one; false: there is none, or the ring is busy.';

CREATE FUNCTION idempotency_internal.idem_migrate(
	max_keys integer DEFAULT 1000, slot smallint DEFAULT NULL,
	only_in_progress boolean DEFAULT false)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_migrate(
	integer, smallint, boolean) IS
	'Internal: moves keys that have not expired, or only those in progress, from an old segment, the oldest by default, into the current one; returns how many.';

CREATE FUNCTION idempotency_internal.idem_count_evicted(keys bigint)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_count_evicted(bigint) IS
	'Internal: adds to the counter of evicted keys.';

/*
 * The segment is scanned with a later snapshot than that of the check before.
 * Once the segment is quiet no rows are added, so a scan that finds only
 * expired rows stays true.  Then there is also no snapshot left for which one
 * of these rows has not expired (key.c).
 *
 * With evict, finished keys do not count, although their ttl is not over: they
 * are forgotten.  That a slow claimer inserts such a key with a token that is
 * smaller than an earlier one cannot happen: it holds the lock of the ring from
 * drawing the token until it has inserted the row, and the ring has been
 * switched since this row was inserted.
 */
CREATE FUNCTION idempotency_internal.idem_retire(
	slot smallint DEFAULT NULL, evict boolean DEFAULT false)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET enable_seqscan = on
AS $$
DECLARE
	oldest  idempotency_internal.idem_ring;
	started timestamptz := clock_timestamp();
	expired bigint;
	evicted bigint;
	others  bigint;
BEGIN
	SELECT * INTO oldest FROM idempotency_internal.idem_ring r
		WHERE r.state = 'old' AND r.slot = coalesce(idem_retire.slot, r.slot)
		ORDER BY r.segment LIMIT 1;
	IF NOT FOUND
		OR NOT idempotency_internal.idempotency_is_quiet(oldest.quiet_xid) THEN
		RETURN false;
	END IF;
	EXECUTE 'SELECT count(*) FILTER (WHERE k.expired),
			count(*) FILTER (WHERE NOT k.expired AND k.evicted),
			count(*) FILTER (WHERE NOT k.expired AND NOT k.evicted)
		FROM (SELECT expires_at <= $1 AS expired, $2 AND state <> ''p'' AS evicted
			FROM idempotency_internal.idem_key_' || oldest.slot || ') k'
		INTO expired, evicted, others USING started, evict;
	IF others > 0 THEN
		-- Other transactions hold rows that idem_migrate could not move.
		-- Pause for 20 times as long as the scan took.
		UPDATE idempotency_internal.idem_ring
			SET rest_until =
				clock_timestamp() + 20 * (clock_timestamp() - started)
			WHERE segment = oldest.segment AND state = 'old';
		RETURN false;
	END IF;
	IF NOT idempotency_internal.idempotency_ring_retire(
		'idempotency_internal.idem_ring'::regclass, oldest.segment)
	THEN
		RETURN false;
	END IF;
	PERFORM idempotency_internal.idem_count_expired(expired);
	IF evicted > 0 THEN
		PERFORM idempotency_internal.idem_count_evicted(evicted);
		RAISE WARNING '% keys are forgotten before their time', evicted
			USING DETAIL = 'The keys take more than idempotency.keys_max_size.';
	END IF;
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idem_retire(smallint, boolean) IS
	'Internal: takes an old segment of keys, the oldest by default, out of use once all in it has expired, or has expired or finished; false: not yet.';

CREATE FUNCTION idempotency_internal.idem_truncate()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS 'SELECT idempotency_internal.idempotency_ring_truncate(''idempotency_internal.idem_ring''::regclass, ''idem_key''::text)';
COMMENT ON FUNCTION idempotency_internal.idem_truncate() IS
	'Internal: truncates a retired segment of keys; false: there is none, a snapshot is older, or it is locked.';

CREATE FUNCTION idempotency_internal.idem_sample(
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
COMMENT ON FUNCTION idempotency_internal.idem_sample(smallint, integer) IS
	'Internal: what is in a segment of keys, by a sample of so many pages: exact as long as it has no more.';

/*
 * The next segment is opened when a tenth of the keys in the current one have
 * expired: it has then lived for a little more than one ttl.  An old segment
 * is emptied when all its keys have expired.  Keys that are kept for longer
 * than the others are only migrated when no table is empty, out of the segment
 * with the fewest of them, and only if that frees at least as many keys as
 * have to be moved.  So each key that expires costs at most one move, and
 * expired keys never take much more space than live ones.
 */
CREATE FUNCTION idempotency_internal.idem_next_to_empty(freed double precision)
RETURNS smallint
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT r.slot
	FROM idempotency_internal.idem_ring r,
		idempotency_internal.idem_sample(r.slot, 64) s
	WHERE r.state = 'old' AND (r.rest_until < clock_timestamp()) IS NOT FALSE
		AND idempotency_internal.idempotency_is_quiet(r.quiet_xid)
		AND (s.expired = s.keys OR s.keys - s.expired <= s.expired + freed)
	ORDER BY s.keys - s.expired, r.segment LIMIT 1
$$;
COMMENT ON FUNCTION idempotency_internal.idem_next_to_empty(double precision) IS
	'Internal: the old segment of keys that should be emptied next, if it has no more live keys than expired keys and the given number together.';

CREATE FUNCTION idempotency_internal.idem_size(states text[])
RETURNS numeric
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(sum(pg_total_relation_size(
		('idempotency_internal.idem_key_' || r.slot)::regclass)), 0)
	FROM idempotency_internal.idem_ring r WHERE r.state = ANY (states)
$$;
COMMENT ON FUNCTION idempotency_internal.idem_size(text[]) IS
	'Internal: the size of segments of keys in these states, with indexes.';

/*
 * The limit of size takes precedence over the ttl.  When the keys exceed it,
 * the oldest segment is given up: keys in progress are moved, finished ones are
 * forgotten.  To have such a segment, segments are closed when they reach a
 * quarter of the limit.  A segment in which most keys are in progress is not
 * given up: moving them would not make it much smaller.
 */
CREATE FUNCTION idempotency_internal.idem_evict(max_keys integer)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	keep   bigint := pg_size_bytes(current_setting('idempotency.keys_max_size'));
	victim smallint;
BEGIN
	IF keep < 0 THEN
		RETURN false;
	END IF;
	IF idempotency_internal.idem_size('{current}') > keep / 4
		AND EXISTS (SELECT FROM idempotency_internal.idem_ring r,
				idempotency_internal.idem_sample(r.slot, 1) s
			WHERE r.state = 'current' AND s.keys > 0)
		AND idempotency_internal.idem_switch()
	THEN
		RETURN true;
	ELSIF idempotency_internal.idem_size('{current, old}') <= keep THEN
		RETURN false;
	END IF;
	SELECT r.slot INTO victim
	FROM idempotency_internal.idem_ring r,
		idempotency_internal.idem_sample(r.slot, 64) s
	WHERE r.state = 'old' AND (r.rest_until < clock_timestamp()) IS NOT FALSE
		AND idempotency_internal.idempotency_is_quiet(r.quiet_xid)
		AND s.in_progress <= s.keys / 2
	ORDER BY r.segment LIMIT 1;
	RETURN victim IS NOT NULL
		AND (idempotency_internal.idem_migrate(max_keys, victim, true) > 0
			OR idempotency_internal.idem_retire(victim, true));
END
$$;
COMMENT ON FUNCTION idempotency_internal.idem_evict(integer) IS
	'Internal: the next step of keeping the keys within idempotency.keys_max_size, if one is due; true: call it again.';

CREATE FUNCTION idempotency_internal.idem_expire(max_keys integer DEFAULT 1000)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	now_used record;
	due      boolean;
	unused   smallint;
BEGIN
	IF idempotency_internal.idem_truncate()
		OR idempotency_internal.idem_evict(max_keys)
	THEN
		RETURN true;
	END IF;
	SELECT s.* INTO now_used
	FROM idempotency_internal.idem_ring r,
		idempotency_internal.idem_sample(r.slot, 64) s
	WHERE r.state = 'current';
	due := now_used.expired > 0.1 * now_used.keys;
	IF due AND idempotency_internal.idem_switch() THEN
		RETURN true;
	END IF;
	unused := idempotency_internal.idem_next_to_empty(
		CASE WHEN due THEN now_used.expired ELSE '-infinity' END);
	RETURN unused IS NOT NULL
		AND (idempotency_internal.idem_migrate(max_keys, unused) > 0
			OR idempotency_internal.idem_retire(unused));
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idem_expire(integer) IS
	'Internal: the next step of forgetting keys past their ttl, if one is due; true: call it again.';

/*
 * Rows that came in while triggers were disabled may be in tables that are not
 * in use, or beside another row of their key.  Rows in old segments stay where
 * they are if their key is in no other table; the others move into the current
 * segment.  Of two rows of a key, one that has not expired wins; then the one
 * with the larger token; then the one in the later state: p, r, f, c.  No other
 * transaction is writing rows, since the tables are locked.
 */
CREATE FUNCTION idempotency_internal.idem_repair(by_hand boolean)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	tables CONSTANT regclass[] := ARRAY[
		'idempotency_internal.idem_key_0', 'idempotency_internal.idem_key_1',
		'idempotency_internal.idem_key_2']::regclass[];
	current regclass;
	moved   bigint;
	other   record;
BEGIN
	IF NOT idempotency_internal.idempotency_may_repair(tables, by_hand) THEN
		RETURN false;
	END IF;
	LOCK TABLE idempotency_internal.idem_ring IN SHARE ROW EXCLUSIVE MODE;
	LOCK TABLE idempotency_internal.idem_key_0, idempotency_internal.idem_key_1,
		idempotency_internal.idem_key_2 IN SHARE ROW EXCLUSIVE MODE;
	IF NOT idempotency_internal.idempotency_may_repair(tables, by_hand) THEN
		RETURN false;
	END IF;
	PERFORM pg_current_xact_id();
	SELECT tables[r.slot + 1] INTO STRICT current
	FROM idempotency_internal.idem_ring r WHERE r.state = 'current';
	PERFORM idempotency_internal.idempotency_enable_triggers(tables);
	-- This also makes every session look again whether there are fences.
	ALTER TABLE idempotency_internal.idem_fence
		ENABLE ALWAYS TRIGGER idem_fence_changed;
	EXECUTE format('ALTER TABLE %s DISABLE TRIGGER idem_key_redirect', current);
	FOR other IN
		SELECT r.slot, r.state, tables[r.slot + 1] AS name
		FROM idempotency_internal.idem_ring r
		WHERE r.state <> 'current'
		ORDER BY array_position('{old,retired,empty}', r.state), r.segment DESC
	LOOP
		EXECUTE format($query$
			WITH moved AS (
				DELETE FROM %1$s k
				WHERE $1 <> 'old' OR EXISTS (
					SELECT FROM (
						SELECT * FROM %2$s UNION ALL SELECT * FROM %3$s) o
					WHERE o.key = k.key AND o.scope = k.scope)
				RETURNING *)
			INSERT INTO %4$s AS c SELECT * FROM moved
			WHERE expires_at > clock_timestamp()
			ON CONFLICT (key, scope) DO UPDATE SET
				token = excluded.token, expires_at = excluded.expires_at,
				attempt = excluded.attempt, state = excluded.state,
				lease_until = excluded.lease_until,
				request = excluded.request, response = excluded.response
			WHERE c.expires_at <= clock_timestamp()
				OR (excluded.token, strpos('prfc', excluded.state::text))
					> (c.token, strpos('prfc', c.state::text))
			$query$, other.name, tables[(other.slot + 1) % 3 + 1],
				tables[(other.slot + 2) % 3 + 1], current)
			USING other.state;
		EXECUTE format('SELECT pg_relation_size(%L)', other.name) INTO moved;
		-- A table that had rows is truncated when no snapshot shows them.
		UPDATE idempotency_internal.idem_ring r
		SET state = 'retired', closed_at = clock_timestamp(),
			quiet_xid = idempotency_internal.idempotency_next_xid(),
			segment = coalesce(r.segment, (SELECT max(g.segment) + 1
				FROM idempotency_internal.idem_ring g))
		WHERE r.slot = other.slot AND r.state <> 'old' AND moved > 0;
	END LOOP;
	PERFORM idempotency_internal.idempotency_enable_triggers(tables);
	PERFORM idempotency_internal.idempotency_ring_changed('idempotency_internal.idem_ring'::regclass);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	IF by_hand THEN
		RAISE;
	END IF;
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idem_repair(boolean) IS
	'Internal: repairs keys that were inserted while triggers were disabled, and enables the triggers; false: there is nothing to do, or not yet.';

CREATE FUNCTION idempotency_internal.idem_counters(
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
COMMENT ON FUNCTION idempotency_internal.idem_counters() IS
	'Internal: the counters that idem_stats shows.';

CREATE FUNCTION idempotency_internal.idem_evicted()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_evicted() IS
	'Internal: the last counter that idem_stats shows.';

CREATE VIEW idem_stats WITH (security_barrier) AS
	SELECT c.*, s.*, idempotency_internal.idem_evicted() AS evicted
	FROM idempotency_internal.idem_counters() c,
		(SELECT
			pg_catalog.round(coalesce(pg_catalog.sum(s.in_progress), 0))
				AS keys_in_progress,
			pg_catalog.round(coalesce(pg_catalog.sum(s.completed), 0))
				AS keys_completed,
			pg_catalog.round(coalesce(pg_catalog.sum(s.failed), 0))
				AS keys_failed,
			pg_catalog.round(coalesce(pg_catalog.sum(s.retryable), 0))
				AS keys_retryable,
			pg_catalog.min(s.oldest_lease) AS oldest_lease
		FROM idempotency_internal.idem_ring r,
			idempotency_internal.idem_sample(r.slot, 1000) s
		WHERE r.state OPERATOR(pg_catalog.=) 'current'
			OR r.state OPERATOR(pg_catalog.=) 'old') s;
COMMENT ON VIEW idem_stats IS
	'Claim statistics: answers of idem_claim since counting began, and the current number of keys, estimated if there are many.';

CREATE VIEW idem_keys WITH (security_barrier) AS
SELECT k.scope, k.key,
	CASE k.state WHEN 'p' THEN 'in_progress' WHEN 'c' THEN 'completed'
		WHEN 'f' THEN 'failed' WHEN 'r' THEN 'retryable' END AS state,
	k.attempt, k.lease_until, k.expires_at
FROM @extschema@.idem_key k;
COMMENT ON VIEW idem_keys IS
	'Keys that have been claimed and have not expired, without requests and saved answers.';
/* claim: the checks that idempotency_status() makes of claims. */

CREATE FUNCTION idempotency_internal.idem_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'keys',
		CASE WHEN lapsed.since > '10 min' OR stats.evicted > 0
			THEN 'warning' ELSE 'ok' END,
		format('%s in progress, %s on disk', stats.keys_in_progress, pg_size_pretty(disk.size))
			|| coalesce(', scopes with a fence: ' || nullif(fences.count, 0), '')
			|| coalesce(', a lease ran out ' || lapsed.since || ' ago', '')
			|| CASE WHEN stats.evicted > 0 THEN format(', %s forgotten before their time since %s',
				stats.evicted, date_trunc('second', stats.since)) ELSE '' END,
		CASE WHEN lapsed.since > '10 min' THEN 'its owner may have died; is its message lost?'
			WHEN stats.evicted > 0 THEN 'raise idempotency.keys_max_size, or lower idempotency.ttl' END
	FROM @extschema@.idem_stats stats
	CROSS JOIN LATERAL (
		SELECT CASE WHEN stats.oldest_lease < clock_timestamp()
			THEN date_trunc('second', clock_timestamp() - stats.oldest_lease)
			END AS since) lapsed
	CROSS JOIN (
		SELECT sum(pg_total_relation_size(c.oid)) AS size
		FROM pg_class c
		WHERE c.relnamespace = 'idempotency_internal'::regnamespace
			AND c.relname ~ '^idem_key_[0-2]$') disk
	CROSS JOIN (SELECT count(*) FROM idempotency_internal.idem_fence) fences
$$;
COMMENT ON FUNCTION idempotency_internal.idem_status() IS
	'Internal: what idempotency_status says of claims.';
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
 * Rows are only appended.  xid is the top-level transaction of the row: the
 * relay reads rows of transactions that it has passed when they have ended.
 * Vacuum gains nothing from these tables.
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
	'Events, in the order of their positions. Rows are never updated. An INSERT enqueues an event.';

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
	ON idempotency_internal.outbox_delivery (subscription, partition, due_at)
	WHERE state = 'waiting';
CREATE INDEX outbox_delivery_last_at_idx
	ON idempotency_internal.outbox_delivery
		(subscription, partition, last_at NULLS FIRST, position)
	WHERE state = 'waiting';
CREATE INDEX outbox_delivery_dead_idx
	ON idempotency_internal.outbox_delivery (last_at) WHERE state = 'dead';
CREATE INDEX outbox_delivery_key_idx
	ON idempotency_internal.outbox_delivery (subscription, key, position)
	WHERE blocks_key;
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

CREATE FUNCTION idempotency_internal.outbox_subscription_deleted()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
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
		DELETE FROM idempotency_internal.outbox_partition p USING deleted
		WHERE p.subscription = deleted.id;
		DELETE FROM idempotency_internal.outbox_delivery d USING deleted
		WHERE d.subscription = deleted.id;
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
AS $$
BEGIN
	IF (TG_WHEN, TG_LEVEL, TG_OP, TG_RELID)
		IS DISTINCT FROM ('AFTER', 'STATEMENT', 'DELETE', 'idempotency_internal.outbox_delivery'::regclass) THEN
		PERFORM idempotency_internal.idempotency_refuse_trigger('outbox_delivery_deleted');
	END IF;
	DELETE FROM idempotency_internal.outbox_attempt a USING deleted
		WHERE a.subscription = deleted.subscription
			AND a.position = deleted.position;
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
 * of tables (base/ring.c).  Rows are only inserted, by relays (history.c).
 * Like the ring, they are not dumped.
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
/* outbox: the public functions, for producers first, then for operators. */

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
		FROM idempotency_internal.outbox_subscription s
		JOIN idempotency_internal.outbox_delivery d ON d.subscription = s.id
		WHERE d.position = outbox_cancel.position;
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
		USING idempotency_internal.outbox_subscription s
		WHERE d.subscription = s.id AND d.position = outbox_cancel.position;
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
		coalesce(authorization_file, client_certificate));

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
		PERFORM idempotency_internal.outbox_check_url(altered.url);
		PERFORM idempotency_internal.outbox_check_headers(altered.headers);
	END IF;
	PERFORM idempotency_internal.outbox_check_credentials(
		altered.url, altered.headers, altered.signing_key,
		altered.authorization_file, altered.client_certificate);
	PERFORM idempotency_internal.outbox_require_directory(
		coalesce(nullif(authorization_file, ''), nullif(client_certificate, '')));
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
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_unsubscribe()');
	DELETE FROM idempotency_internal.outbox_subscription
	WHERE id =
		idempotency_internal.outbox_subscription_id(outbox_unsubscribe.name);
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_unsubscribe(text) IS
	'Ends a subscription and drops its undelivered events, dead letters included.';

CREATE FUNCTION outbox_pause(name text, reason text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_pause()');
	UPDATE idempotency_internal.outbox_subscription s
	SET state = 'paused', reason = outbox_pause.reason
	WHERE id = idempotency_internal.outbox_subscription_id(outbox_pause.name);
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_pause(text, text) IS
	'Stops sending to a subscription until outbox_resume; requests in flight are finished.';

CREATE FUNCTION outbox_resume(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_resume()');
	UPDATE idempotency_internal.outbox_subscription s
	SET state = 'active', reason = NULL, version = version + 1
	WHERE id = idempotency_internal.outbox_subscription_id(outbox_resume.name);
	PERFORM idempotency_internal.outbox_wake();
END
$$;
COMMENT ON FUNCTION outbox_resume(text) IS
	'Continues a subscription that was paused, or disabled by an answer 410; one that is stuck is tried again at once.';

/*
 * The update of the subscription changes nothing.  It makes other sessions that
 * change or end the subscription wait for this transaction; one of them with an
 * older snapshot, which would leave the new delivery behind, fails.
 */
CREATE FUNCTION outbox_ping(name text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
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
	SELECT v.state INTO found_state FROM @extschema@.outbox_subscriptions v
	WHERE v.name = outbox_ping.name;
	IF found_state IN ('paused', 'disabled', 'held') THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			format('subscription "%s" is %s', name, found_state),
			CASE found_state WHEN 'held' THEN 'See outbox_adopt().'
				ELSE 'See outbox_resume().' END);
	END IF;
	ping := idempotency_internal.outbox_enqueue_reserved('outbox.ping',
		jsonb_build_object('subscription', name));
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
EXCEPTION WHEN OTHERS THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_is_sendable(
	idempotency_internal.outbox_delivery) IS
	'Internal: could an event be delivered?';

/*
 * An event that has expired is sent all the same: somebody has decided that.
 * A plan from a time with few dead letters would be quadratic.
 */
CREATE FUNCTION outbox_redrive(name text, positions bigint[] DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
	subscription_id bigint;
	redriven        bigint;
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
	WITH chosen AS (
		SELECT d.position, s.ordered AND d.key IS NOT NULL AS in_order,
			row_number() OVER (PARTITION BY d.key ORDER BY d.position) > 1
			OR EXISTS (SELECT FROM idempotency_internal.outbox_delivery b
				WHERE b.subscription = s.id AND b.key = d.key AND b.blocks_key)
				AS behind
		FROM idempotency_internal.outbox_delivery d
		JOIN idempotency_internal.outbox_subscription s ON s.id = d.subscription
		WHERE s.id = subscription_id AND d.state = 'dead'
			AND (positions IS NULL OR d.position = ANY (positions))
			AND idempotency_internal.outbox_is_sendable(d))
	UPDATE idempotency_internal.outbox_delivery d
	SET state = CASE WHEN c.in_order AND c.behind THEN 'parked' ELSE 'waiting' END,
		blocks_key = c.in_order,
		attempts = 0,
		expires_at = NULL,
		due_at = CASE WHEN NOT (c.in_order AND c.behind)
			THEN clock_timestamp() END
	FROM chosen c
	WHERE d.subscription = subscription_id AND d.position = c.position;
	GET DIAGNOSTICS redriven = ROW_COUNT;
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
AS $$
DECLARE
	subscription_id bigint;
	due             bigint;
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
	-- The attempt comes in addition: it does not use up the schedule.
	UPDATE idempotency_internal.outbox_delivery d
	SET due_at = least(d.due_at, clock_timestamp()),
		attempts = d.attempts -
			(d.due_at > clock_timestamp() AND d.attempts > 0)::integer
	WHERE d.subscription = subscription_id AND d.state = 'waiting'
		AND d.last_at IS NOT NULL
		AND (positions IS NULL OR d.position = ANY (positions));
	GET DIAGNOSTICS due = ROW_COUNT;
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
AS $$
DECLARE
	discarded bigint;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_discard()');
	PERFORM idempotency_internal.outbox_check_positions(positions);
	DELETE FROM idempotency_internal.outbox_delivery d
	WHERE d.subscription =
			idempotency_internal.outbox_subscription_id(outbox_discard.name)
		AND d.state = 'dead' AND (positions IS NULL OR d.position = ANY (positions));
	GET DIAGNOSTICS discarded = ROW_COUNT;
	RETURN discarded;
END
$$;
COMMENT ON FUNCTION outbox_discard(text, bigint[]) IS
	'Drops dead letters, all of them or those at the given positions; returns their number.';

CREATE FUNCTION outbox_acknowledge_lost(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('outbox_acknowledge_lost()');
	UPDATE idempotency_internal.outbox_partition p SET lost = 0
	WHERE p.subscription = idempotency_internal.outbox_subscription_id(
			outbox_acknowledge_lost.name)
		AND p.lost > 0;
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
	IF EXISTS (SELECT FROM idempotency_internal.outbox_subscription s
		WHERE s.id = subscription_id AND s.url IS NULL)
	THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			format('subscription "%s" has no URL', name),
			'Its events are read by outbox_fetch and are not signed.');
	END IF;
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
AS $$
DECLARE
	subscription_id bigint;
	new_key         text :=
		nullif(coalesce(signing_key, @extschema@.outbox_key_generate()), '');
	public_key      text;
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
	IF EXISTS (SELECT FROM idempotency_internal.outbox_subscription s
		WHERE s.id = subscription_id AND s.url IS NULL)
	THEN
		PERFORM idempotency_internal.idempotency_raise('55000',
			format('subscription "%s" has no URL', name),
			'Its events are read by outbox_fetch and are not signed.');
	END IF;
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
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	RETURN (SELECT idempotency_internal.outbox_derive_public_key(s.signing_key)
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
END
$$;
COMMENT ON FUNCTION outbox_topic(text, jsonb, text) IS
	'Registers a topic, or replaces what was registered: from now on, outbox_enqueue refuses payloads that do not match the JSON schema. Needs the extension pg_jsonschema, unless schema is null.';

CREATE FUNCTION outbox_drop_topic(name text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
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
	RETURN FOUND;
END
$$;
COMMENT ON FUNCTION outbox_drop_topic(text) IS
	'Removes a topic and its schema from outbox_topics; false if it was not registered. Its events remain, and new ones are not checked.';

CREATE VIEW outbox_topics AS
	SELECT topic, schema, description, created_at, changed_at
	FROM idempotency_internal.outbox_registered_topic;
COMMENT ON VIEW outbox_topics IS
	'The topics that outbox_topic has registered, with the JSON schema of their payloads.';

/*
 * Like a worker, these functions use indexes whatever the statistics say: a
 * plan may be made when the tables are empty, and stay.
 */
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
SET jit = off
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_ack(text, bigint, bigint[], text) IS
	'Acknowledges a batch of outbox_fetch; the events at the positions in failed are read again by the retry schedule. False if the batch was acknowledged before.';

CREATE PROCEDURE outbox_wait(name text, timeout interval DEFAULT '20 s')
LANGUAGE C SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
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

CREATE VIEW idempotency_internal.outbox_attempted AS
	SELECT * FROM idempotency_internal.outbox_history_0
	UNION ALL SELECT * FROM idempotency_internal.outbox_history_1
	UNION ALL SELECT * FROM idempotency_internal.outbox_history_2;
COMMENT ON VIEW idempotency_internal.outbox_attempted IS
	'Internal: the history of deliveries, with rows that are kept for longer than asked.';

CREATE VIEW outbox_deliveries WITH (security_barrier) AS
SELECT s.name AS subscription, d.position, d.state, d.topic, d.key, d.type,
	d.attempts, d.due_at AS next_attempt_at,
	d.last_at, d.last_status, d.last_error, d.created_at,
	NULL::interval AS duration
FROM idempotency_internal.outbox_delivery d
JOIN idempotency_internal.outbox_subscription s ON s.id = d.subscription
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
 * position.
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
		WHEN s.failing_since IS NOT NULL THEN 2 ELSE 0 END AS state_code
FROM idempotency_internal.outbox_subscription s
CROSS JOIN LATERAL (
	SELECT min(position) AS position, max(lost) AS lost,
		sum(delivered)::bigint AS delivered,
		sum(filtered)::bigint AS filtered,
		sum(filter_errors)::bigint AS filter_errors,
		sum(idempotency_internal.outbox_rate(rate, moved_at)) AS rate,
		sum(in_flight)::integer AS in_flight
	FROM idempotency_internal.outbox_reached WHERE subscription = s.id) p
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
CROSS JOIN LATERAL (
	SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting,
		count(*) FILTER (WHERE state = 'parked') AS parked,
		count(*) FILTER (WHERE state = 'dead') AS dead,
		min(due_at) FILTER (WHERE state = 'waiting') AS next_attempt_at
	FROM idempotency_internal.outbox_delivery WHERE subscription = s.id) d
LEFT JOIN LATERAL (
	SELECT created_at FROM idempotency_internal.outbox_event
	WHERE position > p.position
	ORDER BY position LIMIT 1) e ON true
LEFT JOIN LATERAL (
	SELECT last_at, last_status, last_error
	FROM idempotency_internal.outbox_delivery
	WHERE subscription = s.id AND last_at IS NOT NULL
	ORDER BY last_at DESC LIMIT 1) f ON true
LEFT JOIN (SELECT subscription, sum(in_flight)::integer AS in_flight
	FROM idempotency_internal.outbox_flights() GROUP BY subscription) w
	ON w.subscription = s.id
LEFT JOIN (SELECT subscription, min(trouble) AS trouble
	FROM idempotency_internal.outbox_troubles() GROUP BY subscription) t
	ON t.subscription = s.id
LEFT JOIN (SELECT subscription, avg(share) AS share
	FROM idempotency_internal.outbox_shares() GROUP BY subscription) a
	ON a.subscription = s.id;
COMMENT ON VIEW outbox_subscriptions IS
	'Each subscription: its state, how far behind it is, and the number of events that wait or are dead.';
/*
 * outbox: how space of the log is freed.  The log is a ring of three segments
 * (base/ring.c).  A segment is closed when it has taken events for half of
 * idempotency.outbox_retention.  It is retired when it has been closed for
 * that retention and no subscription has to read it any more.  The sweeper
 * takes each step in a short transaction.
 */

CREATE FUNCTION idempotency_internal.outbox_switch()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF NOT idempotency_internal.idempotency_ring_switch('idempotency_internal.outbox_ring'::regclass) THEN
		RETURN false;
	END IF;
	-- The ring is still locked: later transactions write to the new segment.
	UPDATE idempotency_internal.outbox_ring
		SET last_position = CASE WHEN state = 'old' THEN (
				SELECT last_value FROM idempotency_internal.outbox_position_seq)
				END,
			warned = false
		WHERE state = 'current' OR segment =
			(SELECT max(o.segment) FROM idempotency_internal.outbox_ring o
			WHERE o.state = 'old');
	RETURN true;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_switch() IS
	'Internal: opens the next segment of the log; false: there is none, or the ring is busy.';

CREATE FUNCTION idempotency_internal.outbox_partitions_behind(
	last_position bigint)
RETURNS SETOF idempotency_internal.outbox_reached
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT p.* FROM idempotency_internal.outbox_reached p
	WHERE p.position < last_position
		OR EXISTS (SELECT FROM unnest(p.straggler_froms) f
			WHERE f <= last_position)
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_partitions_behind(bigint) IS
	'Internal: the partitions that have not read everything up to this position, as far as is recorded.';

/*
 * Until this transaction commits, partitions cannot be set back or added; after
 * that, not to a position in this segment.  A transaction that has rows in the
 * segment keeps it locked until it ends.
 */
CREATE FUNCTION idempotency_internal.outbox_retire()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	oldest idempotency_internal.outbox_ring;
BEGIN
	SELECT * INTO oldest FROM idempotency_internal.outbox_ring
		WHERE state = 'old' ORDER BY segment LIMIT 1;
	IF NOT FOUND OR EXISTS (SELECT
		FROM idempotency_internal.outbox_partitions_behind(
			oldest.last_position))
	THEN
		RETURN false;
	END IF;
	LOCK TABLE idempotency_internal.outbox_partition
		IN SHARE ROW EXCLUSIVE MODE;
	LOCK TABLE idempotency_internal.outbox_ring IN SHARE ROW EXCLUSIVE MODE;
	EXECUTE 'LOCK TABLE idempotency_internal.outbox_log_' || oldest.slot || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
	RETURN NOT EXISTS (SELECT
			FROM idempotency_internal.outbox_partitions_behind(
				oldest.last_position))
		AND idempotency_internal.idempotency_ring_retire(
			'idempotency_internal.outbox_ring'::regclass, oldest.segment);
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_retire() IS
	'Internal: retires the oldest segment of the log; false: there is none, a subscription has not read it, or it is locked.';

CREATE FUNCTION idempotency_internal.outbox_truncate()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS 'SELECT idempotency_internal.idempotency_ring_truncate(''idempotency_internal.outbox_ring''::regclass, ''outbox_log''::text)';
COMMENT ON FUNCTION idempotency_internal.outbox_truncate() IS
	'Internal: truncates a retired segment of the log; false: there is none, a snapshot is older, or it is locked.';

/*
 * A subscription that holds back more of the log than allowed loses what it has
 * not read.  Its relay notices that the partition was moved, and reads from
 * there.  Nothing is given up if the segment could not be truncated anyway,
 * because an open transaction has rows in it or a snapshot is older than its
 * closing.
 */
CREATE FUNCTION idempotency_internal.outbox_pass_over()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	old_slot   smallint;
	upto       bigint;
	closed     xid8;
	passed     record;
	any_passed boolean := false;
BEGIN
	SELECT slot, last_position, quiet_xid INTO old_slot, upto, closed
	FROM idempotency_internal.outbox_ring
	WHERE state = 'old' ORDER BY segment LIMIT 1;
	IF old_slot IS NULL
		OR idempotency_internal.idempotency_horizon(
			'idempotency_internal.outbox_ring'::regclass) < closed
	THEN
		RETURN false;
	END IF;
	EXECUTE 'LOCK TABLE idempotency_internal.outbox_log_' || old_slot || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
	FOR passed IN
		WITH behind AS (
			SELECT p.subscription, p.number, p.position, p.stragglers,
				p.straggler_froms
			FROM idempotency_internal.outbox_partitions_behind(upto) p)
		UPDATE idempotency_internal.outbox_partition p
		SET position = greatest(b.position, upto),
			lost = p.lost + greatest(upto - b.position, 0),
			stragglers = b.stragglers,
			straggler_froms = ARRAY(SELECT greatest(k.f, upto + 1)
				FROM unnest(b.straggler_froms) WITH ORDINALITY AS k(f, number)
				ORDER BY k.number),
			head = NULL, token = NULL, leased_until = NULL
		FROM behind b, idempotency_internal.outbox_subscription s
		WHERE b.subscription = p.subscription AND b.number = p.number
			AND s.id = p.subscription
		RETURNING s.name, b.position
	LOOP
		RAISE WARNING 'subscription "%" loses events up to position %', passed.name, upto
			USING DETAIL = format('It had read up to position %s, and the log is larger than idempotency.outbox_keep_size.',
				passed.position);
		any_passed := true;
	END LOOP;
	IF any_passed THEN
		PERFORM idempotency_internal.outbox_wake();
	END IF;
	RETURN any_passed;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_pass_over() IS
	'Internal: makes subscriptions skip the oldest segment of the log; false: no subscription was behind, or the partitions are locked.';

CREATE FUNCTION idempotency_internal.outbox_warn_behind()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	upto bigint;
	held record;
BEGIN
	UPDATE idempotency_internal.outbox_ring r SET warned = true
		WHERE r.segment =
				(SELECT min(o.segment) FROM idempotency_internal.outbox_ring o
				WHERE o.state = 'old')
			AND NOT r.warned
			AND EXISTS (SELECT
				FROM idempotency_internal.outbox_partitions_behind(
					r.last_position))
		RETURNING r.last_position INTO upto;
	FOR held IN
		SELECT s.name, s.state FROM idempotency_internal.outbox_subscription s
		WHERE s.id IN (SELECT p.subscription
			FROM idempotency_internal.outbox_partitions_behind(upto) p)
		ORDER BY s.name
	LOOP
		RAISE WARNING 'subscription "%" is about to lose events', held.name
			USING DETAIL = format('It is %s, and the log that it has not read has reached half of idempotency.outbox_keep_size.',
				held.state);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_warn_behind() IS
	'Internal: warns once for each segment about subscriptions that are behind, when the log has reached half of its limit.';

CREATE FUNCTION idempotency_internal.outbox_log_size()
RETURNS numeric
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT sum(pg_total_relation_size(('idempotency_internal.outbox_log_' || slot)::regclass))
	FROM idempotency_internal.outbox_ring WHERE state <> 'retired'
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_log_size() IS
	'Internal: size of the log in bytes, with indexes and without retired segments.';

/*
 * The limit of size takes precedence over the retention: when the log exceeds
 * it, the oldest segment is given up at once.  To have such a segment, segments
 * are then closed when they reach a quarter of the limit.
 */
CREATE FUNCTION idempotency_internal.outbox_expire_log()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	retention interval := current_setting('idempotency.outbox_retention')::interval;
	keep      bigint := pg_size_bytes(current_setting('idempotency.outbox_keep_size'));
	size      numeric := idempotency_internal.outbox_log_size();
	oldest    idempotency_internal.outbox_ring;
	now_used  idempotency_internal.outbox_ring;
	is_used   boolean;
BEGIN
	IF idempotency_internal.outbox_truncate() THEN
		RETURN true;
	END IF;
	IF keep >= 0 AND size > keep / 2 THEN
		PERFORM idempotency_internal.outbox_warn_behind();
	END IF;
	SELECT * INTO oldest FROM idempotency_internal.outbox_ring
		WHERE state = 'old' ORDER BY segment LIMIT 1;
	IF oldest.closed_at <= clock_timestamp() - retention
		OR keep >= 0 AND size > keep
	THEN
		IF idempotency_internal.outbox_retire()
			OR keep >= 0 AND size > keep
				AND idempotency_internal.outbox_pass_over()
		THEN
			RETURN true;
		END IF;
	END IF;
	SELECT * INTO now_used FROM idempotency_internal.outbox_ring WHERE state = 'current';
	EXECUTE 'SELECT EXISTS (SELECT FROM idempotency_internal.outbox_log_' || now_used.slot || ')' INTO is_used;
	IF is_used AND (now_used.opened_at <= clock_timestamp() - retention / 2
		OR keep >= 0 AND keep / 4 < pg_total_relation_size(
			('idempotency_internal.outbox_log_' || now_used.slot)::regclass))
	THEN
		PERFORM idempotency_internal.outbox_switch();
	END IF;
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_expire_log() IS
	'Internal: the next step of returning space of the log, if one is due; true: call it again.';

/*
 * The history of deliveries is a ring, too.  Its rows are needed for as long as
 * a subscription keeps its deliveries; outbox_history leaves out older ones of
 * others.  A segment takes rows for half of that time.
 */
CREATE FUNCTION idempotency_internal.outbox_forget()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	kept     interval := coalesce((SELECT max(keep_deliveries)
		FROM idempotency_internal.outbox_subscription), '0');
	outdated bigint;
	now_used idempotency_internal.outbox_history_ring;
	is_used  boolean;
BEGIN
	IF idempotency_internal.idempotency_ring_truncate(
		'idempotency_internal.outbox_history_ring'::regclass, 'outbox_history'::text)
	THEN
		RETURN true;
	END IF;
	SELECT ring.segment INTO outdated
	FROM idempotency_internal.outbox_history_ring ring
	WHERE ring.state = 'old' AND ring.closed_at <= clock_timestamp() - kept
		AND idempotency_internal.idempotency_is_quiet(ring.quiet_xid)
	ORDER BY ring.segment LIMIT 1;
	IF idempotency_internal.idempotency_ring_retire(
		'idempotency_internal.outbox_history_ring'::regclass, outdated)
	THEN
		RETURN true;
	END IF;
	SELECT * INTO now_used FROM idempotency_internal.outbox_history_ring
	WHERE state = 'current';
	EXECUTE 'SELECT EXISTS (SELECT FROM idempotency_internal.outbox_history_' || now_used.slot || ')' INTO is_used;
	IF is_used AND now_used.opened_at <= clock_timestamp() - kept / 2 THEN
		RETURN idempotency_internal.idempotency_ring_switch(
			'idempotency_internal.outbox_history_ring'::regclass);
	END IF;
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_forget() IS
	'Internal: the next step of dropping deliveries that no subscription keeps any more; true: call it again.';

/*
 * A relay that was copying an event when it was cancelled has committed the
 * copy a second later; otherwise the copy is deleted when it is due.  Once the
 * segment with an event is truncated, no new copy of the event is made.  A
 * statement with an older snapshot may still see a copy that was deleted, and
 * look whether it was cancelled.  (Rows from another cluster have transaction
 * ids of their own.)
 */
CREATE FUNCTION idempotency_internal.outbox_sweep_cancelled(max_events integer)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	first   bigint;				-- that the log has, or will have
	swept   integer;
	deleted integer;
BEGIN
	WITH unswept AS (
		SELECT c.position FROM idempotency_internal.outbox_cancelled c
		WHERE NOT c.swept AND c.cancelled_at < clock_timestamp() - interval '1 s'
		ORDER BY c.cancelled_at LIMIT max_events FOR UPDATE SKIP LOCKED),
	copies AS (
		DELETE FROM idempotency_internal.outbox_delivery d
		USING unswept u, idempotency_internal.outbox_subscription s
		WHERE d.subscription = s.id AND d.position = u.position)
	UPDATE idempotency_internal.outbox_cancelled c SET swept = true
	FROM unswept u WHERE c.position = u.position;
	GET DIAGNOSTICS swept = ROW_COUNT;
	-- In a copy, the log may not be restored yet.
	IF (SELECT bool_and(h.system_identifier = s.system_identifier
			AND h.database = d.oid AND h.relation = h.tableoid) IS NOT TRUE
		FROM idempotency_internal.outbox_home h, pg_control_system() s,
			pg_database d
		WHERE d.datname = current_database())
	THEN
		RETURN swept >= max_events;
	END IF;
	SELECT coalesce((SELECT min(e.position)
			FROM idempotency_internal.outbox_event e), s.last_value + 1)
	INTO first FROM idempotency_internal.outbox_position_seq s;
	DELETE FROM idempotency_internal.outbox_cancelled c
	USING (SELECT o.position FROM idempotency_internal.outbox_cancelled o
		WHERE o.position < first
			AND (o.xid < idempotency_internal.idempotency_horizon(
					'idempotency_internal.outbox_ring'::regclass)
				OR o.xid >= idempotency_internal.idempotency_next_xid())
			AND NOT EXISTS (SELECT
				FROM idempotency_internal.outbox_subscription s
				JOIN idempotency_internal.outbox_delivery d
					ON d.subscription = s.id AND d.position = o.position)
		LIMIT max_events FOR UPDATE OF o SKIP LOCKED) o
	WHERE c.position = o.position;
	GET DIAGNOSTICS deleted = ROW_COUNT;
	RETURN greatest(swept, deleted) >= max_events;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_sweep_cancelled(integer) IS
	'Internal: deletes copies of events that were cancelled, and forgets which ones were when the log has forgotten them, too; true: call it again.';

CREATE FUNCTION idempotency_internal.outbox_expire(
	max_events integer DEFAULT 1000)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	dead_retention text := current_setting('idempotency.outbox_dead_retention');
	rotated        record;
	counted        bigint[];
	deleted        integer := 0;
BEGIN
	FOR rotated IN
		SELECT s.id, s.name FROM idempotency_internal.outbox_subscription s
		WHERE s.old_until <= clock_timestamp()
			OR s.old_key_until <= clock_timestamp()
		FOR NO KEY UPDATE SKIP LOCKED
	LOOP
		BEGIN
			UPDATE idempotency_internal.outbox_subscription
			SET old_secret = NULL, old_until = NULL
			WHERE id = rotated.id AND old_until <= clock_timestamp();
			UPDATE idempotency_internal.outbox_subscription
			SET old_signing_key = NULL, old_key_until = NULL
			WHERE id = rotated.id AND old_key_until <= clock_timestamp();
		EXCEPTION WHEN OTHERS THEN
			-- One row must not stop the others.
			RAISE WARNING 'the old secret of subscription "%" could not be deleted', rotated.name
				USING ERRCODE = SQLSTATE, DETAIL = SQLERRM;
		END;
	END LOOP;
	IF dead_retention <> '-1' THEN
		DELETE FROM idempotency_internal.outbox_delivery d
		USING (SELECT o.subscription, o.position
			FROM idempotency_internal.outbox_delivery o
			WHERE o.state = 'dead'
				AND o.last_at <= clock_timestamp() - dead_retention::interval
			ORDER BY o.last_at LIMIT max_events FOR UPDATE SKIP LOCKED) o
		WHERE d.subscription = o.subscription AND d.position = o.position;
		GET DIAGNOSTICS deleted = ROW_COUNT;
	END IF;
	-- The second snapshot has all subscriptions that are counted.
	counted := ARRAY(SELECT t.subscription
		FROM idempotency_internal.outbox_traffic() t);
	PERFORM idempotency_internal.outbox_forget_traffic(ARRAY(
		SELECT c.id FROM unnest(counted) c(id) WHERE NOT EXISTS (
			SELECT FROM idempotency_internal.outbox_subscription s
			WHERE s.id = c.id)));
	RETURN idempotency_internal.outbox_expire_log()
		OR idempotency_internal.outbox_forget()
		OR idempotency_internal.outbox_sweep_cancelled(max_events)
		OR deleted >= max_events;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_expire(integer) IS
	'Internal: the next step of forgetting events, dead letters and secrets past their time; true: call it again.';
/* outbox: the checks that idempotency_status() makes of the outbox. */

CREATE FUNCTION idempotency_internal.outbox_subscription_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH subscription AS MATERIALIZED (
		SELECT * FROM @extschema@.outbox_subscriptions
	), finding (name, number, state, detail, hint) AS (
		SELECT s.name, 1,
			CASE WHEN s.state IN ('held', 'stuck') THEN 'error' ELSE 'warning' END,
			CASE s.state
				WHEN 'failing' THEN format('failing for %s: %s',
					date_trunc('second', clock_timestamp() - s.failing_since),
					coalesce(s.last_status::text, left(s.last_error, 40)))
				ELSE s.state || coalesce(': ' || left(s.reason, 60), '') END,
			CASE s.state
				WHEN 'failing' THEN format('when the endpoint works again: SELECT outbox_retry(%L)', s.name)
				WHEN 'held' THEN 'see outbox_adopt()'
				WHEN 'stuck' THEN format('fix the cause; SELECT outbox_resume(%L)', s.name)
				ELSE format('SELECT outbox_resume(%L)', s.name) END
		FROM subscription s WHERE s.state <> 'active'
		UNION ALL
		SELECT s.name, 2, 'warning', format('dead letters: %s', s.dead),
			format('see outbox_dead; SELECT outbox_redrive(%L)', s.name)
		FROM subscription s WHERE s.dead > 0
		UNION ALL
		SELECT s.name, 3, 'error', format('events lost: %s', s.lost),
			format('idempotency.outbox_keep_size is too small; SELECT outbox_acknowledge_lost(%L)', s.name)
		FROM subscription s WHERE s.lost > 0
		UNION ALL
		SELECT s.name, 4, 'warning',
			format('events behind: %s, for %s',
				s.lag_events, date_trunc('second', s.lag)),
			CASE WHEN s.rate_limited THEN 'events wait for the rate_limit; see outbox_alter()'
				WHEN r.url IS NULL THEN 'its readers are too slow, or none is running; see outbox_fetch()'
				ELSE 'the endpoint is too slow; see max_in_flight' END
		FROM subscription s
		JOIN idempotency_internal.outbox_subscription r ON r.name = s.name
		WHERE s.state = 'active' AND s.lag > '5 min'
		UNION ALL
		SELECT s.name, 5, 'warning',
			format('nothing was delivered yet: %s',
				coalesce(s.last_status::text, left(s.last_error, 40))),
			'see last_error in outbox_subscriptions'
		FROM subscription s
		WHERE s.state = 'active' AND s.delivered = 0 AND s.waiting > 0
			AND s.last_failed_at IS NOT NULL
	)
	SELECT 'subscription ' || f.name, f.state, f.detail, f.hint
	FROM (SELECT * FROM finding ORDER BY name, number) f
	UNION ALL
	SELECT 'subscriptions', 'ok', format('%s active', count(*)), NULL
	FROM subscription s WHERE s.state = 'active'
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_subscription_status() IS
	'Internal: what idempotency_status says of subscriptions.';

CREATE FUNCTION idempotency_internal.outbox_status(
	patience interval DEFAULT '10 min',
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT * FROM idempotency_internal.outbox_subscription_status()
	UNION ALL
	SELECT 'log',
		CASE WHEN log.size > log.keep / 2 THEN 'warning' ELSE 'ok' END,
		pg_size_pretty(log.size) || CASE WHEN log.keep IS NULL THEN ''
			ELSE format(' of %s, idempotency.outbox_keep_size', pg_size_pretty(log.keep)) END,
		CASE WHEN log.size > log.keep / 2 THEN 'beyond the limit, subscriptions that are behind lose events' END
	FROM (SELECT idempotency_internal.outbox_log_size() AS size,
			nullif(greatest(pg_size_bytes(
				current_setting('idempotency.outbox_keep_size')), -1),
				-1)::numeric AS keep) log
	UNION ALL
	SELECT 'open transactions',
		CASE WHEN straggler.since > patience THEN 'warning' ELSE 'ok' END,
		coalesce('one with events has been open for ' || straggler.since, 'none with events stays open'),
		CASE WHEN straggler.since > patience THEN format('pid %s; its events are sent when it commits', straggler.pid) END
	FROM (SELECT 1) one
	LEFT JOIN LATERAL (
		SELECT date_trunc('second', clock_timestamp() - a.xact_start) AS since, a.pid
		FROM (SELECT DISTINCT unnest(p.stragglers) AS xid
			FROM idempotency_internal.outbox_reached p) s
		JOIN pg_stat_activity a ON a.backend_xid = s.xid::xid
		ORDER BY a.xact_start LIMIT 1) straggler ON true
	UNION ALL
	SELECT 'prepared transactions',
		CASE WHEN prepared.since > patience THEN 'warning' ELSE 'ok' END,
		CASE WHEN prepared.count = 0 THEN 'none'
			ELSE format('%s, the oldest, %L, for %s', prepared.count, prepared.oldest, prepared.since) END,
		CASE WHEN prepared.since > patience THEN 'end it: COMMIT PREPARED or ROLLBACK PREPARED' END
	FROM (SELECT count(*),
			(array_agg(p.gid ORDER BY p.prepared, p.gid))[1] AS oldest,
			date_trunc('second', clock_timestamp() - min(p.prepared)) AS since
		FROM pg_prepared_xacts p WHERE p.database = current_database()) prepared
	UNION ALL
	SELECT 'timeline',
		CASE WHEN home.timeline < now.timeline THEN 'warning' ELSE 'ok' END,
		CASE WHEN home.timeline < now.timeline
			THEN format('this server was promoted or restored: timeline %s, the outbox began on %s',
				now.timeline, home.timeline)
			ELSE format('%s, as when the outbox began', home.timeline) END,
		CASE WHEN home.timeline < now.timeline
			THEN 'if it replaces the original: SELECT outbox_adopt(keep_identity => true); if both run, it is a copy: see outbox_adopt()' END
	FROM idempotency_internal.outbox_home home,
		idempotency_internal.outbox_timeline() now(timeline)
	WHERE home.timeline IS NOT NULL AND now.timeline IS NOT NULL
	UNION ALL
	SELECT 'synchronous standbys',
		CASE WHEN waits.since > interval '10 s' THEN 'warning' ELSE 'ok' END,
		CASE WHEN waits.since IS NULL THEN 'relays wait for none'
			ELSE format('no new event is sent for %s', waits.since) END,
		CASE WHEN waits.since > interval '10 s' THEN 'no standby confirms commits; see pg_stat_replication' END
	FROM (SELECT date_trunc('second', clock_timestamp()
			- idempotency_internal.outbox_unreplicated_since()) AS since) waits
	WHERE current_setting('synchronous_standby_names') <> ''
	UNION ALL
	SELECT 'topics',
		CASE WHEN e.oid IS NULL THEN 'error' ELSE 'ok' END,
		format('with a schema: %s', count(*)),
		CASE WHEN e.oid IS NULL THEN 'their events are refused; CREATE EXTENSION pg_jsonschema' END
	FROM idempotency_internal.outbox_registered_topic t
	LEFT JOIN pg_extension e ON e.extname = 'pg_jsonschema'
	WHERE t.schema IS NOT NULL
	GROUP BY e.oid
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_status(interval) IS
	'Internal: what idempotency_status says of the outbox.';
/*
 * relay: SQL functions that check and sign what a webhook consists of.  The
 * checks are called by outbox_subscribe().
 */

CREATE FUNCTION idempotency_internal.outbox_check_url(url text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_url(text) IS
	'Internal: raises an error unless events can be sent to this URL.';

CREATE FUNCTION idempotency_internal.outbox_same_origin(one text, other text)
RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_same_origin(text, text) IS
	'Internal: do two URLs have the same scheme, host and port?';

CREATE FUNCTION idempotency_internal.outbox_check_secret(secret text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_secret(text) IS
	'Internal: raises an error unless this is a secret that can sign events.';

CREATE FUNCTION idempotency_internal.outbox_forget_traffic(
	subscriptions bigint[])
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_forget_traffic(bigint[]) IS
	'Internal: sets the counters of these subscriptions to 0.';

CREATE FUNCTION outbox_secret_generate()
RETURNS text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_secret_generate() IS
	'A new random secret for signing events, in the format of Standard Webhooks.';

CREATE FUNCTION outbox_signature(
	secret text, id text, "timestamp" bigint, body text)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_signature(text, text, bigint, text) IS
	'The Standard Webhooks signature of a body. A receiver can compare the header webhook-signature with it.';

CREATE FUNCTION idempotency_internal.outbox_derive_public_key(signing_key text)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_derive_public_key(text) IS
	'Internal: the public key of a signing key; raises an error unless it can sign events.';

CREATE FUNCTION outbox_key_generate()
RETURNS text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_key_generate() IS
	'A new random Ed25519 key for signing events, in the format of Standard Webhooks.';
/*
 * stock: types and tables
 *
 * A line of an open reservation is a row of stock_hold.  Every other change of
 * a quantity, and also the end of a reservation, appends a row for each item to
 * stock_log, which is never updated.  stock_item has an item's root record: the
 * sums of the rows that were compacted and moved to the history.  For every
 * item,
 *
 *     on hand   = received + adjusted - confirmed    (root record and log)
 *     backorder = what may be promised beyond that   (root record and log)
 *     reserved  = sum of the quantities of its holds
 *     available = on hand + backorder - reserved >= 0
 *
 * A reservation of one item that falls short can wait in the queue of the item,
 * stock_queue, until the sweeper serves it.
 *
 * Only the functions of this module write to these tables.  Other changes drop
 * the counters in shared memory (guard.c).  stock_verify compares everything.
 */

CREATE TYPE stock_outcome AS ENUM
	('reserved', 'insufficient', 'unknown_sku', 'waiting');

CREATE TYPE stock_settlement AS ENUM
	('done', 'expired', 'already_confirmed', 'already_cancelled', 'already_reserved',
	 'insufficient', 'unknown', 'waiting');

CREATE TYPE stock_change AS ENUM
	('receive', 'adjust', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate',
		'transfer', 'backorder');

CREATE TYPE stock_reservation AS (
	outcome     stock_outcome,
	expires_at  timestamptz,
	shortages   jsonb
);

COMMENT ON TYPE stock_outcome IS
	'Outcome of stock_reserve and stock_reserve_many.';
COMMENT ON TYPE stock_settlement IS
	'Outcome of stock_confirm, stock_cancel, stock_extend and stock_reinstate.';
COMMENT ON TYPE stock_change IS
	'The kind of a change of stock, in stock_log and stock_history.';
COMMENT ON TYPE stock_reservation IS
	'Result of stock_reserve and stock_reserve_many. shortages: [{"sku", "wanted", "available", "missing"}, ...], one for each line that falls short.';

/*
 * DROP EXTENSION locks relations in the order of their creation.  Our code uses
 * the same order: the log before the other tables.  The columns of fixed width
 * come first.
 *
 * line is the number of a line in its reservation, in the rows that settle or
 * reinstate the line.  lines is how many lines the reservation had at the
 * start, since the history may drop the rows of one line sooner than those of
 * another.  It is null in rows of 0.2.0.
 *
 * reserved_id, reserved_at and reserved_by are the id, at and actor of the hold
 * that was closed.  They are null if the log has a row of its own for how the
 * line was opened: a reinstatement, or a change 'reserve' of 0.2.0.
 *
 * The constraints state what the code assumes about rows.  The code checks the
 * rows that it reads all the same (row.c).  Neither a constraint nor a view may
 * name the changes 'transfer' and 'backorder', except as text: the upgrade
 * script adds these labels to the type, and a new label cannot be used in the
 * transaction that adds it.
 */
CREATE TABLE idempotency_internal.stock_log (
	id          bigint GENERATED ALWAYS AS IDENTITY,
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	change      stock_change NOT NULL,
	line        smallint,
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C",
	actor       text,
	note        text,
	lines       smallint,
	reserved_id bigint,
	reserved_at timestamptz,
	reserved_by text,
	PRIMARY KEY (sku, id),
	CHECK (quantity > 0 OR (change NOT IN
		('receive', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate')
		AND quantity < 0)),
	CHECK ((reservation IS NOT NULL) =
		(change IN ('reserve', 'cancel', 'expire', 'confirm', 'reinstate'))),
	CHECK ((line IS NOT NULL) =
		(change IN ('cancel', 'expire', 'confirm', 'reinstate'))),
	CONSTRAINT stock_log_id_check CHECK (id > 0),
	CONSTRAINT stock_log_line_check CHECK (line BETWEEN 0 AND 9999),
	CONSTRAINT stock_log_lines_check CHECK (lines IS NULL
		OR (line IS NOT NULL AND line < lines AND lines <= 10000)),
	CONSTRAINT stock_log_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_log_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	CONSTRAINT stock_log_actor_check
		CHECK (pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	CONSTRAINT stock_log_note_check
		CHECK (pg_catalog.octet_length(note) <= 1000),
	CONSTRAINT stock_log_reserved_check CHECK (
		pg_catalog.num_nonnulls(reserved_id, reserved_at, reserved_by) IN (0, 3)
		AND reserved_id > 0 AND (reserved_id IS NULL OR line IS NOT NULL)
		AND pg_catalog.octet_length(reserved_by) BETWEEN 1 AND 255)
);
CREATE INDEX stock_log_settled ON idempotency_internal.stock_log (reservation)
	WHERE line IS NOT NULL;

COMMENT ON TABLE idempotency_internal.stock_log IS
	'Changes of items that are not compacted into their root records yet. Rows are never updated. See the view stock_history.';
COMMENT ON COLUMN idempotency_internal.stock_log.actor IS
	'The user who made the change; null if a reservation has expired.';

/*
 * id, at and actor are those of the change that has opened the line.  They are
 * null if the log has a row for it.  If the reservation waits in the queue of
 * its item, its only line has the quantity 0, and id orders the queue.
 */
CREATE TABLE idempotency_internal.stock_hold (
	quantity    bigint NOT NULL CHECK (quantity >= 0),
	expires_at  timestamptz NOT NULL,
	line        smallint CHECK (line >= 0),
	reservation text COLLATE "C",
	sku         text COLLATE "C" NOT NULL,
	lines       smallint,
	id          bigint,
	at          timestamptz,
	actor       text,
	PRIMARY KEY (reservation, line),
	CONSTRAINT stock_hold_expires_at_check
		CHECK (pg_catalog.isfinite(expires_at)),
	CONSTRAINT stock_hold_lines_check CHECK (line < lines AND lines <= 10000),
	CONSTRAINT stock_hold_line_max_check CHECK (line < 10000),
	CONSTRAINT stock_hold_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	CONSTRAINT stock_hold_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_hold_opened_check CHECK (
		pg_catalog.num_nonnulls(id, at, actor) IN (0, 3) AND id > 0
		AND pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	CONSTRAINT stock_hold_waits_check CHECK (quantity > 0 OR id IS NOT NULL)
);
CREATE INDEX stock_hold_sku_expires_at
	ON idempotency_internal.stock_hold (sku, expires_at);

COMMENT ON TABLE idempotency_internal.stock_hold IS
	'One row per line of an open reservation.';

/*
 * Sums of bigints may be out of the range of bigint, for example of all that
 * was ever received.
 */
CREATE TABLE idempotency_internal.stock_item (
	sku         text COLLATE "C" CONSTRAINT stock_item_pkey PRIMARY KEY,
	received    numeric NOT NULL DEFAULT 0 CHECK (received >= 0),
	adjusted    numeric NOT NULL DEFAULT 0,
	confirmed   numeric NOT NULL DEFAULT 0 CHECK (confirmed >= 0),
	backorder   numeric NOT NULL DEFAULT 0,
	CONSTRAINT stock_item_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_item_sums_check CHECK (
		received < 'Infinity' AND received = pg_catalog.trunc(received)
		AND adjusted > '-Infinity' AND adjusted < 'Infinity'
		AND adjusted = pg_catalog.trunc(adjusted)
		AND confirmed < 'Infinity' AND confirmed = pg_catalog.trunc(confirmed)
		AND backorder > '-Infinity' AND backorder < 'Infinity'
		AND backorder = pg_catalog.trunc(backorder))
) WITH (fillfactor = 50);

COMMENT ON TABLE idempotency_internal.stock_item IS
	'One row per item, its root record: the sums of its compacted rows.';

/*
 * Which table of the history is in use (base/ring.c).  This table is not
 * dumped: a restored database begins with a new ring, and all tables of the
 * history are read in any case.
 */
CREATE TABLE idempotency_internal.stock_ring (
	LIKE idempotency_internal.idem_ring INCLUDING ALL);
COMMENT ON TABLE idempotency_internal.stock_ring IS
	'The tables of the history of stock: compacted rows are inserted into the current one, old ones are truncated when idempotency.stock_history is over.';
INSERT INTO idempotency_internal.stock_ring (slot, state, segment, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()),
	(1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

CREATE TABLE idempotency_internal.stock_history_0 (
	id          bigint NOT NULL,
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL,
	change      stock_change NOT NULL,
	line        smallint,
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C",
	actor       text,
	note        text,
	lines       smallint,
	reserved_id bigint,
	reserved_at timestamptz,
	reserved_by text,
	CONSTRAINT stock_history_quantity_check CHECK (
		quantity > 0 OR (change NOT IN
		('receive', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate')
		AND quantity < 0)),
	CONSTRAINT stock_history_change_check CHECK (
		(reservation IS NOT NULL) =
			(change IN ('reserve', 'cancel', 'expire', 'confirm', 'reinstate'))
		AND (line IS NOT NULL) =
			(change IN ('cancel', 'expire', 'confirm', 'reinstate'))),
	CONSTRAINT stock_history_id_check CHECK (id > 0),
	CONSTRAINT stock_history_line_check CHECK (line BETWEEN 0 AND 9999),
	CONSTRAINT stock_history_lines_check CHECK (lines IS NULL
		OR (line IS NOT NULL AND line < lines AND lines <= 10000)),
	CONSTRAINT stock_history_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_history_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	CONSTRAINT stock_history_actor_check
		CHECK (pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	CONSTRAINT stock_history_note_check
		CHECK (pg_catalog.octet_length(note) <= 1000),
	CONSTRAINT stock_history_reserved_check CHECK (
		pg_catalog.num_nonnulls(reserved_id, reserved_at, reserved_by) IN (0, 3)
		AND reserved_id > 0 AND (reserved_id IS NULL OR line IS NOT NULL)
		AND pg_catalog.octet_length(reserved_by) BETWEEN 1 AND 255)
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX stock_history_0_settled
	ON idempotency_internal.stock_history_0 (reservation)
	WHERE line IS NOT NULL;
/* For stock_needed, which searches a whole table for them. */
CREATE INDEX stock_history_0_reinstated
	ON idempotency_internal.stock_history_0 (id)
	WHERE change = 'reinstate';
CREATE TABLE idempotency_internal.stock_history_1 (
	LIKE idempotency_internal.stock_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.stock_history_2 (
	LIKE idempotency_internal.stock_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);

/* Rows are rarely deleted (stock_migrate), so a key would cost too much. */
ALTER TABLE idempotency_internal.stock_history_0 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.stock_history_1 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.stock_history_2 REPLICA IDENTITY FULL;

COMMENT ON TABLE idempotency_internal.stock_history_0 IS 'Compacted changes of items.  See the view stock_history.';
COMMENT ON TABLE idempotency_internal.stock_history_1 IS 'Compacted changes of items.  See the view stock_history.';
COMMENT ON TABLE idempotency_internal.stock_history_2 IS 'Compacted changes of items.  See the view stock_history.';

/*
 * ttl_us is how long the reservation will be open once it is served, in
 * microseconds.  When it stops waiting is in stock_hold.
 */
CREATE TABLE idempotency_internal.stock_queue (
	id          bigint CHECK (id > 0),
	quantity    bigint NOT NULL CHECK (quantity > 0),
	ttl_us      bigint NOT NULL CHECK (ttl_us BETWEEN 1 AND 31622400000000),
	sku         text COLLATE "C"
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	reservation text COLLATE "C" NOT NULL
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	PRIMARY KEY (sku, id)
);
COMMENT ON TABLE idempotency_internal.stock_queue IS
	'One row per reservation that waits for its item.';

/*
 * What a transaction that is prepared has done to the counters (in_doubt.c).
 * It deletes its rows itself, so no snapshot ever shows one.
 */
CREATE TABLE idempotency_internal.stock_in_doubt (
	sku         text COLLATE "C" NOT NULL,
	taken       bigint NOT NULL,
	received    bigint NOT NULL,
	leaving     bigint NOT NULL,
	pending     bigint NOT NULL,
	joined      integer NOT NULL,
	served      integer NOT NULL,
	created     boolean NOT NULL,
	lapses_at   timestamptz NOT NULL
);
CREATE INDEX ON idempotency_internal.stock_in_doubt (sku);
ALTER TABLE idempotency_internal.stock_in_doubt REPLICA IDENTITY FULL;
COMMENT ON TABLE idempotency_internal.stock_in_doubt IS
	'Empty for everybody: what prepared transactions have done to the counters of items, for the time after a restart.';

CREATE VIEW idempotency_internal.stock_entry AS
	SELECT * FROM idempotency_internal.stock_log
	UNION ALL SELECT * FROM idempotency_internal.stock_history_0
	UNION ALL SELECT * FROM idempotency_internal.stock_history_1
	UNION ALL SELECT * FROM idempotency_internal.stock_history_2;
COMMENT ON VIEW idempotency_internal.stock_entry IS
	'Internal: the rows of the log and of the history.';

CREATE VIEW stock_history AS
	SELECT entry.id, entry.quantity, entry.at, entry.change, entry.line,
		   entry.sku, entry.reservation, entry.actor, entry.note, entry.lines
	FROM idempotency_internal.stock_entry entry
	UNION ALL
	SELECT closed.reserved_id, closed.quantity, closed.reserved_at, 'reserve',
		   NULL, closed.sku, closed.reservation, closed.reserved_by, NULL, NULL
	FROM idempotency_internal.stock_entry closed
	WHERE closed.reserved_id IS NOT NULL
	UNION ALL
	SELECT hold.id, hold.quantity, hold.at, 'reserve',
		   NULL, hold.sku, hold.reservation, hold.actor, NULL, NULL
	FROM idempotency_internal.stock_hold hold
	WHERE hold.id IS NOT NULL AND hold.quantity > 0;
COMMENT ON VIEW stock_history IS
	'Every change of every item that is kept, with its actor, time and note.';

/*
 * The levels as a caller would find them: a lapsed hold counts as available,
 * whether it was settled or not.  The subselect makes the time one value for
 * the whole query, so that an index can be searched with it.  A number that is
 * out of range, after external DML, is shown as null: one such item must not
 * keep the others from being read.
 */
CREATE VIEW stock_levels AS
	SELECT item.sku,
		   CASE WHEN level.available BETWEEN '-9223372036854775808' AND '9223372036854775807'
				THEN level.available::bigint END AS available,
		   CASE WHEN level.reserved BETWEEN '-9223372036854775808' AND '9223372036854775807'
				THEN level.reserved::bigint END AS reserved,
		   item.received + logged.received AS received,
		   item.adjusted + logged.adjusted AS adjusted,
		   item.confirmed + logged.confirmed AS confirmed,
		   (SELECT count(*) FROM idempotency_internal.stock_queue queue
			WHERE queue.sku = item.sku) AS waiting,
		   item.backorder + logged.backorder AS backorder
	FROM idempotency_internal.stock_item item
	CROSS JOIN LATERAL (
		SELECT
			coalesce(sum(entry.quantity) FILTER (
				WHERE entry.change = 'receive'), 0) AS received,
			coalesce(sum(entry.quantity) FILTER (WHERE entry.change NOT IN (
				'receive', 'reserve', 'cancel', 'expire', 'confirm',
				'reinstate') AND entry.change::text <> 'backorder'), 0)
				AS adjusted,
			coalesce(sum(entry.quantity) FILTER (
				WHERE entry.change::text = 'backorder'), 0) AS backorder,
			coalesce(sum(entry.quantity) FILTER (
				WHERE entry.change = 'confirm'), 0) AS confirmed
		FROM idempotency_internal.stock_log entry
		WHERE entry.sku = item.sku
	) logged
	CROSS JOIN LATERAL (
		SELECT coalesce(sum(hold.quantity), 0) AS reserved
		FROM idempotency_internal.stock_hold hold
		WHERE hold.sku = item.sku
		  AND hold.expires_at > (SELECT clock_timestamp())
	) held
	CROSS JOIN LATERAL (
		SELECT item.received + item.adjusted - item.confirmed
			   + logged.received + logged.adjusted - logged.confirmed
			   + item.backorder + logged.backorder
			   - held.reserved AS available,
			   held.reserved AS reserved
	) level;

COMMENT ON VIEW stock_levels IS
	'Every item: the available and the reserved quantity, the sums of its changes, how many reservations wait for it, and its backorder.';

CREATE VIEW stock_holds AS
	SELECT hold.reservation, hold.line, hold.sku, hold.quantity, hold.expires_at
	FROM idempotency_internal.stock_hold hold
	WHERE hold.quantity > 0;
COMMENT ON VIEW stock_holds IS
	'The lines of open reservations; one whose time is over stays here until its expiry is recorded.';

CREATE VIEW stock_waiting AS
	SELECT queue.sku,
		   row_number() OVER (PARTITION BY queue.sku ORDER BY queue.id)
			AS position,
		   queue.reservation, queue.quantity, hold.at AS since, hold.expires_at
	FROM idempotency_internal.stock_queue queue
	LEFT JOIN idempotency_internal.stock_hold hold
		ON hold.reservation = queue.reservation AND hold.id = queue.id;
COMMENT ON VIEW stock_waiting IS
	'The reservations that wait in the queues of their items, in the order in which they are served.';

SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_item', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_hold', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_queue', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_log', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_log_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_history_0', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_history_1', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_history_2', '');
/*
 * stock: the public functions, and those that workers call.  Callers need
 * EXECUTE; the C code checks no other privilege.
 */

CREATE FUNCTION idempotency_internal.stock_check_sku(sku text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_check_sku(text) IS
	'Internal: raises an error unless this can be a sku.';

CREATE FUNCTION idempotency_internal.stock_check_reservation(reservation text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_check_reservation(text) IS
	'Internal: raises an error unless this can be the name of a reservation.';

/* ---- stock in and corrections ---- */

CREATE FUNCTION stock_receive(
	sku      text,
	quantity bigint,
	note     text DEFAULT NULL,
	actor    text DEFAULT NULL,
	OUT available bigint)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_receive(text, bigint, text, text) IS
	'Adds a quantity to the stock of an item, creates the item if it is new, and returns the quantity that is available now.';

CREATE FUNCTION stock_adjust(
	sku   text,
	delta bigint,
	note  text,
	actor text DEFAULT NULL,
	OUT available bigint)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_adjust(text, bigint, text, text) IS
	'Corrects the stock of an item after a count, but takes no more than is available; returns the quantity that is available now.';

CREATE FUNCTION stock_transfer(
	from_sku text,
	to_sku   text,
	quantity bigint,
	note     text DEFAULT NULL,
	actor    text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_transfer(text, text, bigint, text, text) IS
	'Moves a quantity from one item to another, for example from one place to another, but no more than is available.';

CREATE FUNCTION stock_backorder(
	sku      text,
	quantity bigint,
	note     text DEFAULT NULL,
	actor    text DEFAULT NULL,
	OUT available bigint)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_backorder(text, bigint, text, text) IS
	'Sets the quantity that may be promised of an item beyond what is on hand, creates the item if it is new, and returns the quantity that is available now.';

/* ---- reservations ---- */

CREATE FUNCTION stock_reserve(
	sku         text,
	quantity    bigint,
	reservation text,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT NULL,
	anew        boolean DEFAULT false,
	wait        boolean DEFAULT false,
	wait_ttl    interval DEFAULT NULL)
RETURNS stock_reservation
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_reserve(
	text, bigint, text, interval, text, boolean, boolean, interval) IS
	'Reserves a quantity of one item until the reservation is confirmed, cancelled or expires. If the call is repeated, nothing more is reserved. With wait, a reservation that falls short waits in the queue of the item.';

CREATE FUNCTION stock_reserve_many(
	lines       jsonb,
	reservation text,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT NULL,
	anew        boolean DEFAULT false,
	partial     boolean DEFAULT false)
RETURNS stock_reservation
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_reserve_many(
	jsonb, text, interval, text, boolean, boolean) IS
	'Reserves all lines of an order, {"sku": quantity, ...}, or none, and lists every line that falls short. If the call is repeated, nothing more is reserved.';

CREATE FUNCTION stock_change_many(
	reservation text,
	lines       jsonb,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT NULL,
	OUT outcome    stock_settlement,
	OUT expires_at timestamptz,
	OUT shortages  jsonb)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_change_many(text, jsonb, interval, text) IS
	'Changes the open lines of a reservation to these, all of them or none, and extends it.';

CREATE FUNCTION stock_confirm(
	reservation text,
	skus        text[] DEFAULT NULL,
	actor       text DEFAULT NULL,
	OUT outcome stock_settlement)
RETURNS stock_settlement
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_confirm(text, text[], text) IS
	'Confirms a reservation, or some of its lines: the quantities leave the stock.';

CREATE FUNCTION stock_cancel(
	reservation text,
	skus        text[] DEFAULT NULL,
	actor       text DEFAULT NULL,
	OUT outcome stock_settlement)
RETURNS stock_settlement
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_cancel(text, text[], text) IS
	'Cancels a reservation, or some of its lines: the quantities are available again.';

CREATE FUNCTION stock_extend(
	reservation text,
	ttl         interval DEFAULT NULL,
	OUT outcome    stock_settlement,
	OUT expires_at timestamptz)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_extend(text, interval) IS
	'Extends an open reservation, so that it expires after ttl from now, and never earlier than before.';

CREATE FUNCTION stock_reinstate(
	reservation text,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT NULL,
	OUT outcome    stock_settlement,
	OUT expires_at timestamptz,
	OUT shortages  jsonb)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION stock_reinstate(text, interval, text) IS
	'Reserves the lines of an expired or cancelled reservation again, if all of them are still available.';

CREATE FUNCTION idempotency_internal.stock_expire(
	max_holds integer DEFAULT 1000)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_expire(integer) IS
	'Internal: the sweeper frees the quantities of lapsed reservations, oldest first; returns how many holds.';

/* ---- events ---- */

CREATE FUNCTION idempotency_internal.stock_announce(
	topic text, reservation text, skus text[], quantities bigint[])
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT idempotency_internal.outbox_enqueue_reserved(
		stock_announce.topic,
		jsonb_build_object('reservation', stock_announce.reservation, 'lines',
			(SELECT jsonb_agg(jsonb_build_object(
				'sku', line.sku, 'quantity', line.quantity) ORDER BY line.sku)
			FROM unnest(skus, quantities) line (sku, quantity))),
		stock_announce.reservation, NULL::text, NULL::jsonb, NULL::timestamptz)
$$;
COMMENT ON FUNCTION idempotency_internal.stock_announce(
	text, text, text[], bigint[]) IS
	'Internal: an event about lines of a reservation.';

CREATE FUNCTION idempotency_internal.stock_announce_available(
	sku text, available bigint)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT idempotency_internal.outbox_enqueue_reserved(
		'stock.available'::text,
		jsonb_build_object('sku', stock_announce_available.sku,
			'available', stock_announce_available.available),
		stock_announce_available.sku, NULL::text, NULL::jsonb,
		NULL::timestamptz)
$$;
COMMENT ON FUNCTION idempotency_internal.stock_announce_available(
	text, bigint) IS
	'Internal: an event about an item that is available again.';

CREATE FUNCTION idempotency_internal.stock_announce_served(
	sku text, quantity bigint, reservation text, expires_at timestamptz)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT idempotency_internal.outbox_enqueue_reserved(
		'stock.available'::text,
		jsonb_build_object('sku', stock_announce_served.sku,
			'reservation', stock_announce_served.reservation,
			'quantity', stock_announce_served.quantity,
			'expires_at', stock_announce_served.expires_at),
		stock_announce_served.sku, NULL::text, NULL::jsonb, NULL::timestamptz)
$$;
COMMENT ON FUNCTION idempotency_internal.stock_announce_served(
	text, bigint, text, timestamptz) IS
	'Internal: an event about a reservation that has waited and is reserved now.';

/* ---- the queues of items: serve.c ---- */

CREATE FUNCTION idempotency_internal.stock_serve_item(
	sku text, max_rows integer)
RETURNS integer
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_serve_item(text, integer) IS
	'Internal: serves the queue of an item; returns how many reservations have left it.';

/*
 * A queue that cannot be served does not block the others.
 */
CREATE FUNCTION idempotency_internal.stock_serve_next(
	after text, max_items integer, max_rows integer, quiet boolean,
	OUT sku text, OUT failed boolean)
RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	served integer := 0;
	before text;
BEGIN
	failed := false;
	sku := coalesce(after, '');
	FOR item IN 1 .. max_items LOOP
		before := sku;
		SELECT queue.sku INTO sku FROM idempotency_internal.stock_queue queue
		WHERE queue.sku > stock_serve_next.sku COLLATE "C"
		ORDER BY queue.sku LIMIT 1;
		EXIT WHEN sku IS NULL;
		BEGIN
			served := served + idempotency_internal.stock_serve_item(sku,
				max_rows - served);
		EXCEPTION WHEN OTHERS THEN
			IF NOT failed AND NOT quiet THEN
				RAISE WARNING 'queue of "%" could not be served', sku
					USING ERRCODE = SQLSTATE, DETAIL = SQLERRM;
			END IF;
			failed := true;
		END;
		IF served >= max_rows THEN
			sku := before;	-- this queue may have more
			EXIT;
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_serve_next(
	text, integer, integer, boolean) IS
	'Internal: the next step of stock_serve; sku is null after the last queue.';

CREATE FUNCTION idempotency_internal.stock_serve(
	max_rows integer DEFAULT 1000)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_serve(integer) IS
	'Internal: the sweeper serves the queues of items; true: call it again.';

/* ---- external DML: guard.c ---- */

CREATE FUNCTION idempotency_internal.stock_guard()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_guard() IS
	'Internal: drops the counters and the filter of names after external DML.';

DO $$
DECLARE
	guarded text;
BEGIN
	FOREACH guarded IN ARRAY '{idempotency_internal.stock_log, idempotency_internal.stock_hold, idempotency_internal.stock_item, idempotency_internal.stock_queue}'::pg_catalog.text[] LOOP
		EXECUTE pg_catalog.format('CREATE TRIGGER stock_guard
			BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW
			EXECUTE FUNCTION idempotency_internal.stock_guard()', guarded);
		EXECUTE pg_catalog.format('CREATE TRIGGER stock_guard_truncate
			BEFORE TRUNCATE ON %s FOR EACH STATEMENT
			EXECUTE FUNCTION idempotency_internal.stock_guard()', guarded);
		EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ALWAYS TRIGGER stock_guard', guarded);
		EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ALWAYS TRIGGER stock_guard_truncate', guarded);
	END LOOP;
	FOR slot IN 0..2 LOOP
		EXECUTE pg_catalog.format('CREATE TRIGGER stock_guard
			BEFORE INSERT OR UPDATE OR DELETE
			ON idempotency_internal.stock_history_%s FOR EACH ROW
			EXECUTE FUNCTION idempotency_internal.stock_guard()', slot);
		EXECUTE pg_catalog.format('ALTER TABLE idempotency_internal.stock_history_%s ENABLE ALWAYS TRIGGER stock_guard', slot);
	END LOOP;
END
$$;

CREATE FUNCTION idempotency_internal.stock_drop_counters()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_drop_counters() IS
	'Internal: drops the counters of stock at the commit, after all transactions that have changed stock have ended.';

CREATE FUNCTION idempotency_internal.stock_repair(by_hand boolean)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	tables CONSTANT regclass[] := ARRAY[
		'idempotency_internal.stock_log',
		'idempotency_internal.stock_hold',
		'idempotency_internal.stock_item',
		'idempotency_internal.stock_queue',
		'idempotency_internal.stock_history_0',
		'idempotency_internal.stock_history_1',
		'idempotency_internal.stock_history_2']::regclass[];
BEGIN
	IF NOT idempotency_internal.idempotency_may_repair(tables, by_hand) THEN
		RETURN false;
	END IF;
	PERFORM idempotency_internal.stock_drop_counters();
	LOCK TABLE idempotency_internal.stock_log, idempotency_internal.stock_hold,
		idempotency_internal.stock_item, idempotency_internal.stock_history_0,
		idempotency_internal.stock_history_1,
		idempotency_internal.stock_history_2,
		idempotency_internal.stock_queue IN SHARE ROW EXCLUSIVE MODE;
	IF NOT idempotency_internal.idempotency_may_repair(tables, by_hand) THEN
		RETURN false;
	END IF;
	PERFORM idempotency_internal.idempotency_enable_triggers(tables);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	IF by_hand THEN
		RAISE;
	END IF;
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_repair(boolean) IS
	'Internal: drops the counters of stock after triggers were disabled, and enables these; false: there is nothing to do, or not yet.';

/* ---- what prepared transactions have done: in_doubt.c ---- */

CREATE FUNCTION idempotency_internal.stock_settle_prepared(
	max_rows integer DEFAULT 0)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_settle_prepared(integer) IS
	'Internal: the sweeper settles what prepared transactions have done to the counters that have ended without COMMIT or ROLLBACK PREPARED in a session, such as in an apply worker.';

/* ---- the filter of names: names.c; when the next one lapses: lapse.c ---- */

CREATE FUNCTION idempotency_internal.stock_learn_names(
	max_rows integer DEFAULT 0)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_learn_names(integer) IS
	'Internal: the sweeper reads the names of all reservations, unless the filter of names is complete.';

CREATE FUNCTION idempotency_internal.stock_names(
	OUT complete boolean, OUT mistakes double precision)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_names() IS
	'Internal: whether the filter of names is complete for this database, and the share of new names that it takes for known.';

CREATE FUNCTION idempotency_internal.stock_may_lapse(at timestamptz)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_may_lapse(timestamptz) IS
	'Internal: whether an open reservation may lapse before this time, as far as shared memory knows.';

/* ---- levels and verification ---- */

/*
 * The state of a line is that of its hold; without a hold, its last change
 * tells how it was closed.  The reservation is open if a line is open.  It is
 * expired if a hold has lapsed, since that will be its last change.  If it
 * waits, the queue of the item has its quantity.  Otherwise its state is that
 * of its last change, or unknown if the history has dropped rows of a line.
 * Rows of 0.2.0 lack the number of lines, but a gap in the numbers shows that
 * one is missing.  A reservation that was changed or made anew can have had
 * several lines of an item: the last one counts.
 */
CREATE FUNCTION stock_reservation_status(
	reservation text,
	OUT state      text,
	OUT expires_at timestamptz,
	OUT lines      jsonb)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 1
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.stock_check_reservation(reservation);
	RETURN QUERY
	WITH held AS MATERIALIZED (
		SELECT hold.line, hold.sku,
			coalesce(queue.quantity, hold.quantity) AS quantity,
			hold.lines AS count, 9223372036854775807 AS id,
			CASE WHEN hold.expires_at <= clock_timestamp() THEN 'expired'
				WHEN hold.quantity = 0 THEN 'waiting'
				ELSE 'open' END AS state,
			hold.expires_at AS at
		FROM idempotency_internal.stock_hold hold
		LEFT JOIN idempotency_internal.stock_queue queue
			ON queue.sku = hold.sku AND queue.id = hold.id
		WHERE hold.reservation = stock_reservation_status.reservation
	), closed AS MATERIALIZED (
		SELECT DISTINCT ON (past.line)
			past.line, past.sku, past.quantity, past.lines AS count, past.id,
			CASE past.change WHEN 'confirm' THEN 'confirmed' WHEN 'cancel' THEN 'cancelled'
				WHEN 'expire' THEN 'expired' END AS state,
			past.at
		FROM idempotency_internal.stock_entry past
		WHERE past.reservation = stock_reservation_status.reservation
			AND past.line IS NOT NULL
		ORDER BY past.line, past.id DESC
	), line AS (
		SELECT known.*, known.id = max(known.id) OVER (PARTITION BY known.sku)
			AS counts
		FROM (
			SELECT * FROM held
			UNION ALL
			SELECT * FROM closed
			WHERE NOT EXISTS (SELECT FROM held WHERE held.line = closed.line)
		) known
	)
	SELECT CASE
			WHEN bool_or(line.state = 'open') THEN 'open'
			WHEN bool_or(line.state = 'waiting') THEN 'waiting'
			WHEN bool_or(line.id = 9223372036854775807) THEN 'expired'
			WHEN count(*) < greatest(max(line.count), max(line.line) + 1) THEN 'unknown'
			ELSE (array_agg(line.state ORDER BY line.id DESC))[1]
		END,
		min(line.at) FILTER (WHERE line.state IN ('open', 'waiting')),
		jsonb_agg(jsonb_build_object(
				'sku', line.sku, 'quantity', line.quantity, 'state', line.state)
			ORDER BY line.line) FILTER (WHERE line.counts)
	FROM line
	HAVING count(*) > 0;
END
$$;
COMMENT ON FUNCTION stock_reservation_status(text) IS
	'The state of a reservation and of each of its lines: open, waiting, confirmed, cancelled or expired; no row if the reservation is not known.';

CREATE FUNCTION stock_level(sku text)
RETURNS TABLE (available bigint, reserved bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 1
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.stock_check_sku(sku);
	RETURN QUERY
		SELECT level.available, level.reserved
		FROM @extschema@.stock_levels level
		WHERE level.sku = stock_level.sku;
END
$$;
COMMENT ON FUNCTION stock_level(text) IS
	'The available and the reserved quantity of an item; no row for an unknown sku.';

CREATE FUNCTION idempotency_internal.stock_counters(
	OUT sku       text,
	OUT available bigint,
	OUT touches   bigint,
	OUT in_use    boolean,
	OUT rows      integer,
	OUT waiting   integer)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_counters() IS
	'Internal: what is available of items, by the counters in shared memory.';

CREATE FUNCTION idempotency_internal.stock_counter(
	INOUT sku     text,
	OUT available bigint,
	OUT touches   bigint,
	OUT in_use    boolean,
	OUT rows      integer,
	OUT waiting   integer)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_counter(text) IS
	'Internal: what is available of one item, by its counter in shared memory.';

/*
 * A lapsed hold counts as reserved here until it is settled, since the rows are
 * compared with counters.  A query for one item reads only rows of that item.
 */
CREATE VIEW idempotency_internal.stock_ledger AS
	SELECT entry.sku, bool_or(entry.is_item) AS has_item,
		coalesce(sum(entry.on_hand), 0) - coalesce(sum(entry.reserved), 0)
			AS available,
		coalesce(sum(entry.reserved), 0) AS reserved
	FROM (
		SELECT item.sku, true AS is_item,
			item.received + item.adjusted + item.backorder - item.confirmed
				AS on_hand,
			NULL::numeric AS reserved
		FROM idempotency_internal.stock_item item
		UNION ALL
		SELECT logged.sku, false,
			   CASE
				WHEN logged.change = 'confirm' THEN -logged.quantity
				WHEN logged.change NOT IN
					('reserve', 'cancel', 'expire', 'reinstate')
					THEN logged.quantity
			   END,
			   NULL
		FROM idempotency_internal.stock_log logged
		UNION ALL
		SELECT hold.sku, false, NULL, hold.quantity
		FROM idempotency_internal.stock_hold hold
	) entry
	GROUP BY entry.sku;
COMMENT ON VIEW idempotency_internal.stock_ledger IS
	'Internal: every item as its root record, log and holds have it.';

/*
 * A reservation with an open line has a row for each of its lines: a hold, or
 * the row that has settled it.
 */
CREATE VIEW idempotency_internal.stock_incomplete AS
	SELECT hold.sku, hold.reservation, whole.lines - whole.present AS missing
	FROM idempotency_internal.stock_hold hold
	CROSS JOIN LATERAL (
		SELECT max(line.lines) AS lines, count(DISTINCT line.line) AS present
		FROM (
			SELECT open.line, open.lines
			FROM idempotency_internal.stock_hold open
			WHERE open.reservation = hold.reservation
			UNION ALL
			SELECT settled.line, settled.lines
			FROM idempotency_internal.stock_entry settled
			WHERE settled.reservation = hold.reservation
				AND settled.line IS NOT NULL AND hold.lines > 1) line
		) whole
	WHERE hold.lines > 1 AND whole.lines > whole.present;
COMMENT ON VIEW idempotency_internal.stock_incomplete IS
	'Internal: open reservations of which a line is missing.';

/*
 * The counters are read before and after the snapshot is taken.  A counter that
 * was not touched in between must equal the log.  That is not possible with a
 * snapshot that is kept for several statements.
 */
CREATE FUNCTION stock_verify(
	INOUT sku     text DEFAULT NULL,
	OUT available bigint,
	OUT reserved  bigint,
	OUT ok        boolean,
	OUT detail    text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
	before jsonb := '{}'::jsonb;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	IF sku IS NOT NULL THEN
		PERFORM idempotency_internal.stock_check_sku(sku);
	END IF;
	IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
		SELECT coalesce(jsonb_object_agg(counter.sku, counter.touches), '{}')
		INTO before
		FROM (SELECT * FROM idempotency_internal.stock_counters()
			WHERE stock_verify.sku IS NULL
			UNION ALL
			SELECT * FROM idempotency_internal.stock_counter(stock_verify.sku)
		) counter
		WHERE NOT counter.in_use;
	END IF;
	RETURN QUERY
	WITH ledger AS MATERIALIZED (
		SELECT *
		FROM idempotency_internal.stock_ledger entry
		WHERE stock_verify.sku IS NULL OR entry.sku = stock_verify.sku
	), counter AS MATERIALIZED (
		SELECT counted.*
		FROM (SELECT * FROM idempotency_internal.stock_counters()
			WHERE stock_verify.sku IS NULL
			UNION ALL
			SELECT * FROM idempotency_internal.stock_counter(stock_verify.sku)
		) counted
		WHERE NOT counted.in_use
			AND counted.touches = (before ->> counted.sku)::bigint
	)
	SELECT ledger.sku,
		CASE WHEN ledger.available BETWEEN
				'-9223372036854775808' AND '9223372036854775807'
			THEN ledger.available::bigint END,
		CASE WHEN ledger.reserved BETWEEN
				'-9223372036854775808' AND '9223372036854775807'
			THEN ledger.reserved::bigint END,
		difference.detail IS NULL, difference.detail
	FROM ledger
	LEFT JOIN counter ON counter.sku = ledger.sku
	CROSS JOIN LATERAL (
		SELECT count(entry.id) AS waiting,
			count(*) FILTER (WHERE entry.id IS NULL OR held.id IS NULL) AS wrong
		FROM (SELECT * FROM idempotency_internal.stock_queue
			WHERE stock_queue.sku = ledger.sku) entry
		FULL JOIN (SELECT * FROM idempotency_internal.stock_hold
			WHERE stock_hold.sku = ledger.sku AND quantity = 0) held
			ON held.id = entry.id AND held.reservation = entry.reservation
	) queue
	CROSS JOIN LATERAL (
		SELECT string_agg(problem.what, '; ' ORDER BY problem.number) AS detail
		FROM (VALUES
			(1, CASE WHEN NOT ledger.has_item THEN 'there is no row in stock_item' END),
			(2, CASE WHEN ledger.available < 0 THEN
				format('too many are promised: %s', -ledger.available) END),
			(3, (SELECT format('reservation "%s" lacks lines: %s', incomplete.reservation, incomplete.missing)
				FROM idempotency_internal.stock_incomplete incomplete
				WHERE incomplete.sku = ledger.sku
				ORDER BY incomplete.reservation LIMIT 1)),
			(4, CASE WHEN ledger.available <> counter.available THEN
				format('available: %s by the tables, %s by the counter', ledger.available, counter.available) END),
			(5, CASE WHEN ledger.available + ledger.reserved BETWEEN
					'-9223372036854775808' AND '9223372036854775807' THEN NULL
				ELSE 'it is out of the range of bigint' END),
			(6, CASE WHEN queue.waiting <> counter.waiting THEN
				format('waiting: %s by the tables, %s by the counter', queue.waiting, counter.waiting) END),
			(7, CASE WHEN queue.wrong > 0 THEN
				format('reservations that wait differ in stock_hold and stock_queue: %s', queue.wrong) END)
		) problem (number, what)
		WHERE problem.what IS NOT NULL
	) difference
	ORDER BY ledger.sku;
END
$$;
COMMENT ON FUNCTION stock_verify(text) IS
	'Recomputes one item, or every item, from its root record, log and holds, and compares it with its counter; detail describes a difference.';
/*
 * stock: compaction of the log.  When an item has more rows in the log than
 * idempotency.stock_compact_after, they are added to its root record and moved
 * to the history, in one transaction.  Reservations do not wait for that, and
 * no sum changes: every snapshot sees each row in exactly one of the two.
 *
 * The history is kept for reference, and to remember how a reservation ended.
 * It is a ring of tables (base/ring.c); only the compaction writes to it.
 */

CREATE FUNCTION idempotency_internal.stock_crowded(rows integer)
RETURNS SETOF text
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_crowded(integer) IS
	'Internal: the items in use whose log has more rows, about.';

CREATE FUNCTION idempotency_internal.stock_count_compacted(
	sku text, rows integer, complete boolean)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_count_compacted(
	text, integer, boolean) IS
	'Internal: so many rows of an item have left the log, or all of them.';

CREATE FUNCTION idempotency_internal.stock_archive(sku text, rows jsonb)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT idempotency_internal.outbox_enqueue_reserved(
		current_setting('idempotency.stock_archive_topic'),
		jsonb_build_object('sku', stock_archive.sku, 'rows', stock_archive.rows),
		stock_archive.sku, NULL::text, NULL::jsonb, NULL::timestamptz)
$$;
COMMENT ON FUNCTION idempotency_internal.stock_archive(text, jsonb) IS
	'Internal: an event with some compacted rows of an item.';

/*
 * Compacts at most max_rows rows of transactions that have ended, oldest first.
 * If a row with a smaller id is committed later, the next call takes it.  The
 * lock on the root record makes a second session skip the item.  The condition
 * on the smallest id keeps the DELETE from scanning index entries of rows that
 * were removed earlier.
 */
CREATE FUNCTION idempotency_internal.stock_compact_item(
	sku text, max_rows integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	archived CONSTANT boolean := current_setting('idempotency.stock_archive_topic') <> '';
	since    bigint;
	upto     bigint;
	slot     smallint;
	-- Small enough for any limit of payloads.
	event_rows CONSTANT integer := 100;
	removed  integer;
	archives jsonb[];
	archive  jsonb;
BEGIN
	PERFORM FROM idempotency_internal.stock_item item
		WHERE item.sku = stock_compact_item.sku FOR NO KEY UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	SELECT min(entry.id), max(entry.id) INTO since, upto FROM (
		SELECT oldest.id FROM idempotency_internal.stock_log oldest
		WHERE oldest.sku = stock_compact_item.sku
		ORDER BY oldest.id LIMIT max_rows) entry;
	LOCK TABLE idempotency_internal.stock_ring IN ROW EXCLUSIVE MODE;
	SELECT ring.slot INTO slot FROM idempotency_internal.stock_ring ring
	WHERE ring.state = 'current';
	EXECUTE format($query$
		WITH removed AS (
			DELETE FROM idempotency_internal.stock_log
			WHERE sku = $1 AND id BETWEEN $5 AND $2
			RETURNING *
		), kept AS (
			INSERT INTO %s SELECT * FROM removed
		), total AS (
			SELECT
				coalesce(sum(quantity) FILTER (
					WHERE change = 'receive'), 0) AS received,
				coalesce(sum(quantity) FILTER (
					WHERE change IN ('adjust', 'transfer')), 0) AS adjusted,
				coalesce(sum(quantity) FILTER (
					WHERE change = 'confirm'), 0) AS confirmed,
				coalesce(sum(quantity) FILTER (
					WHERE change = 'backorder'), 0) AS backorder
			FROM removed
		), root AS (
			UPDATE idempotency_internal.stock_item item
			SET received = item.received + total.received,
				adjusted = item.adjusted + total.adjusted,
				confirmed = item.confirmed + total.confirmed,
				backorder = item.backorder + total.backorder
			FROM total
			WHERE item.sku = $1
		)
		SELECT (SELECT count(*)::integer FROM removed), ARRAY(
			SELECT jsonb_agg(part.entry ORDER BY part.id)
			FROM (SELECT id, to_jsonb(removed) AS entry,
					(row_number() OVER (ORDER BY id) - 1) / $4 AS number
				FROM removed WHERE $3) part
			GROUP BY part.number ORDER BY part.number)
		$query$, 'idempotency_internal.stock_history_' || slot)
		INTO removed, archives
		USING stock_compact_item.sku, upto, archived, event_rows, since;
	FOREACH archive IN ARRAY archives LOOP
		PERFORM idempotency_internal.stock_archive(stock_compact_item.sku,
			archive);
	END LOOP;
	PERFORM idempotency_internal.stock_count_compacted(stock_compact_item.sku,
		removed, removed < max_rows);
	RETURN removed;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_compact_item(text, integer) IS
	'Internal: adds the oldest rows of an item''s log to its root record; returns how many.';

/*
 * An item whose rows cannot be archived or added up does not block the others.
 */
CREATE FUNCTION idempotency_internal.stock_compact_next(max_rows integer)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	crowded text;
	removed integer := 0;
	failed  integer := 0;
BEGIN
	FOR crowded IN
		SELECT * FROM idempotency_internal.stock_crowded(
			current_setting('idempotency.stock_compact_after')::integer)
	LOOP
		BEGIN
			removed := removed + idempotency_internal.stock_compact_item(
				crowded, max_rows - removed);
		EXCEPTION WHEN OTHERS THEN
			failed := failed + 1;
			IF failed = 1 THEN	-- the cause may be the same for all
				RAISE WARNING 'log of "%" could not be compacted', crowded
					USING ERRCODE = SQLSTATE, DETAIL = SQLERRM;
			END IF;
		END;
		EXIT WHEN removed >= max_rows;
	END LOOP;
	IF failed > 1 THEN
		RAISE WARNING 'the logs of % other items could not be compacted either', failed - 1;
	END IF;
	RETURN removed > 0;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_compact_next(integer) IS
	'Internal: the next step of compaction, for stock_compact.';

CREATE FUNCTION idempotency_internal.stock_compact(
	max_rows integer DEFAULT 1000)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_compact(integer) IS
	'Internal: the sweeper compacts the logs of items that have become long; true: call it again.';

/*
 * The reservations whose rows must not be dropped with an old table:
 * - Those with an open line: all of their lines must be remembered.  Few
 *   reservations are settled in part, and only those are searched for.
 * - Those with a reinstatement in that table that has left a line cancelled
 *   (reservation.c) whose row is kept elsewhere.  Without the reinstatement, a
 *   later one would open that line.
 */
CREATE FUNCTION idempotency_internal.stock_needed(old_slot smallint)
RETURNS text[]
LANGUAGE plpgsql STRICT VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	needed text[];
BEGIN
	EXECUTE format($query$
		SELECT ARRAY(
			SELECT hold.reservation
			FROM idempotency_internal.stock_hold hold
			GROUP BY hold.reservation
			HAVING count(*) < max(hold.lines) OR max(hold.lines) IS NULL
			UNION
			SELECT opened.reservation
			FROM idempotency_internal.stock_history_%s opened
			WHERE opened.change = 'reinstate' AND EXISTS (
				SELECT FROM (
					SELECT * FROM idempotency_internal.stock_log
					UNION ALL
					SELECT * FROM idempotency_internal.stock_history_%s
					UNION ALL
					SELECT * FROM idempotency_internal.stock_history_%s) past
				WHERE past.reservation = opened.reservation
					AND past.line IS NOT NULL AND past.change = 'cancel'
					AND past.id < opened.id
				OFFSET 0))
		$query$, old_slot, (old_slot + 1) % 3, (old_slot + 2) % 3) INTO needed;
	RETURN needed;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_needed(smallint) IS
	'Internal: the reservations whose rows must not be dropped with an old table of the history.';

/*
 * Before an old table is retired, the rows of these reservations are moved to
 * the current table: from all old tables, so that no row is kept for longer
 * than a later row of the same line.
 */
CREATE FUNCTION idempotency_internal.stock_migrate_rows(old_slot smallint)
RETURNS bigint
LANGUAGE plpgsql STRICT VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	needed CONSTANT text[] := idempotency_internal.stock_needed(old_slot);
	slot   smallint;
	closed smallint;
	moved  bigint;
	total  bigint := 0::bigint;
BEGIN
	LOCK TABLE idempotency_internal.stock_ring IN ROW EXCLUSIVE MODE;
	SELECT ring.slot INTO slot FROM idempotency_internal.stock_ring ring
	WHERE ring.state = 'current';
	FOR closed IN
		SELECT ring.slot FROM idempotency_internal.stock_ring ring
		WHERE ring.state = 'old'
	LOOP
		EXECUTE format($query$
			WITH moved AS (
				DELETE FROM idempotency_internal.stock_history_%s
				WHERE ctid = ANY (ARRAY(
					SELECT past.row
					FROM unnest($1) needed(reservation) CROSS JOIN LATERAL (
						SELECT entry.ctid AS row
						FROM idempotency_internal.stock_history_%1$s entry
						WHERE entry.reservation = needed.reservation COLLATE "C"
							AND entry.line IS NOT NULL
						OFFSET 0) past))
				RETURNING *
			), kept AS (
				INSERT INTO idempotency_internal.stock_history_%s
				SELECT * FROM moved
			)
			SELECT count(*) FROM moved
			$query$, closed, slot) INTO moved USING needed;
		total := total + moved;
	END LOOP;
	RETURN total;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_migrate_rows(smallint) IS
	'Internal: what stock_migrate does.';

CREATE FUNCTION idempotency_internal.stock_migrate(old_slot smallint)
RETURNS bigint
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_migrate(smallint) IS
	'Internal: moves rows that must not be dropped with an old table of the history to the current one; returns how many.';

/*
 * A table of the history takes rows for half of idempotency.stock_history.
 */
CREATE FUNCTION idempotency_internal.stock_forget(max_rows integer DEFAULT 1000)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	kept     interval := current_setting('idempotency.stock_history')::interval;
	now_used idempotency_internal.stock_ring;
	outdated idempotency_internal.stock_ring;
	is_used  boolean;
BEGIN
	IF idempotency_internal.idempotency_ring_truncate(
		'idempotency_internal.stock_ring'::regclass, 'stock_history'::text)
	THEN
		RETURN true;
	END IF;
	SELECT * INTO outdated FROM idempotency_internal.stock_ring ring
		WHERE ring.state = 'old' AND ring.closed_at <= clock_timestamp() - kept
			AND idempotency_internal.idempotency_is_quiet(ring.quiet_xid)
		ORDER BY ring.segment LIMIT 1;
	IF idempotency_internal.stock_migrate(outdated.slot) > 0 THEN
		RETURN true;
	END IF;
	IF outdated.slot IS NOT NULL
		AND idempotency_internal.idempotency_ring_retire(
			'idempotency_internal.stock_ring'::regclass, outdated.segment)
	THEN
		RETURN true;
	END IF;
	SELECT * INTO now_used FROM idempotency_internal.stock_ring WHERE state = 'current';
	EXECUTE 'SELECT EXISTS (SELECT FROM idempotency_internal.stock_history_' || now_used.slot || ')' INTO is_used;
	IF is_used AND now_used.opened_at <= clock_timestamp() - kept / 2 THEN
		PERFORM idempotency_internal.idempotency_ring_switch('idempotency_internal.stock_ring'::regclass);
	END IF;
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_forget(integer) IS
	'Internal: the next step of dropping what the history has kept for long enough; true: call it again.';
/* stock: the checks that idempotency_status() makes of stock. */

/*
 * Only the first 1,000 overdue holds are counted.
 */
CREATE FUNCTION idempotency_internal.stock_numbers(
	OUT counters_used bigint, OUT counters_in_use bigint,
	OUT counters_max bigint, OUT crowded bigint, OUT overdue bigint,
	OUT waiting bigint, OUT waiting_items bigint, OUT late_items bigint)
RETURNS record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	WITH counted AS MATERIALIZED (
		SELECT * FROM idempotency_internal.stock_counters()
	)
	SELECT counter.used, counter.in_use,
		current_setting('idempotency.stock_items')::bigint,
		counter.crowded, hold.overdue, queue.waiting, queue.items, queue.late
	FROM (SELECT count(*) AS used, count(*) FILTER (WHERE c.in_use) AS in_use,
			count(*) FILTER (WHERE c.rows > 10 * current_setting(
				'idempotency.stock_compact_after')::numeric) AS crowded
		FROM counted c) counter,
		(SELECT count(*) AS overdue FROM (
			SELECT FROM idempotency_internal.stock_hold h
			WHERE (SELECT idempotency_internal.stock_may_lapse(
					now() - interval '1 min'))
				AND h.expires_at < clock_timestamp() - interval '1 min'
			LIMIT 1000) late) hold,
		(SELECT coalesce(sum(whole.waiting), 0)::bigint AS waiting,
			count(*) AS items,
			count(*) FILTER (WHERE counted.available >= first.quantity
				AND hold.at < clock_timestamp() - interval '1 min') AS late
		FROM (SELECT q.sku, min(q.id) AS id, count(*) AS waiting
			FROM idempotency_internal.stock_queue q GROUP BY q.sku) whole
		JOIN idempotency_internal.stock_queue first USING (sku, id)
		LEFT JOIN idempotency_internal.stock_hold hold
			ON hold.reservation = first.reservation AND hold.id = first.id
		LEFT JOIN counted ON counted.sku = whole.sku) queue
$$;
COMMENT ON FUNCTION idempotency_internal.stock_numbers() IS
	'Internal: how many counters there are, holds are overdue, and reservations wait.';

CREATE FUNCTION idempotency_internal.stock_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH number AS MATERIALIZED (
		SELECT * FROM idempotency_internal.stock_numbers()
	)
	SELECT 'stock counters',
		CASE WHEN n.counters_in_use > n.counters_max / 2 THEN 'warning' ELSE 'ok' END,
		format('%s of %s counters in use, %s by open transactions', n.counters_used, n.counters_max, n.counters_in_use),
		CASE WHEN n.counters_in_use > n.counters_max / 2 THEN 'increase idempotency.stock_items' END
	FROM number n
	UNION ALL
	SELECT 'stock log',
		CASE WHEN n.crowded > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN n.crowded > 0 THEN format('items above 10 times idempotency.stock_compact_after: %s', n.crowded)
			ELSE 'compacted' END,
		CASE WHEN n.crowded > 0 THEN 'does the sweeper run? does a transaction stay open?' END
	FROM number n
	UNION ALL
	SELECT 'reservations',
		CASE WHEN n.overdue > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN n.overdue > 0 THEN format('%s should have expired more than 1 min ago', n.overdue)
			ELSE 'none is overdue' END,
		CASE WHEN n.overdue > 0 THEN 'does the sweeper run? their stock is available all the same' END
	FROM number n
	UNION ALL
	SELECT 'reservation names',
		CASE WHEN name.mistakes > 0.1 THEN 'warning' ELSE 'ok' END,
		CASE WHEN name.mistakes > 0.1 THEN format('%s of 100 new names are taken for known', round(100 * name.mistakes))
			WHEN name.complete THEN 'known'
			ELSE 'not known yet: each one is searched' END,
		CASE WHEN name.mistakes > 0.1 THEN 'increase idempotency.stock_names_memory' END
	FROM idempotency_internal.stock_names() name
	UNION ALL
	SELECT 'stock queues',
		CASE WHEN n.late_items > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN n.late_items > 0 THEN format('items whose queue could be served for more than 1 min: %s', n.late_items)
			ELSE format('%s wait for %s items', n.waiting, n.waiting_items) END,
		CASE WHEN n.late_items > 0 THEN 'does the sweeper run? does a transaction lock the first of a queue?' END
	FROM number n
$$;
COMMENT ON FUNCTION idempotency_internal.stock_status() IS
	'Internal: what idempotency_status says of stock.';
/* base: idempotency_status(), which combines the checks of all modules. */

CREATE FUNCTION idempotency_internal.idempotency_preloaded_version()
RETURNS text
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_preloaded_version() IS
	'Internal: the version of the library that is preloaded; null: it is not.';

CREATE FUNCTION idempotency_internal.idempotency_is_served()
RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_is_served() IS
	'Internal: whether idempotency.databases names this database.';

CREATE FUNCTION idempotency_internal.idempotency_last_check()
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_last_check() IS
	'Internal: when the launcher was last told to look for the extension in this database; null: too many databases have it.';

CREATE FUNCTION idempotency_internal.idempotency_workers(
	OUT kind text, OUT number integer, OUT pid integer,
	OUT started_at timestamptz, OUT starts bigint,
	OUT last_success_at timestamptz, OUT errors bigint,
	OUT last_error_at timestamptz, OUT last_error text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_workers() IS
	'Internal: the workers of this database, and the errors and warnings that they have logged.';

CREATE FUNCTION idempotency_internal.idempotency_library_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'library',
		CASE WHEN l.version IS NULL THEN 'error'
			WHEN l.version <> e.extversion THEN 'warning' ELSE 'ok' END,
		CASE WHEN l.version IS NULL THEN 'not preloaded: no workers, no outbox, no stock'
			WHEN l.version <> e.extversion
				THEN format('version %s, but the extension is %s',
					l.version, e.extversion)
			ELSE format('version %s is preloaded', l.version) END,
		CASE WHEN l.version IS NULL THEN 'add idempotency to shared_preload_libraries and restart the server'
			WHEN l.version <> e.extversion THEN 'restart the server, or ALTER EXTENSION idempotency UPDATE' END
	FROM idempotency_internal.idempotency_preloaded_version() l(version),
		pg_extension e
	WHERE e.extname = 'idempotency'
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_library_status() IS
	'Internal: what idempotency_status says of the library.';

/*
 * The time that workers may take to start, after CREATE EXTENSION or a restart
 * of the server, is no error.
 */
CREATE FUNCTION idempotency_internal.idempotency_worker_status(
	recent interval DEFAULT '10 min', starting interval DEFAULT '5 s',
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH worker AS MATERIALIZED (
		SELECT * FROM idempotency_internal.idempotency_workers()
	), running AS (
		SELECT (SELECT count(*) FROM pg_stat_activity a
			WHERE a.backend_type = 'idempotency launcher') AS launchers,
			count(*) FILTER (WHERE w.kind = 'sweeper') AS sweepers,
			count(*) FILTER (WHERE w.kind = 'relay') AS relays,
			current_setting('idempotency.relays')::bigint AS wanted
		FROM worker w WHERE w.pid IS NOT NULL
	)
	SELECT 'workers',
		CASE WHEN s.what IN ('ok', 'standby', 'template') THEN 'ok'
			WHEN s.what = 'missing' THEN 'error' ELSE 'warning' END,
		CASE s.what
			WHEN 'standby' THEN 'a standby runs no workers'
			WHEN 'template' THEN 'a template database has no workers'
			WHEN 'left out' THEN 'idempotency.databases leaves this database out'
			WHEN 'starting' THEN 'they are starting'
			ELSE format('%s launcher, %s sweeper, %s of %s relays', r.launchers, r.sweepers, r.relays, r.wanted) END,
		CASE s.what
			WHEN 'left out' THEN 'add it to idempotency.databases and reload'
			WHEN 'starting' THEN 'look again in a few seconds; if this remains, see the server log'
			WHEN 'missing' THEN 'see the server log; is max_worker_processes large enough?' END
	FROM running r
	CROSS JOIN LATERAL (SELECT CASE
		WHEN pg_is_in_recovery() THEN 'standby'
		WHEN d.datistemplate THEN 'template'
		WHEN NOT idempotency_internal.idempotency_is_served() THEN 'left out'
		WHEN r.launchers = 1 AND r.sweepers = 1 AND r.relays >= r.wanted THEN 'ok'
		WHEN r.launchers = 1
			AND idempotency_internal.idempotency_last_check()
				> clock_timestamp() - starting THEN 'starting'
		ELSE 'missing' END AS what
		FROM pg_database d WHERE d.datname = current_database()) s
	UNION ALL
	SELECT 'worker errors', 'warning',
		format('%s: %s, the last %s ago: %s', w.kind, w.errors,
			date_trunc('second', clock_timestamp() - w.last_error_at),
			CASE WHEN length(w.last_error) <= 60 THEN w.last_error
				ELSE left(w.last_error, 57) || '...' END),
		'see the server log'
	FROM worker w WHERE w.last_error_at > clock_timestamp() - recent
	UNION ALL
	SELECT 'worker errors', 'ok', format('none in the last %s', recent), NULL
	WHERE NOT EXISTS (SELECT FROM worker w
		WHERE w.last_error_at > clock_timestamp() - recent)
$$;
COMMENT ON FUNCTION
	idempotency_internal.idempotency_worker_status(interval, interval) IS
	'Internal: what idempotency_status says of workers.';

CREATE VIEW idempotency_segments AS
SELECT r.name, r.state, r.opened_at, r.closed_at, r.quiet_xid, r.last_position,
	pg_total_relation_size(c.oid) AS size,
	CASE r.state WHEN 'empty' THEN 0 WHEN 'current' THEN 1 WHEN 'old' THEN 2
		ELSE 3 END AS state_code
FROM (
	SELECT 'idem_key_' || i.slot AS name, i.state, i.opened_at, i.closed_at,
		i.quiet_xid, NULL::bigint AS last_position
	FROM idempotency_internal.idem_ring i
	UNION ALL
	SELECT 'outbox_log_' || o.slot, o.state, o.opened_at, o.closed_at,
		o.quiet_xid, o.last_position
	FROM idempotency_internal.outbox_ring o
	UNION ALL
	SELECT 'outbox_history_' || h.slot, h.state, h.opened_at, h.closed_at,
		h.quiet_xid, NULL
	FROM idempotency_internal.outbox_history_ring h
	UNION ALL
	SELECT 'stock_history_' || s.slot, s.state, s.opened_at, s.closed_at,
		s.quiet_xid, NULL
	FROM idempotency_internal.stock_ring s) r
LEFT JOIN pg_class c ON c.relname = r.name
	AND c.relnamespace = (SELECT n.oid FROM pg_namespace n
		WHERE n.nspname = 'idempotency_internal');
COMMENT ON VIEW idempotency_segments IS
	'The tables of keys, of the log, and of the histories of deliveries and of stock: which of them are in use, and how large they are.';

/*
 * A retired table of a ring is truncated as soon as no snapshot is older than
 * its retirement.
 */
CREATE FUNCTION idempotency_internal.idempotency_table_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH kept AS MATERIALIZED (
		SELECT string_agg(s.name, ', ' ORDER BY s.name) AS tables,
			date_trunc('second', clock_timestamp() - min(s.closed_at)) AS since
		FROM @extschema@.idempotency_segments s
		WHERE s.state = 'retired'
			AND s.closed_at < clock_timestamp() - interval '10 min'
			AND NOT idempotency_internal.idempotency_is_quiet(s.quiet_xid)
	), disabled AS (
		SELECT t.state
		FROM (
			SELECT idempotency_internal.idempotency_trigger_state(
				array_agg(c.oid::regclass)) AS state
			FROM pg_class c WHERE c.relnamespace = 'idempotency_internal'::regnamespace
				AND c.relname ~ '^(idem_key_[0-2]|stock_(log|hold|item|queue|history_[0-2]))$') t
	)
	SELECT 'tables',
		CASE WHEN kept.tables IS NULL THEN 'ok' ELSE 'warning' END,
		CASE WHEN kept.tables IS NULL THEN 'no table waits for an old snapshot'
			ELSE format('%s could not be emptied for %s', kept.tables, kept.since) END,
		CASE WHEN kept.tables IS NOT NULL
			THEN 'end the old snapshot: pg_stat_activity, pg_prepared_xacts or a slot' END
	FROM kept
	UNION ALL
	SELECT 'triggers',
		CASE WHEN disabled.state = 'A' THEN 'ok' ELSE 'error' END,
		CASE WHEN disabled.state = 'A' THEN 'enabled' ELSE 'disabled: claims or stock are refused' END,
		CASE WHEN disabled.state <> 'A' THEN 'after the restore: SELECT idempotency_repair()' END
	FROM disabled
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_table_status() IS
	'Internal: what idempotency_status says of tables.';

CREATE FUNCTION idempotency_internal.idempotency_setting_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH finding (detail, hint) AS (
		SELECT
			format('%s was changed', string_agg(s.name, ', ' ORDER BY s.name)),
			'restart the server'
		FROM pg_settings s WHERE s.name LIKE 'idempotency.%' AND s.pending_restart
		HAVING count(*) > 0
		UNION ALL
		SELECT format('idempotency.stock_archive_topic is %L, which no subscription takes', t.topic),
			'subscribe an archive to it: outbox_subscribe()'
		FROM (SELECT current_setting('idempotency.stock_archive_topic') AS topic) t
		WHERE t.topic <> ''
			AND NOT EXISTS (
				SELECT FROM idempotency_internal.outbox_subscription s
				WHERE idempotency_internal.outbox_is_wanted(s.topics, t.topic))
		UNION ALL
		SELECT format('idempotency.databases names %s, which does not exist',
			string_agg(quote_ident(d.name), ', ' ORDER BY d.name)), 'correct it and reload'
		FROM regexp_matches(current_setting('idempotency.databases'), '"((?:[^"]|"")*)"|([^",[:space:]]+)', 'g') n,
			LATERAL (
				SELECT coalesce(replace(n[1], '""', '"'), lower(n[2])) AS name) d
		WHERE NOT EXISTS (SELECT FROM pg_database p WHERE p.datname = d.name)
		HAVING count(*) > 0
	)
	SELECT 'settings', 'warning', f.detail, f.hint FROM finding f
	UNION ALL
	SELECT 'settings', 'ok', 'no problem found', NULL WHERE NOT EXISTS (SELECT FROM finding)
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_setting_status() IS
	'Internal: what idempotency_status says of settings.';

/*
 * Checks that need the preloaded library are left out if it is not preloaded.
 */
CREATE FUNCTION idempotency_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text,
	OUT state_code integer)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	preloaded CONSTANT boolean :=
		idempotency_internal.idempotency_preloaded_version() IS NOT NULL;
BEGIN
	RETURN QUERY
		SELECT s.*, array_position('{ok, warning, error}', s.state) - 1
		FROM (
			SELECT * FROM idempotency_internal.idempotency_library_status()
			UNION ALL
			SELECT * FROM idempotency_internal.idempotency_worker_status()
			WHERE preloaded
			UNION ALL
			SELECT * FROM idempotency_internal.idempotency_setting_status()
			UNION ALL
			SELECT * FROM idempotency_internal.idempotency_table_status()
			UNION ALL
			SELECT * FROM idempotency_internal.idem_status()
			UNION ALL
			SELECT * FROM idempotency_internal.outbox_status() WHERE preloaded
			UNION ALL
			SELECT * FROM idempotency_internal.stock_status()
			WHERE preloaded) s;
END
$$;
COMMENT ON FUNCTION idempotency_status() IS
	'Checks the extension in this database. One or more rows for each check: ok, warning or error (state_code 0 to 2), what was found, and what to do.';
/*
 * base: the numbers that monitoring systems collect, of all modules.  Counts
 * are in shared memory, and begin with the server or the last reset.
 */

CREATE VIEW idempotency_workers AS
SELECT w.kind, w.number, w.pid, w.started_at, w.starts, w.last_success_at,
	w.errors, w.last_error_at, w.last_error
FROM idempotency_internal.idempotency_workers() w;
COMMENT ON VIEW idempotency_workers IS
	'The sweeper and the relays of this database: when each has started and worked, and the errors and warnings that they have logged.';

CREATE FUNCTION idempotency_internal.outbox_traffic(
	OUT subscription bigint, OUT answered_2xx bigint, OUT answered_4xx bigint,
	OUT answered_410 bigint, OUT answered_429 bigint, OUT answered_5xx bigint,
	OUT answered_other bigint, OUT timeouts bigint,
	OUT connection_errors bigint, OUT request_seconds double precision,
	OUT delivery_seconds double precision)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_traffic() IS
	'Internal: what relays have sent to each subscription.';

CREATE FUNCTION idempotency_internal.outbox_latencies(
	OUT subscription bigint, OUT measure text, OUT le double precision,
	OUT count bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_latencies() IS
	'Internal: how many requests and deliveries of each subscription took at most so many seconds.';

CREATE FUNCTION idempotency_internal.idempotency_counted_since()
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_counted_since() IS
	'Internal: when the counters of this database were set to 0; null: nothing is counted.';

CREATE VIEW outbox_stats WITH (security_barrier) AS
SELECT s.name, c.since,
	coalesce(t.answered_2xx, 0) AS answered_2xx,
	coalesce(t.answered_4xx, 0) AS answered_4xx,
	coalesce(t.answered_410, 0) AS answered_410,
	coalesce(t.answered_429, 0) AS answered_429,
	coalesce(t.answered_5xx, 0) AS answered_5xx,
	coalesce(t.answered_other, 0) AS answered_other,
	coalesce(t.timeouts, 0) AS timeouts,
	coalesce(t.connection_errors, 0) AS connection_errors,
	coalesce(t.request_seconds, 0) AS request_seconds,
	coalesce(t.delivery_seconds, 0) AS delivery_seconds
FROM idempotency_internal.outbox_subscription s
LEFT JOIN idempotency_internal.outbox_traffic() t ON t.subscription = s.id
CROSS JOIN idempotency_internal.idempotency_counted_since() c(since)
WHERE s.url IS NOT NULL;
COMMENT ON VIEW outbox_stats IS
	'The requests that relays have sent for each subscription, by the kind of answer, and how long requests and deliveries have taken in all.';

CREATE VIEW outbox_latency WITH (security_barrier) AS
SELECT s.name, l.measure, l.le, l.count
FROM idempotency_internal.outbox_subscription s
JOIN idempotency_internal.outbox_latencies() l ON l.subscription = s.id;
COMMENT ON VIEW outbox_latency IS
	'Histograms for each subscription: how many requests, and how many deliveries of events, took at most le seconds.';

CREATE FUNCTION idempotency_internal.stock_counts(
	OUT since timestamptz, OUT reserved bigint, OUT insufficient bigint,
	OUT queued bigint, OUT confirmed bigint, OUT cancelled bigint,
	OUT expired bigint)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_counts() IS
	'Internal: the counters that stock_stats shows.';

CREATE VIEW stock_stats WITH (security_barrier) AS
SELECT c.*, n.waiting, n.overdue, n.counters_used, n.counters_in_use,
	n.counters_max
FROM idempotency_internal.stock_counts() c,
	idempotency_internal.stock_numbers() n;
COMMENT ON VIEW stock_stats IS
	'Stock statistics: what reservations were answered and how they ended, what waits, and the counters in shared memory.';

CREATE FUNCTION idempotency_internal.idempotency_reset_counters()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_reset_counters() IS
	'Internal: sets the counters of claims, stock and workers to 0.';

CREATE FUNCTION idempotency_stats_reset()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_reset_counters();
	PERFORM idempotency_internal.outbox_forget_traffic(ARRAY(
		SELECT t.subscription FROM idempotency_internal.outbox_traffic() t));
END
$$;
COMMENT ON FUNCTION idempotency_stats_reset() IS
	'Sets all counters of this database to 0, at once and even if the transaction is rolled back.';
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

CREATE FUNCTION idempotency_grant(role regrole)
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
			stock_reservation_status, stock_level}',
		'{stock_levels, outbox_topics}');
END
$$;
COMMENT ON FUNCTION idempotency_grant(regrole) IS
	'Lets the role of an application claim keys, enqueue events, reserve stock and see what is available.';

CREATE FUNCTION idempotency_grant_reader(role regrole)
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
COMMENT ON FUNCTION idempotency_grant_reader(regrole) IS
	'Lets a role read the events, with their payloads, of all subscriptions without a URL.';

CREATE FUNCTION idempotency_grant_operator(role regrole)
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
			outbox_discard, outbox_acknowledge_lost, outbox_replay,
			outbox_rotate_secret, outbox_adopt,
			outbox_topic, outbox_drop_topic,
			outbox_rotate_key, outbox_public_key, outbox_key_generate,
			outbox_topic_matches, outbox_secret_generate, outbox_signature,
			outbox_flights, outbox_rate_limited, outbox_troubles, outbox_rate,
			outbox_shares, idempotency_stats_reset, idempotency_workers,
			outbox_traffic, outbox_latencies, idempotency_counted_since,
			stock_counts, stock_numbers,
			stock_receive, stock_adjust, stock_transfer, stock_backorder,
			stock_level,
			stock_verify}',
		'{idem_stats, idem_keys, idem_fences,
			outbox_subscriptions, outbox_deliveries, outbox_dead, outbox_topics,
			stock_levels, stock_holds, stock_waiting, stock_history,
			idempotency_segments, idempotency_workers,
			outbox_stats, outbox_latency, stock_stats}');
END
$$;
COMMENT ON FUNCTION idempotency_grant_operator(regrole) IS
	'Lets a role manage and monitor keys, subscriptions and stock, without access to secrets or tables.';

/*
 * Views and functions of the schema call some internal functions with the
 * privileges of their caller, so these are granted too.  Only members of the
 * extension are granted: another object in the schema may have the same name as
 * an internal one.
 */
CREATE FUNCTION idempotency_grant_admin(role regrole)
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
			idempotency_enter,
			idempotency_raise,
			idempotency_grant_names}'
			|| ARRAY(SELECT p.proname::text FROM pg_proc p
				WHERE p.pronamespace = '@extschema@'::regnamespace
					AND p.oid = ANY (members)),
		ARRAY(SELECT c.relname::text FROM pg_class c
			WHERE c.relnamespace = '@extschema@'::regnamespace AND c.oid = ANY (members)),
		'{@extschema@, idempotency_internal}', true);
END
$$;
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
	idempotency_workers, outbox_stats, outbox_latency, stock_stats
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
/*
 * Last part of the install and upgrade scripts: makes the launcher look into
 * this database when the transaction has committed.
 */
CREATE FUNCTION idempotency_internal.idempotency_announce()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
SELECT idempotency_internal.idempotency_announce();
DROP FUNCTION idempotency_internal.idempotency_announce();
