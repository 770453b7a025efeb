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
	'Extends the lease of a key in progress, counted from now, unless it ends later already; returns when it ends.';

CREATE FUNCTION idem_forget(key text, scope text DEFAULT '')
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_forget(text, text) IS
	'Forgets a key, so that it is unknown and free again; returns whether it was known. For operators.';

CREATE FUNCTION idem_erase(key text, scope text DEFAULT '')
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_erase(text, text) IS
	'Erases the saved answer of a key, which stays completed or failed; returns whether there was one. For administrators.';

/*
 * idem_forget and idem_erase call this with the privileges of their caller, who
 * needs none on it.  calls: so many of the transaction, of which not all are
 * recorded; 0: all are.
 */
CREATE FUNCTION idempotency_internal.idem_record(
	action text, key text, scope text, known boolean, calls bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_record(action, key,
		jsonb_build_object('scope', scope, 'known', known,
			'calls', nullif(calls, 0)));
END
$$;
COMMENT ON FUNCTION idempotency_internal.idem_record(
	text, text, text, boolean, bigint) IS
	'Internal: adds a call of idem_forget or idem_erase to the audit.';

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
	PERFORM idempotency_internal.idempotency_record('idem_fence', scope);
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
DECLARE
	removed boolean;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_prevent_write('idem_unfence()');
	PERFORM idempotency_internal.idem_fence_check_scope(scope);
	DELETE FROM idempotency_internal.idem_fence f
	WHERE f.scope = idem_unfence.scope;
	removed := FOUND;
	PERFORM idempotency_internal.idempotency_record('idem_unfence', scope);
	RETURN removed;
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
		PERFORM idempotency_internal.idempotency_record('idem_import',
			exported ->> 'scope');
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
AS 'MODULE_PATHNAME', 'idem_migrate_part';
COMMENT ON FUNCTION idempotency_internal.idem_migrate(
	integer, smallint, boolean) IS
	'Internal: moves keys that have not expired, or only those in progress, from a part of an old segment, the oldest by default, into the current one; returns how many, null: none so far, call it again.';

CREATE FUNCTION idempotency_internal.idem_scan(
	slot        smallint,
	segment     bigint,
	evict       boolean,
	OUT done    boolean,
	OUT expired bigint,
	OUT evicted bigint,
	OUT others  bigint,
	OUT took    interval)
RETURNS record
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_scan(
	smallint, bigint, boolean) IS
	'Internal: reads the next part of an old segment of keys; the keys that were found so far, by what is to become of them.';

CREATE FUNCTION idempotency_internal.idem_count_evicted(keys bigint)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_count_evicted(bigint) IS
	'Internal: adds to the counter of evicted keys.';

/*
 * The segment is scanned with later snapshots than that of the check before,
 * a part at a time (retire.c).  Once the segment is quiet no rows are added, so
 * a scan that finds only expired rows stays true.  Then there is also no
 * snapshot left for which one of these rows has not expired (key.c).
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
AS $$
DECLARE
	oldest idempotency_internal.idem_ring;
	seen   record;
BEGIN
	SELECT * INTO oldest FROM idempotency_internal.idem_ring r
		WHERE r.state = 'old' AND r.slot = coalesce(idem_retire.slot, r.slot)
		ORDER BY r.segment LIMIT 1;
	IF NOT FOUND
		OR NOT idempotency_internal.idempotency_is_quiet(oldest.quiet_xid) THEN
		RETURN false;
	END IF;
	SELECT * INTO seen
	FROM idempotency_internal.idem_scan(oldest.slot, oldest.segment, evict);
	IF seen.others > 0 THEN
		-- Other transactions hold rows that idem_migrate could not move.
		-- Pause for 20 times as long as the scan took.
		UPDATE idempotency_internal.idem_ring
			SET rest_until = clock_timestamp() + 20 * seen.took
			WHERE segment = oldest.segment AND state = 'old';
		RETURN false;
	ELSIF NOT seen.done THEN
		RETURN NULL;
	END IF;
	IF NOT idempotency_internal.idempotency_ring_retire(
		'idempotency_internal.idem_ring'::regclass, oldest.segment)
	THEN
		RETURN false;
	END IF;
	PERFORM idempotency_internal.idem_count_expired(seen.expired);
	IF seen.evicted > 0 THEN
		PERFORM idempotency_internal.idem_count_evicted(seen.evicted);
		RAISE WARNING '% keys are forgotten before their time', seen.evicted
			USING DETAIL = 'The keys take more than idempotency.keys_max_size.';
	END IF;
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idem_retire(smallint, boolean) IS
	'Internal: takes an old segment of keys, the oldest by default, out of use once all in it has expired, or has expired or finished; false: not yet; null: this is not known yet, call it again.';

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
		AND ((idempotency_internal.idem_migrate(max_keys, victim, true) > 0)
				IS NOT FALSE
			OR idempotency_internal.idem_retire(victim, true) IS NOT FALSE);
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
		AND ((idempotency_internal.idem_migrate(max_keys, unused) > 0)
				IS NOT FALSE
			OR idempotency_internal.idem_retire(unused) IS NOT FALSE);
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
