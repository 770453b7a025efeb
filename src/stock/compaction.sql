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
 * The rows of these reservations are moved to the current table: from all old
 * tables, so that no row is kept for longer than a later row of the same line.
 */
CREATE FUNCTION idempotency_internal.stock_move_needed(
	old_slot smallint, needed text[])
RETURNS bigint
LANGUAGE plpgsql STRICT VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	slot   smallint;
	closed smallint;
	moved  bigint;
	total  bigint := 0::bigint;
BEGIN
	IF needed = '{}'::text[] THEN
		RETURN 0::bigint;
	END IF;
	LOCK TABLE idempotency_internal.stock_ring IN ROW EXCLUSIVE MODE;
	SELECT ring.slot INTO slot FROM idempotency_internal.stock_ring ring
	WHERE ring.state = 'current';
	FOR closed IN
		SELECT ring.slot FROM idempotency_internal.stock_ring ring
		WHERE ring.state = 'old' OR ring.slot = old_slot
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
COMMENT ON FUNCTION
	idempotency_internal.stock_move_needed(smallint, text[]) IS
	'Internal: moves the rows of reservations from old tables of the history to the current one; returns how many.';

CREATE FUNCTION idempotency_internal.stock_migrate_rows(old_slot smallint)
RETURNS bigint
LANGUAGE plpgsql STRICT VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN idempotency_internal.stock_move_needed(old_slot,
		idempotency_internal.stock_needed(old_slot));
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
 * The same for a part of what stock_needed returns: for reinstatements after
 * this one; or, if after_id is null, for holds of reservations after this one.
 * A reservation of which the part has not all open lines is taken for one that
 * is needed: its rows are only kept for longer.
 */
CREATE FUNCTION idempotency_internal.stock_keep_some(
	old_slot smallint, after_id bigint, after text, max_rows integer,
	OUT last_id bigint, OUT last text, OUT moved bigint)
RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	needed text[];
	seen   bigint;
BEGIN
	IF after_id IS NOT NULL THEN
		EXECUTE format($query$
			SELECT count(*), max(opened.id),
				coalesce(array_agg(opened.reservation)
					FILTER (WHERE opened.needed), '{}')
			FROM (
				SELECT entry.id, entry.reservation, (
					SELECT true FROM (
						SELECT * FROM idempotency_internal.stock_log
						UNION ALL
						SELECT * FROM idempotency_internal.stock_history_%s
						UNION ALL
						SELECT * FROM
							idempotency_internal.stock_history_%s) past
					WHERE past.reservation = entry.reservation
						AND past.line IS NOT NULL AND past.change = 'cancel'
						AND past.id < entry.id
					LIMIT 1) AS needed
				FROM idempotency_internal.stock_history_%s entry
				WHERE entry.change = 'reinstate' AND entry.id > $1
				ORDER BY entry.id LIMIT $2) opened
			$query$, (old_slot + 1) % 3, (old_slot + 2) % 3, old_slot)
			INTO seen, last_id, needed USING after_id, max_rows;
	ELSE
		WITH part AS MATERIALIZED (
			SELECT hold.reservation, hold.lines
			FROM idempotency_internal.stock_hold hold
			WHERE hold.reservation > coalesce(after, '') COLLATE "C"
			ORDER BY hold.reservation LIMIT max_rows
		)
		SELECT count(*), max(part.reservation), ARRAY(
			SELECT entry.reservation FROM part entry
			GROUP BY entry.reservation
			HAVING count(*) < max(entry.lines) OR max(entry.lines) IS NULL)
		INTO seen, last, needed FROM part;
	END IF;
	IF seen < max_rows THEN
		last_id := NULL;
		last := NULL;
	END IF;
	moved := idempotency_internal.stock_move_needed(old_slot, needed);
	-- Snapshots that are older see the rows in this table.
	IF moved > 0 THEN
		UPDATE idempotency_internal.stock_ring
		SET quiet_xid = idempotency_internal.idempotency_next_xid()
		WHERE slot = old_slot;
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_keep_some(
	smallint, bigint, text, integer) IS
	'Internal: what a step of stock_keep_needed does; last_id or last, null at the end: where the next one goes on.';

CREATE FUNCTION idempotency_internal.stock_keep_needed(
	old_slot smallint, segment bigint, max_rows integer)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_keep_needed(
	smallint, bigint, integer) IS
	'Internal: moves some of the rows that must not be dropped with a retired table of the history; true: that were all; null: the table is locked.';

CREATE FUNCTION idempotency_internal.stock_is_kept(segment bigint)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_is_kept(bigint) IS
	'Internal: whether stock_keep_needed has moved all, and nothing was opened again since; null: that will not come to an end.';

/*
 * A transaction may have opened a reservation again after the search has passed
 * it.  It keeps the table locked until its end (ledger_keep), so a session that
 * has locked the table alone knows of all of them.
 */
CREATE FUNCTION idempotency_internal.stock_truncate()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	unused idempotency_internal.stock_ring;
	kept   boolean;
BEGIN
	SELECT * INTO unused FROM idempotency_internal.stock_ring ring
	WHERE ring.state = 'retired' ORDER BY ring.segment LIMIT 1;
	IF NOT FOUND
		OR NOT idempotency_internal.idempotency_is_quiet(unused.quiet_xid)
	THEN
		RETURN false;
	END IF;
	EXECUTE 'LOCK TABLE idempotency_internal.stock_history_' || unused.slot || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
	kept := idempotency_internal.stock_is_kept(unused.segment);
	IF kept IS NULL THEN
		kept := idempotency_internal.stock_migrate(unused.slot) = 0;
		-- Snapshots that are older see the rows in this table.
		UPDATE idempotency_internal.stock_ring
		SET quiet_xid = idempotency_internal.idempotency_next_xid()
		WHERE slot = unused.slot AND NOT kept;
	END IF;
	IF NOT kept THEN
		RETURN true;
	END IF;
	RETURN idempotency_internal.idempotency_ring_truncate(
		'idempotency_internal.stock_ring'::regclass, 'stock_history'::text);
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_truncate() IS
	'Internal: truncates a retired table of the history; false: there is none, a snapshot is older, or it is locked.';

/*
 * A table that is empty by the ring but has rows was restored.  Which of the
 * restored tables was filled after which is not known, so all rows are moved
 * into the current one: they are then dropped together, and a line is never
 * remembered by an older row than its last one.
 */
CREATE FUNCTION idempotency_internal.stock_gather_rows(
	restored smallint, first_page bigint, max_rows integer)
RETURNS bigint
LANGUAGE plpgsql STRICT VOLATILE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	slot smallint;
	rows tid[];
BEGIN
	LOCK TABLE idempotency_internal.stock_ring IN ROW EXCLUSIVE MODE;
	SELECT ring.slot INTO slot FROM idempotency_internal.stock_ring ring
	WHERE ring.state = 'current';
	EXECUTE format('SELECT ARRAY(
			SELECT ctid FROM idempotency_internal.stock_history_%s
			WHERE ctid >= $1 LIMIT $2)', restored)
		INTO rows USING format('(%s,0)', first_page)::tid, max_rows;
	EXECUTE format('WITH moved AS (
			DELETE FROM idempotency_internal.stock_history_%s
			WHERE ctid = ANY ($1) RETURNING *)
		INSERT INTO idempotency_internal.stock_history_%s
		SELECT * FROM moved', restored, slot) USING rows;
	RETURN coalesce((rows[cardinality(rows)]::text::point)[0]::bigint, -1);
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_gather_rows(
	smallint, bigint, integer) IS
	'Internal: what stock_gather does: returns the page of the last row that was moved; -1: there was none.';

CREATE FUNCTION idempotency_internal.stock_gather(
	restored smallint, max_rows integer)
RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_gather(smallint, integer) IS
	'Internal: moves rows of a restored table of the history to the current one; false: no row is left.';

/*
 * The lock keeps a restore from adding rows to a table that is retired.
 */
CREATE FUNCTION idempotency_internal.stock_gather_restored(max_rows integer)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
	restored smallint;
BEGIN
	SELECT ring.slot INTO restored FROM idempotency_internal.stock_ring ring
	WHERE ring.state = 'empty' AND pg_relation_size(
		('idempotency_internal.stock_history_' || ring.slot)::regclass) > 0
	ORDER BY ring.slot LIMIT 1;
	IF NOT FOUND THEN
		RETURN false;
	ELSIF NOT idempotency_internal.stock_gather(restored, max_rows) THEN
		EXECUTE 'LOCK TABLE idempotency_internal.stock_history_' || restored || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
		IF NOT idempotency_internal.stock_gather(restored, max_rows) THEN
			UPDATE idempotency_internal.stock_ring
			SET state = 'retired', closed_at = clock_timestamp(),
				quiet_xid = idempotency_internal.idempotency_next_xid(),
				segment = (SELECT max(ring.segment) + 1
					FROM idempotency_internal.stock_ring ring)
			WHERE slot = restored;
		END IF;
	END IF;
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION
	idempotency_internal.stock_gather_restored(integer) IS
	'Internal: the next step of moving restored rows of the history to its current table; false: there are none, or the table is locked.';

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
	is_kept  boolean;
BEGIN
	IF idempotency_internal.stock_gather_restored(max_rows) THEN
		RETURN true;
	END IF;
	SELECT * INTO outdated FROM idempotency_internal.stock_ring ring
		WHERE ring.state = 'retired' ORDER BY ring.segment LIMIT 1;
	is_kept := idempotency_internal.stock_keep_needed(
		outdated.slot, outdated.segment, max_rows);
	IF NOT is_kept OR (is_kept AND idempotency_internal.stock_truncate()) THEN
		RETURN true;
	END IF;
	SELECT * INTO outdated FROM idempotency_internal.stock_ring ring
		WHERE ring.state = 'old' AND ring.closed_at <= clock_timestamp() - kept
			AND idempotency_internal.idempotency_is_quiet(ring.quiet_xid)
		ORDER BY ring.segment LIMIT 1;
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
