/*
 * outbox: how space of the log is freed.  The log is a ring of three segments
 * (base/ring.c).  A segment is closed when it has taken events for half of
 * idempotency.outbox_retention.  It is retired when it has been closed for
 * that retention and no subscription has to read it any more.  The sweeper
 * takes each step in a short transaction.
 */

CREATE FUNCTION idempotency_internal.outbox_has_drawn()
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_has_drawn() IS
	'Internal: whether a position was handed out in this database since the server was started.';

/*
 * A copy that is not adopted forgets nothing, and neither does a database that
 * no subscription has made the home of its outbox: the rows that tell of a home
 * and of subscriptions may be restored last.  Without a home, events are its
 * own if it has handed out positions.
 */
CREATE FUNCTION idempotency_internal.outbox_may_forget()
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN EXISTS (SELECT FROM idempotency_internal.outbox_home)
		THEN idempotency_internal.outbox_is_at_home()
		ELSE idempotency_internal.outbox_has_drawn() END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_may_forget() IS
	'Internal: whether the events here are those of this database, and not of a copy.';

/*
 * A restore may load rows into a segment after it was closed.  Positions that
 * high were written by hand.
 */
CREATE FUNCTION idempotency_internal.outbox_last_position(
	slot smallint, known bigint)
RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT greatest(known, CASE slot
		WHEN 0 THEN (SELECT max(position)
			FROM idempotency_internal.outbox_log_0
			WHERE position < bigint '1' << 62)
		WHEN 1 THEN (SELECT max(position)
			FROM idempotency_internal.outbox_log_1
			WHERE position < bigint '1' << 62)
		ELSE (SELECT max(position)
			FROM idempotency_internal.outbox_log_2
			WHERE position < bigint '1' << 62) END)
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_last_position(
	smallint, bigint) IS
	'Internal: the highest position in a segment of the log, or the known one if that is higher.';

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
	upto   bigint;
BEGIN
	SELECT * INTO oldest FROM idempotency_internal.outbox_ring
		WHERE state = 'old' ORDER BY segment LIMIT 1;
	upto := idempotency_internal.outbox_last_position(
		oldest.slot, oldest.last_position);
	IF upto IS NULL OR EXISTS (SELECT
		FROM idempotency_internal.outbox_partitions_behind(upto))
	THEN
		RETURN false;
	END IF;
	LOCK TABLE idempotency_internal.outbox_partition
		IN SHARE ROW EXCLUSIVE MODE;
	LOCK TABLE idempotency_internal.outbox_ring IN SHARE ROW EXCLUSIVE MODE;
	EXECUTE 'LOCK TABLE idempotency_internal.outbox_log_' || oldest.slot || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
	upto := idempotency_internal.outbox_last_position(oldest.slot, upto);
	UPDATE idempotency_internal.outbox_ring SET last_position = upto
	WHERE segment = oldest.segment AND last_position < upto;
	RETURN NOT EXISTS (SELECT
			FROM idempotency_internal.outbox_partitions_behind(upto))
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
 * because an open transaction has rows in it, or a snapshot is older than its
 * closing, or likely to be older than its retirement for long.
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
		OR EXISTS (SELECT FROM pg_stat_activity a
			WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL
				AND a.xact_start < clock_timestamp() - interval '10 s'
				-- VACUUM of another table, however long, keeps no rows of ours.
				AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v
					WHERE v.pid = coalesce(a.leader_pid, a.pid)))
	THEN
		RETURN false;
	END IF;
	EXECUTE 'LOCK TABLE idempotency_internal.outbox_log_' || old_slot || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
	upto := idempotency_internal.outbox_last_position(old_slot, upto);
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
 * A segment that is empty by the ring but has rows was restored.  The segments
 * are then brought into the order of their positions; the one with the highest
 * becomes the current one.  The locks wait for nobody: a transaction that has
 * rows in a segment, and may have a higher position, makes them fail.
 */
CREATE FUNCTION idempotency_internal.outbox_arrange_restored()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM idempotency_internal.outbox_ring r
		WHERE r.state = 'empty' AND idempotency_internal.outbox_last_position(
			r.slot, NULL) IS NOT NULL)
	THEN
		RETURN false;
	END IF;
	LOCK TABLE idempotency_internal.outbox_partition
		IN SHARE ROW EXCLUSIVE MODE;
	LOCK TABLE idempotency_internal.outbox_ring IN SHARE ROW EXCLUSIVE MODE;
	LOCK TABLE idempotency_internal.outbox_log_0,
		idempotency_internal.outbox_log_1, idempotency_internal.outbox_log_2
		IN SHARE MODE NOWAIT;
	PERFORM pg_current_xact_id();
	UPDATE idempotency_internal.outbox_ring r
	SET state = CASE WHEN n.newest THEN 'current' WHEN n.last IS NULL
			THEN 'empty' ELSE 'old' END,
		segment = CASE WHEN n.last IS NOT NULL THEN n.highest + n.number END,
		opened_at = CASE WHEN n.last IS NOT NULL THEN clock_timestamp() END,
		closed_at = CASE WHEN NOT n.newest THEN clock_timestamp() END,
		quiet_xid = CASE WHEN NOT n.newest
			THEN idempotency_internal.idempotency_next_xid() END,
		last_position = CASE WHEN NOT n.newest THEN n.last END
	FROM (SELECT o.slot, o.last, max(o.segment) OVER () AS highest,
			row_number() OVER (ORDER BY o.last) AS number,
			CASE WHEN o.last IS NOT NULL
				THEN o.last = max(o.last) OVER () END AS newest
		FROM (SELECT i.slot, i.segment,
				idempotency_internal.outbox_last_position(
					i.slot, CASE WHEN i.state = 'old'
						THEN i.last_position END) AS last
			FROM idempotency_internal.outbox_ring i
			WHERE i.state <> 'retired') o) n
	WHERE r.slot = n.slot;
	PERFORM idempotency_internal.idempotency_ring_changed('idempotency_internal.outbox_ring'::regclass);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_arrange_restored() IS
	'Internal: makes the ring of the log what restored segments say; false: there are none, or they are locked.';

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
	IF idempotency_internal.outbox_arrange_restored()
		OR idempotency_internal.outbox_truncate()
	THEN
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
	kept     interval := coalesce((SELECT s.keep_deliveries
		FROM idempotency_internal.outbox_subscription s
		WHERE s.keep_deliveries IS NOT NULL
		ORDER BY s.keep_deliveries DESC LIMIT 1), '0');
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
	IF outdated IS NOT NULL
		AND idempotency_internal.idempotency_ring_retire(
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
	subscriptions CONSTANT bigint[] := ARRAY(
		SELECT s.id FROM idempotency_internal.outbox_subscription s
		WHERE EXISTS (SELECT FROM idempotency_internal.outbox_cancelled));
	-- Each event is looked up for each subscription.
	most    CONSTANT integer := least(max_events,
		1 + 10 * max_events / (1 + cardinality(subscriptions)));
	first   bigint;				-- that the log has, or will have
	unswept bigint[];
	deleted bigint[];
BEGIN
	unswept := ARRAY(
		SELECT c.position FROM idempotency_internal.outbox_cancelled c
		WHERE NOT c.swept
			AND c.cancelled_at < (SELECT clock_timestamp()) - interval '1 s'
		ORDER BY c.cancelled_at LIMIT most FOR UPDATE SKIP LOCKED);
	DELETE FROM idempotency_internal.outbox_delivery
	WHERE ctid = ANY (ARRAY(
		SELECT copy.ctid FROM unnest(subscriptions) s(id)
		CROSS JOIN unnest(unswept) u(position)
		CROSS JOIN LATERAL (
			SELECT d.ctid FROM idempotency_internal.outbox_delivery d
			WHERE d.subscription = s.id AND d.position = u.position
			OFFSET 0) copy));
	UPDATE idempotency_internal.outbox_cancelled c SET swept = true
	WHERE c.position = ANY (unswept);
	-- In a copy, the log may not be restored yet.
	IF NOT idempotency_internal.outbox_may_forget() THEN
		RETURN cardinality(unswept) >= most;
	END IF;
	SELECT coalesce((SELECT e.position FROM idempotency_internal.outbox_event e
			ORDER BY e.position LIMIT 1), s.last_value + 1)
	INTO first FROM idempotency_internal.outbox_position_seq s;
	-- If the first ones have to stay, the others wait for them.
	deleted := ARRAY(
		SELECT o.position FROM (
			SELECT c.position, c.xid
			FROM idempotency_internal.outbox_cancelled c
			WHERE c.position < first ORDER BY c.position LIMIT most) o
		WHERE (o.xid < (SELECT idempotency_internal.idempotency_horizon(
					'idempotency_internal.outbox_ring'::regclass))
				OR o.xid >= (SELECT
					idempotency_internal.idempotency_next_xid()))
			AND (SELECT d.position FROM idempotency_internal.outbox_delivery d
				WHERE d.subscription = ANY (subscriptions)
					AND d.position = o.position LIMIT 1) IS NULL);
	DELETE FROM idempotency_internal.outbox_cancelled c
	WHERE c.position = ANY (ARRAY(
		SELECT o.position FROM idempotency_internal.outbox_cancelled o
		WHERE o.position = ANY (deleted) FOR UPDATE SKIP LOCKED));
	RETURN greatest(cardinality(unswept), cardinality(deleted)) >= most;
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
	now            timestamptz := clock_timestamp();
	may_forget     CONSTANT boolean :=
		idempotency_internal.outbox_may_forget();
	rotated        record;
	counted        bigint[];
	deleted        integer := 0;
BEGIN
	FOR rotated IN
		SELECT s.id, s.name FROM idempotency_internal.outbox_subscription s
		WHERE least(s.old_until, s.old_key_until) <= now
		LIMIT max_events FOR NO KEY UPDATE SKIP LOCKED
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
	IF dead_retention <> '-1' AND may_forget THEN
		-- A locked row stays in its place.
		DELETE FROM idempotency_internal.outbox_delivery
		WHERE ctid = ANY (ARRAY(
			SELECT o.ctid FROM idempotency_internal.outbox_delivery o
			WHERE o.state = 'dead' AND o.last_at <= now - dead_retention::interval
			ORDER BY o.last_at LIMIT max_events FOR UPDATE SKIP LOCKED));
		GET DIAGNOSTICS deleted = ROW_COUNT;
	END IF;
	-- The second snapshot has all subscriptions that are counted.
	counted := ARRAY(SELECT t.subscription
		FROM idempotency_internal.outbox_traffic() t);
	PERFORM idempotency_internal.outbox_forget_traffic(ARRAY(
		SELECT c.id FROM unnest(counted) c(id)
		WHERE (SELECT s.id FROM idempotency_internal.outbox_subscription s
			WHERE s.id = c.id) IS NULL));
	RETURN may_forget AND (idempotency_internal.outbox_expire_log()
			OR idempotency_internal.outbox_forget())
		OR idempotency_internal.outbox_sweep_cancelled(max_events)
		OR idempotency_internal.idempotency_expire_audit(max_events)
		OR deleted >= max_events;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_expire(integer) IS
	'Internal: the next step of forgetting events, dead letters and secrets past their time; true: call it again.';
