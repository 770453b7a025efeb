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
	'Internal: the sweeper frees the quantities of lapsed reservations; returns how many holds, or -1 if it has to be called again to find some.';

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
 * several lines of an item: the confirmed ones and the last one are shown.
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
			-- Not a join: a plan made for an empty queue would read all of it.
			coalesce((SELECT queue.quantity
				FROM idempotency_internal.stock_queue queue
				WHERE queue.sku = hold.sku AND queue.id = hold.id),
				hold.quantity) AS quantity,
			hold.lines AS count, 9223372036854775807 AS id,
			CASE WHEN hold.expires_at <= clock_timestamp() THEN 'expired'
				WHEN hold.quantity = 0 THEN 'waiting'
				ELSE 'open' END AS state,
			hold.expires_at AS at
		FROM idempotency_internal.stock_hold hold
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
		SELECT known.*, known.state = 'confirmed'
			OR known.id = max(known.id) OVER (PARTITION BY known.sku) AS counts
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

/*
 * Reads the rows that are before the reservation, as many as are counted, and
 * not the whole view.  The queue is searched by a key in each plan, also in one
 * that was made when it was empty.
 */
CREATE FUNCTION stock_position(
	reservation text, at_most bigint DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	waits idempotency_internal.stock_hold;
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.stock_check_reservation(reservation);
	IF at_most < 1 THEN
		PERFORM idempotency_internal.idempotency_raise(
			'22023', 'at_most must be positive');
	END IF;
	SELECT * INTO waits FROM idempotency_internal.stock_hold hold
	WHERE hold.reservation = stock_position.reservation AND hold.quantity = 0;
	RETURN (SELECT nullif(count(*), 0) FROM (
		SELECT FROM idempotency_internal.stock_queue queue
		WHERE queue.sku = waits.sku AND queue.id <= waits.id
		ORDER BY queue.id DESC
		LIMIT least(at_most, 9223372036854775806) + 1) place);
END
$$;
COMMENT ON FUNCTION stock_position(text, bigint) IS
	'The position of a reservation in the queue of its item, 1 for the first; null if it does not wait. It counts up to at_most; a greater result means that the position is greater than at_most.';

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

CREATE FUNCTION idempotency_internal.stock_counter_marks()
RETURNS bigint[]
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_counter_marks() IS
	'Internal: how often each counter was touched, for stock_counters_unchanged.';

CREATE FUNCTION idempotency_internal.stock_counters_unchanged(
	marks         bigint[],
	OUT sku       text,
	OUT available bigint,
	OUT waiting   integer)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_counters_unchanged(bigint[]) IS
	'Internal: what is available of items, by the counters that were not touched since.';

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
CREATE FUNCTION idempotency_internal.stock_missing(reservation text)
RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
	RETURN (
		SELECT max(known.lines) - count(DISTINCT known.line)
		FROM (
			SELECT open.line, open.lines
			FROM idempotency_internal.stock_hold open
			WHERE open.reservation = stock_missing.reservation
			UNION ALL
			SELECT settled.line, settled.lines
			FROM idempotency_internal.stock_entry settled
			WHERE settled.reservation = stock_missing.reservation
				AND settled.line IS NOT NULL) known);
END
$$;
COMMENT ON FUNCTION idempotency_internal.stock_missing(text) IS
	'Internal: how many lines of an open reservation are missing.';

/*
 * The counters are read before and after the snapshot is taken.  A counter that
 * was not touched in between must equal the log.  That is not possible with a
 * snapshot that is kept for several statements.
 *
 * Nothing is looked up for each item: no statistics are needed to see that each
 * table is read once.  Only reservations that are settled in part are looked
 * up, and for one item all of its reservations.
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
SET enable_nestloop = off SET jit = off
AS $$
DECLARE
	marks bigint[] := '{}'::bigint[];
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	IF sku IS NOT NULL THEN
		PERFORM idempotency_internal.stock_check_sku(sku);
	END IF;
	IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
		IF sku IS NULL THEN
			marks := idempotency_internal.stock_counter_marks();
		ELSE
			marks := ARRAY(SELECT counter.touches
				FROM idempotency_internal.stock_counter(sku) counter
				WHERE NOT counter.in_use);
		END IF;
	END IF;
	RETURN QUERY
	WITH ledger AS MATERIALIZED (
		SELECT *
		FROM idempotency_internal.stock_ledger entry
		WHERE stock_verify.sku IS NULL OR entry.sku = stock_verify.sku
	), counter AS MATERIALIZED (
		SELECT unchanged.sku, unchanged.available, unchanged.waiting
		FROM idempotency_internal.stock_counters_unchanged(marks) unchanged
		WHERE stock_verify.sku IS NULL
		UNION ALL
		SELECT one.sku, one.available, one.waiting
		FROM idempotency_internal.stock_counter(stock_verify.sku) one
		WHERE NOT one.in_use AND one.touches = marks[1]
	), hold AS NOT MATERIALIZED (
		SELECT * FROM idempotency_internal.stock_hold line
		WHERE stock_verify.sku IS NULL OR line.sku = stock_verify.sku
	), queue AS MATERIALIZED (
		SELECT coalesce(entry.sku, held.sku) AS sku,
			count(entry.id) AS waiting,
			count(*) FILTER (WHERE entry.id IS NULL OR held.id IS NULL) AS wrong
		FROM (SELECT * FROM idempotency_internal.stock_queue waits
			WHERE stock_verify.sku IS NULL
				OR waits.sku = stock_verify.sku) entry
		FULL JOIN (SELECT * FROM hold WHERE hold.quantity = 0) held
			ON held.sku = entry.sku AND held.id = entry.id
				AND held.reservation = entry.reservation
		GROUP BY coalesce(entry.sku, held.sku)
	), part AS MATERIALIZED (
		SELECT hold.reservation FROM hold
		WHERE hold.lines > 1
		GROUP BY hold.reservation
		HAVING stock_verify.sku IS NOT NULL OR count(*) < max(hold.lines)
	), lacking AS MATERIALIZED (
		SELECT part.reservation,
			idempotency_internal.stock_missing(part.reservation) AS missing
		FROM part
	), incomplete AS MATERIALIZED (
		SELECT DISTINCT ON (hold.sku)
			hold.sku, hold.reservation, lacking.missing
		FROM lacking JOIN hold ON hold.reservation = lacking.reservation
		WHERE lacking.missing > 0 AND hold.lines > 1
		ORDER BY hold.sku, hold.reservation
	), checked AS (
		SELECT ledger.sku, ledger.available, ledger.reserved, nullif(concat_ws('; ',
			CASE WHEN NOT ledger.has_item THEN 'there is no row in stock_item' END,
			CASE WHEN ledger.available < 0 THEN
				format('too many are promised: %s', -ledger.available) END,
			CASE WHEN incomplete.missing > 0 THEN
				format('reservation "%s" lacks lines: %s', incomplete.reservation, incomplete.missing) END,
			CASE WHEN ledger.available <> counter.available THEN
				format('available: %s by the tables, %s by the counter', ledger.available, counter.available) END,
			CASE WHEN ledger.available + ledger.reserved BETWEEN
					'-9223372036854775808' AND '9223372036854775807' THEN NULL
				ELSE 'it is out of the range of bigint' END,
			CASE WHEN coalesce(queue.waiting, 0) <> counter.waiting THEN
				format('waiting: %s by the tables, %s by the counter', coalesce(queue.waiting, 0), counter.waiting) END,
			CASE WHEN queue.wrong > 0 THEN
				format('reservations that wait differ in stock_hold and stock_queue: %s', queue.wrong) END
			), '') AS detail
		FROM ledger
		LEFT JOIN counter ON counter.sku = ledger.sku
		LEFT JOIN queue ON queue.sku = ledger.sku
		LEFT JOIN incomplete ON incomplete.sku = ledger.sku
	)
	SELECT checked.sku,
		CASE WHEN checked.available BETWEEN
				'-9223372036854775808' AND '9223372036854775807'
			THEN checked.available::bigint END,
		CASE WHEN checked.reserved BETWEEN
				'-9223372036854775808' AND '9223372036854775807'
			THEN checked.reserved::bigint END,
		checked.detail IS NULL, checked.detail
	FROM checked
	ORDER BY checked.sku;
END
$$;
COMMENT ON FUNCTION stock_verify(text) IS
	'Recomputes one item, or every item, from its root record, log and holds, and compares it with its counter; detail describes a difference.';
