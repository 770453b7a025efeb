/*
 * stock: receive, reserve, confirm, cancel, expire; levels and verification
 *
 * Locks.  Every change of an item, of its holds and of its log is made under
 * the lock of its stock_item row, kept to the end of the transaction.  Nobody
 * locks a hold before its item.  A call locks its items in the order of their
 * skus, so two orders cannot deadlock; what is not the caller's own (the
 * lapsed holds of others) is only ever locked without waiting.  A reserve
 * first locks the reservation's name, since the second of two that use a new
 * name at once finds no row yet to wait for.
 *
 * Reading goes on in a statement of its own after each wait for a lock, so
 * that it sees what the other transaction left.  Under REPEATABLE READ and
 * SERIALIZABLE it could not; there the lock of an item that has changed since
 * the snapshot raises the serialization failure.  One thing escapes them:
 * a name used since the snapshot for other items only is taken for new.
 *
 * Time is clock_timestamp(), asked after the locks are had: a hold that lapses
 * while a confirm waits has lapsed.
 *
 * Plans.  stock_hold is empty at night and has a hundred thousand rows an hour
 * later.  A plan made for the empty table reads all of it, and a session keeps
 * its plans, so the functions that look for holds turn sequential scans off.
 *
 * The public functions check and lock; stock_book and stock_settle are the
 * only ones to change holds.  Helpers run with the rights and the search_path
 * of the function that called them and are granted to nobody.
 */

/* ---- arguments ---- */

CREATE FUNCTION stock_check_text(value text, name text, max_bytes integer DEFAULT 255)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
	IF value IS NULL THEN
		RAISE EXCEPTION USING
			ERRCODE = 'null_value_not_allowed',
			MESSAGE = format('%s must not be null', name);
	ELSIF value = '' THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('%s must not be empty', name);
	ELSIF octet_length(value) > max_bytes THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('%s is too long', name),
			DETAIL = format('It has %s bytes; the limit is %s.',
							octet_length(value), max_bytes);
	ELSIF getdatabaseencoding() <> 'UTF8' THEN
		PERFORM convert_to(value, 'UTF8');	-- events go out in UTF-8
	END IF;
END
$$;
COMMENT ON FUNCTION stock_check_text(text, text, integer) IS
	'Internal: raises an error unless the value is there and of a sane length.';

CREATE FUNCTION stock_check_line(sku text, quantity bigint)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
	PERFORM @extschema@.stock_check_text(sku, 'sku');
	IF quantity IS NULL THEN
		RAISE EXCEPTION USING
			ERRCODE = 'null_value_not_allowed',
			MESSAGE = 'quantity must not be null',
			DETAIL = format('The sku is "%s".', sku);
	ELSIF quantity <= 0 THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = 'quantity must be positive',
			DETAIL = format('The quantity of "%s" is %s.', sku, quantity);
	END IF;
END
$$;
COMMENT ON FUNCTION stock_check_line(text, bigint) IS
	'Internal: raises an error unless sku and quantity can stand in a line.';

CREATE FUNCTION stock_check_list(items anyarray, name text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
	max_items CONSTANT integer := 10000;
BEGIN
	IF items IS NULL THEN
		RAISE EXCEPTION USING
			ERRCODE = 'null_value_not_allowed',
			MESSAGE = format('%s must not be null', name);
	ELSIF cardinality(items) = 0 THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('%s must not be empty', name);
	ELSIF cardinality(items) > max_items THEN
		RAISE EXCEPTION USING
			ERRCODE = 'program_limit_exceeded',
			MESSAGE = format('too many %s', name),
			DETAIL = format('There are %s; the limit is %s.',
							cardinality(items), max_items);
	END IF;
END
$$;
COMMENT ON FUNCTION stock_check_list(anyarray, text) IS
	'Internal: raises an error unless the list is there and of a sane length.';

CREATE FUNCTION stock_expiry(ttl interval, start timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql STABLE
AS $$
DECLARE
	span   interval := coalesce(ttl, current_setting('idempotency.reservation_ttl')::interval);
	expiry timestamptz;
BEGIN
	IF NOT isfinite(span) THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = 'ttl must be finite';
	END IF;
	expiry := start + span;
	IF expiry <= start THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = 'ttl must be positive';
	END IF;
	RETURN expiry;
END
$$;
COMMENT ON FUNCTION stock_expiry(interval, timestamptz) IS
	'Internal: when a reservation made at this time expires.';

CREATE FUNCTION stock_sum_lines(lines stock_line[])
RETURNS stock_line[]
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
	line @extschema@.stock_line;
BEGIN
	PERFORM @extschema@.stock_check_list(lines, 'lines');
	FOREACH line IN ARRAY lines LOOP
		PERFORM @extschema@.stock_check_line(line.sku, line.quantity);
	END LOOP;
	RETURN ARRAY(
		SELECT ROW(given.sku, sum(given.quantity)::bigint)::@extschema@.stock_line
		FROM unnest(lines) given
		GROUP BY given.sku
		ORDER BY given.sku);
END
$$;
COMMENT ON FUNCTION stock_sum_lines(stock_line[]) IS
	'Internal: the lines, checked, each sku once with the sum of its quantities, in the order of the skus.';

CREATE FUNCTION stock_lines(lines jsonb)
RETURNS stock_line[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	item   record;
	amount numeric;
	listed @extschema@.stock_line[] := '{}';
BEGIN
	IF lines IS NULL THEN
		RAISE EXCEPTION USING
			ERRCODE = 'null_value_not_allowed',
			MESSAGE = 'lines must not be null';
	ELSIF jsonb_typeof(lines) <> 'object' THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = 'lines must be a JSON object',
			DETAIL = format('It is of type %s.', jsonb_typeof(lines)),
			HINT = 'Write {"sku": quantity, ...}.';
	END IF;
	FOR item IN SELECT each.key AS sku, each.value FROM jsonb_each(lines) each LOOP
		PERFORM @extschema@.stock_check_text(item.sku, 'sku');
		IF jsonb_typeof(item.value) = 'number' THEN
			amount := item.value::numeric;
		END IF;
		IF jsonb_typeof(item.value) <> 'number' OR amount <> trunc(amount) THEN
			RAISE EXCEPTION USING
				ERRCODE = 'invalid_parameter_value',
				MESSAGE = 'quantity must be an integer',
				DETAIL = format('The quantity of "%s" is %s.',
								item.sku, left(item.value::text, 100));
		END IF;
		PERFORM @extschema@.stock_check_line(item.sku, amount::bigint);
		listed := listed || ROW(item.sku, amount::bigint)::@extschema@.stock_line;
	END LOOP;
	RETURN listed;
END
$$;
COMMENT ON FUNCTION stock_lines(jsonb) IS
	'The lines of an order, written as {"sku": quantity, ...}, for stock_reserve.';

/* ---- reserve ---- */

/*
 * Waits until nobody else is reserving under the name and keeps it to the end
 * of the transaction.  That is one entry of the lock table for each name: a
 * transaction can make thousands of reservations, and more with a larger
 * max_locks_per_transaction.
 */
CREATE FUNCTION stock_lock_name(reservation text)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	/* Keeps clear of the advisory locks that applications take on small numbers. */
	seed CONSTANT bigint := 495874958187;
BEGIN
	PERFORM pg_advisory_xact_lock(hashtextextended(reservation, seed));
END
$$;
COMMENT ON FUNCTION stock_lock_name(text) IS
	'Internal: makes those who reserve under one name take turns.';

/* Items that do not exist are missing from the result. */
CREATE FUNCTION stock_lock_items(skus text[])
RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	RETURN ARRAY(
		SELECT item.sku
		FROM @extschema@.stock_item item
		WHERE item.sku = ANY (skus)
		ORDER BY item.sku
		FOR NO KEY UPDATE);
END
$$;
COMMENT ON FUNCTION stock_lock_items(text[]) IS
	'Internal: locks these items in the order of their skus and returns which there are.';

CREATE FUNCTION stock_past_settlement(
	reservation text,
	skus        text[] DEFAULT NULL,
	expected    stock_change DEFAULT NULL)
RETURNS stock_change
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	RETURN (
		SELECT entry.change
		FROM @extschema@.stock_log entry
		WHERE entry.reservation = stock_past_settlement.reservation
		  AND entry.change IN ('confirm', 'cancel', 'expire')
		  AND (skus IS NULL OR entry.sku = ANY (skus))
		ORDER BY entry.change = expected, entry.id DESC
		LIMIT 1);
END
$$;
COMMENT ON FUNCTION stock_past_settlement(text, text[], stock_change) IS
	'Internal: how these lines of a reservation were settled, the last of them, or one that was not settled as expected; null if none was.';

CREATE FUNCTION stock_raise_closed(reservation text, settlement stock_change, what text)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	RAISE EXCEPTION USING
		ERRCODE = 'ID005',
		MESSAGE = format('reservation "%s" is closed', reservation),
		DETAIL = what || CASE settlement
			WHEN 'confirm' THEN ' was confirmed.'
			WHEN 'cancel' THEN ' was cancelled.'
			WHEN 'expire' THEN ' has expired.'
		END,
		HINT = 'Reserve under another name.';
END
$$;
COMMENT ON FUNCTION stock_raise_closed(text, stock_change, text) IS
	'Internal: raises reservation_closed (ID005).';

/*
 * A reservation that is settled in part is closed to a repeat of the whole:
 * "reserved" would not be true of all its lines.
 */
CREATE FUNCTION stock_replay(reservation text, wanted stock_line[])
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	held       @extschema@.stock_line[];
	expiry     timestamptz;
	settlement @extschema@.stock_change;
BEGIN
	SELECT array_agg(ROW(hold.sku, hold.quantity)::@extschema@.stock_line ORDER BY hold.sku),
		   min(hold.expires_at)
	INTO held, expiry
	FROM @extschema@.stock_hold hold
	WHERE hold.reservation = stock_replay.reservation;

	IF expiry <= clock_timestamp() THEN
		PERFORM @extschema@.stock_raise_closed(reservation, 'expire', 'It');
	ELSIF held = wanted THEN
		RETURN expiry;
	END IF;

	settlement := @extschema@.stock_past_settlement(reservation);
	IF settlement IS NOT NULL THEN
		PERFORM @extschema@.stock_raise_closed(
			reservation, settlement,
			CASE WHEN held IS NULL THEN 'It' ELSE 'A line of it' END);
	ELSIF held IS NOT NULL THEN
		RAISE EXCEPTION USING
			ERRCODE = 'ID004',
			MESSAGE = format('reservation "%s" exists with other lines', reservation),
			HINT = 'Reserve under another name.';
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION stock_replay(text, stock_line[]) IS
	'Internal: when the open reservation with these very lines expires, null if the name is new; an error otherwise.';

CREATE FUNCTION stock_shortages(wanted stock_line[], known text[])
RETURNS stock_shortage[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	RETURN ARRAY(
		SELECT ROW(line.sku, line.quantity, free.quantity,
				   line.quantity - free.quantity)::@extschema@.stock_shortage
		FROM unnest(wanted) line
		LEFT JOIN @extschema@.stock_item item
			ON item.sku = line.sku AND item.sku = ANY (known)
		CROSS JOIN LATERAL (
			SELECT coalesce(item.received + item.adjusted
							- item.confirmed - item.reserved, 0) AS quantity
		) free
		WHERE free.quantity < line.quantity
		ORDER BY line.sku);
END
$$;
COMMENT ON FUNCTION stock_shortages(stock_line[], text[]) IS
	'Internal: the lines that fall short; of items that are not known nothing is available.';

CREATE FUNCTION stock_book(
	reservation text,
	wanted      stock_line[],
	actor       text,
	reserved_at timestamptz,
	expires_at  timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	WITH line AS (
		SELECT given.sku, given.quantity FROM unnest(wanted) given
	), held AS (
		INSERT INTO @extschema@.stock_hold
			(reservation, sku, quantity, actor, reserved_at, expires_at)
		SELECT stock_book.reservation, line.sku, line.quantity, stock_book.actor,
			   stock_book.reserved_at, stock_book.expires_at
		FROM line
	), counted AS (
		UPDATE @extschema@.stock_item item
		SET reserved = item.reserved + line.quantity
		FROM line
		WHERE item.sku = line.sku
	)
	INSERT INTO @extschema@.stock_log (sku, change, quantity, reservation, actor)
	SELECT line.sku, 'reserve', line.quantity, stock_book.reservation, stock_book.actor
	FROM line
	ORDER BY line.sku;
END
$$;
COMMENT ON FUNCTION stock_book(text, stock_line[], text, timestamptz, timestamptz) IS
	'Internal: books lines that are locked and known to be available.';

CREATE FUNCTION stock_reserve(
	lines       stock_line[],
	reservation text,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT session_user,
	OUT outcome    stock_outcome,
	OUT expires_at timestamptz,
	OUT shortages  stock_shortage[])
RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	wanted      @extschema@.stock_line[];
	known       text[];
	reserved_at timestamptz;
BEGIN
	PERFORM @extschema@.idempotency_require_preload('stock');
	PERFORM @extschema@.stock_check_text(reservation, 'reservation');
	PERFORM @extschema@.stock_check_text(actor, 'actor');
	PERFORM @extschema@.stock_expiry(ttl, clock_timestamp());
	wanted := @extschema@.stock_sum_lines(lines);
	shortages := '{}';

	PERFORM @extschema@.stock_lock_name(reservation);
	expires_at := @extschema@.stock_replay(reservation, wanted);
	IF expires_at IS NOT NULL THEN
		outcome := 'reserved';
		RETURN;
	END IF;

	known := @extschema@.stock_lock_items(
		ARRAY(SELECT line.sku FROM unnest(wanted) line));
	LOOP
		shortages := @extschema@.stock_shortages(wanted, known);
		EXIT WHEN cardinality(shortages) = 0;
		EXIT WHEN @extschema@.stock_expire_items(
			ARRAY(SELECT line.sku FROM unnest(shortages) line)) = 0;
	END LOOP;

	IF cardinality(known) < cardinality(wanted) THEN
		outcome := 'unknown_sku';
	ELSIF cardinality(shortages) > 0 THEN
		outcome := 'insufficient';
	ELSE
		outcome := 'reserved';
		reserved_at := clock_timestamp();
		expires_at := @extschema@.stock_expiry(ttl, reserved_at);
		PERFORM @extschema@.stock_book(reservation, wanted, actor, reserved_at, expires_at);
	END IF;
END
$$;
COMMENT ON FUNCTION stock_reserve(stock_line[], text, interval, text) IS
	'Reserves all these lines or none, and lists every one that fell short; the same call again books nothing.';

CREATE FUNCTION stock_reserve(
	sku         text,
	quantity    bigint,
	reservation text,
	ttl         interval DEFAULT NULL,
	actor       text DEFAULT session_user,
	OUT outcome    stock_outcome,
	OUT expires_at timestamptz,
	OUT shortages  stock_shortage[])
RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	SELECT reserved.outcome, reserved.expires_at, reserved.shortages
	INTO outcome, expires_at, shortages
	FROM @extschema@.stock_reserve(
		ARRAY[ROW(sku, quantity)::@extschema@.stock_line], reservation, ttl, actor) reserved;
END
$$;
COMMENT ON FUNCTION stock_reserve(text, bigint, text, interval, text) IS
	'Reserves a quantity of one item until it is confirmed, cancelled or expires; the same call again books nothing.';

/* ---- confirm, cancel, expire ---- */

/*
 * The lines of a reservation can be settled in several transactions, since
 * reserve settles those of its own items alone.  Whoever settles the first of
 * them, by sku, announces them all.  That is one transaction, whichever it is
 * and whatever the others do.
 */
CREATE FUNCTION stock_announce_expired(holds tid[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	PERFORM @extschema@.outbox_enqueue(
		topic => 'stock.expired',
		payload => jsonb_build_object('reservation', first.reservation, 'lines', expired.lines),
		key => first.reservation)
	FROM (
		SELECT hold.reservation
		FROM @extschema@.stock_hold hold
		WHERE hold.ctid = ANY (holds)
		  AND NOT EXISTS (
			SELECT FROM @extschema@.stock_hold other
			WHERE other.reservation = hold.reservation AND other.sku < hold.sku)
		  AND NOT EXISTS (
			SELECT FROM @extschema@.stock_log entry
			WHERE entry.reservation = hold.reservation AND entry.change = 'expire'
			  AND entry.sku < hold.sku)
	) first
	CROSS JOIN LATERAL (
		SELECT jsonb_agg(jsonb_build_object('sku', line.sku, 'quantity', line.quantity)
						 ORDER BY line.sku) AS lines
		FROM (
			SELECT other.sku, other.quantity
			FROM @extschema@.stock_hold other
			WHERE other.reservation = first.reservation
			UNION ALL
			SELECT entry.sku, entry.quantity
			FROM @extschema@.stock_log entry
			WHERE entry.reservation = first.reservation AND entry.change = 'expire'
		) line
	) expired;
END
$$;
COMMENT ON FUNCTION stock_announce_expired(tid[]) IS
	'Internal: one event for each reservation of which these holds have the first line.';

CREATE FUNCTION stock_settle(holds tid[], settlement stock_change)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	settler text := CASE WHEN settlement <> 'expire' THEN session_user END;
	settled bigint;
BEGIN
	IF settlement = 'expire' AND current_setting('idempotency.stock_events')::boolean THEN
		PERFORM @extschema@.stock_announce_expired(holds);
	END IF;

	WITH line AS (
		DELETE FROM @extschema@.stock_hold hold
		WHERE hold.ctid = ANY (holds)
		RETURNING hold.reservation, hold.sku, hold.quantity
	), total AS (
		SELECT line.sku, sum(line.quantity)::bigint AS quantity
		FROM line
		GROUP BY line.sku
	), counted AS (
		UPDATE @extschema@.stock_item item
		SET reserved = item.reserved - total.quantity,
			confirmed = item.confirmed
				+ CASE WHEN settlement = 'confirm' THEN total.quantity ELSE 0 END
		FROM total
		WHERE item.sku = total.sku
	)
	INSERT INTO @extschema@.stock_log (sku, change, quantity, reservation, actor)
	SELECT line.sku, settlement, line.quantity, line.reservation, settler
	FROM line
	ORDER BY line.reservation, line.sku;

	GET DIAGNOSTICS settled = ROW_COUNT;
	ASSERT settled = cardinality(holds), 'a locked hold is gone';
END
$$;
COMMENT ON FUNCTION stock_settle(tid[], stock_change) IS
	'Internal: confirms, cancels or expires holds, given by their row addresses; the caller has locked them and their items.';

/*
 * Holds whose item or whose own row is locked are left for the next time: the
 * sweeper never waits, so it can neither be held up by one open transaction
 * nor be part of a deadlock.  Row locks look at expires_at again, in case the
 * hold has changed since it was found.
 */
CREATE FUNCTION stock_expire(max_holds integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
	cutoff timestamptz := clock_timestamp();
	holds  tid[];
BEGIN
	PERFORM @extschema@.idempotency_require_preload('stock');
	IF max_holds IS NULL THEN
		RAISE EXCEPTION USING
			ERRCODE = 'null_value_not_allowed',
			MESSAGE = 'max_holds must not be null';
	ELSIF max_holds <= 0 THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = 'max_holds must be positive';
	END IF;

	holds := ARRAY(
		SELECT hold.ctid
		FROM @extschema@.stock_hold hold
		JOIN @extschema@.stock_item item ON item.sku = hold.sku
		WHERE hold.expires_at <= cutoff
		ORDER BY hold.expires_at
		LIMIT max_holds
		FOR NO KEY UPDATE OF item SKIP LOCKED
		FOR UPDATE OF hold SKIP LOCKED);
	PERFORM @extschema@.stock_settle(holds, 'expire');
	RETURN cardinality(holds);
END
$$;
COMMENT ON FUNCTION stock_expire(integer) IS
	'Internal: the sweeper frees the quantities of lapsed holds, oldest first; returns how many holds.';

CREATE FUNCTION stock_expire_items(skus text[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	max_holds CONSTANT integer := 100;
	cutoff    timestamptz := clock_timestamp();
	holds     tid[];
BEGIN
	holds := ARRAY(
		SELECT hold.ctid
		FROM @extschema@.stock_hold hold
		WHERE hold.sku = ANY (skus) AND hold.expires_at <= cutoff
		LIMIT max_holds
		FOR UPDATE SKIP LOCKED);
	PERFORM @extschema@.stock_settle(holds, 'expire');
	RETURN cardinality(holds);
END
$$;
COMMENT ON FUNCTION stock_expire_items(text[]) IS
	'Internal: frees the quantities of some lapsed holds of items that the caller has locked; returns how many holds.';

CREATE FUNCTION stock_check_skus(reservation text, skus text[], held text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	stranger text;
BEGIN
	SELECT named.sku INTO stranger
	FROM unnest(skus) named (sku)
	WHERE named.sku <> ALL (held)
	  AND NOT EXISTS (
		SELECT FROM @extschema@.stock_log entry
		WHERE entry.reservation = stock_check_skus.reservation
		  AND entry.sku = named.sku)
	LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION USING
			ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('sku "%s" is not in reservation "%s"', stranger, reservation);
	END IF;
END
$$;
COMMENT ON FUNCTION stock_check_skus(text, text[], text[]) IS
	'Internal: raises an error if one of the skus is not and never was a line of the reservation.';

CREATE FUNCTION stock_answer(past stock_change)
RETURNS stock_settlement
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
	RETURN CASE past
		WHEN 'confirm' THEN 'already_confirmed'
		WHEN 'cancel' THEN 'already_cancelled'
		WHEN 'expire' THEN 'expired'
		ELSE 'unknown'
	END;
END
$$;
COMMENT ON FUNCTION stock_answer(stock_change) IS
	'Internal: what to answer when lines had been settled before, or were never reserved.';

/*
 * Without skus it is the lines still open that are meant, or, when there are
 * none, the way the last one went.  With skus, all of them must be open or
 * have gone this same way before; otherwise nothing is changed.
 */
CREATE FUNCTION stock_close(reservation text, skus text[], settlement stock_change)
RETURNS stock_settlement
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	known     text[];
	held_skus text[];
	held      tid[];
	chosen    tid[];
	lapsed    boolean;
	past      @extschema@.stock_change;
BEGIN
	known := @extschema@.stock_lock_items(ARRAY(
		SELECT hold.sku FROM @extschema@.stock_hold hold
		WHERE hold.reservation = stock_close.reservation));
	SELECT coalesce(array_agg(hold.sku), '{}'), coalesce(array_agg(hold.address), '{}'),
		   bool_or(hold.expires_at <= clock_timestamp())
	INTO held_skus, held, lapsed
	FROM (
		SELECT open.sku, open.ctid AS address, open.expires_at
		FROM @extschema@.stock_hold open
		WHERE open.reservation = stock_close.reservation AND open.sku = ANY (known)
		FOR UPDATE
	) hold;
	chosen := held;

	IF cardinality(held) = 0 THEN
		past := @extschema@.stock_past_settlement(reservation);
		IF past IS NULL OR skus IS NULL THEN
			RETURN @extschema@.stock_answer(past);
		END IF;
	END IF;

	IF skus IS NOT NULL THEN
		PERFORM @extschema@.stock_check_skus(reservation, skus, held_skus);
		past := @extschema@.stock_past_settlement(
			reservation,
			ARRAY(SELECT unnest(skus) EXCEPT SELECT unnest(held_skus)),
			settlement);
		chosen := ARRAY(
			SELECT hold.address
			FROM unnest(held_skus, held) hold (sku, address)
			WHERE hold.sku = ANY (skus));
		IF past <> settlement OR cardinality(chosen) = 0 THEN
			RETURN @extschema@.stock_answer(past);
		END IF;
	END IF;

	IF lapsed THEN
		PERFORM @extschema@.stock_settle(held, 'expire');
		RETURN 'expired';
	END IF;
	PERFORM @extschema@.stock_settle(chosen, settlement);
	RETURN 'done';
END
$$;
COMMENT ON FUNCTION stock_close(text, text[], stock_change) IS
	'Internal: confirms or cancels a reservation or some of its lines.';

CREATE FUNCTION stock_check_close(reservation text, skus text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	sku text;
BEGIN
	PERFORM @extschema@.idempotency_require_preload('stock');
	PERFORM @extschema@.stock_check_text(reservation, 'reservation');
	IF skus IS NULL THEN
		RETURN;
	END IF;
	PERFORM @extschema@.stock_check_list(skus, 'skus');
	FOREACH sku IN ARRAY skus LOOP
		PERFORM @extschema@.stock_check_text(sku, 'sku');
	END LOOP;
END
$$;
COMMENT ON FUNCTION stock_check_close(text, text[]) IS
	'Internal: checks the arguments of stock_confirm and stock_cancel.';

CREATE FUNCTION stock_confirm(
	reservation text,
	skus        text[] DEFAULT NULL,
	OUT outcome stock_settlement)
RETURNS stock_settlement
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
BEGIN
	PERFORM @extschema@.stock_check_close(reservation, skus);
	outcome := @extschema@.stock_close(reservation, skus, 'confirm');
END
$$;
COMMENT ON FUNCTION stock_confirm(text, text[]) IS
	'Makes a reservation final, or some of its lines: the quantities have left the stock.';

CREATE FUNCTION stock_cancel(
	reservation text,
	skus        text[] DEFAULT NULL,
	OUT outcome stock_settlement)
RETURNS stock_settlement
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
BEGIN
	PERFORM @extschema@.stock_check_close(reservation, skus);
	outcome := @extschema@.stock_close(reservation, skus, 'cancel');
END
$$;
COMMENT ON FUNCTION stock_cancel(text, text[]) IS
	'Gives up a reservation, or some of its lines: the quantities are available again.';

/* ---- stock in, levels, verification ---- */

CREATE FUNCTION stock_receive(
	sku      text,
	quantity bigint,
	note     text DEFAULT NULL,
	OUT available bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	max_quantity   CONSTANT bigint := 9223372036854775807;
	max_note_bytes CONSTANT integer := 1000;
BEGIN
	PERFORM @extschema@.idempotency_require_preload('stock');
	PERFORM @extschema@.stock_check_line(sku, quantity);
	IF note <> '' THEN
		PERFORM @extschema@.stock_check_text(note, 'note', max_note_bytes);
	END IF;

	INSERT INTO @extschema@.stock_item AS item (sku, received)
	VALUES (stock_receive.sku, stock_receive.quantity)
	ON CONFLICT ON CONSTRAINT stock_item_pkey DO UPDATE
	SET received = item.received + excluded.received
	WHERE excluded.received <= max_quantity - item.received - greatest(item.adjusted, 0);
	IF NOT FOUND THEN
		RAISE EXCEPTION USING
			ERRCODE = 'numeric_value_out_of_range',
			MESSAGE = format('stock of "%s" would be out of range', sku);
	END IF;

	INSERT INTO @extschema@.stock_log (sku, change, quantity, actor, note)
	VALUES (stock_receive.sku, 'receive', stock_receive.quantity, session_user, stock_receive.note);
	SELECT level.available INTO available FROM @extschema@.stock_level(sku) level;
END
$$;
COMMENT ON FUNCTION stock_receive(text, bigint, text) IS
	'Takes stock in; creates the item; returns what is available now.';

CREATE FUNCTION stock_level(sku text)
RETURNS TABLE (available bigint, reserved bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 1
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
BEGIN
	PERFORM @extschema@.stock_check_text(sku, 'sku');
	RETURN QUERY
		SELECT level.available, level.reserved
		FROM @extschema@.stock_levels level
		WHERE level.sku = stock_level.sku;
END
$$;
COMMENT ON FUNCTION stock_level(text) IS
	'What of an item is available and what is reserved; no row for an unknown sku.';

/*
 * Here a lapsed hold counts as reserved until it is settled, since the books
 * are compared as they are written.
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
BEGIN
	IF sku IS NOT NULL THEN
		PERFORM @extschema@.stock_check_text(sku, 'sku');
	END IF;
	RETURN QUERY
	WITH logged AS (
		SELECT entry.sku,
			   sum(entry.quantity) FILTER (WHERE entry.change = 'receive') AS received,
			   sum(entry.quantity) FILTER (WHERE entry.change = 'adjust') AS adjusted,
			   sum(entry.quantity) FILTER (WHERE entry.change = 'confirm') AS confirmed,
			   sum(CASE
					WHEN entry.change IN ('reserve', 'reinstate') THEN entry.quantity
					WHEN entry.change IN ('confirm', 'cancel', 'expire') THEN -entry.quantity
				   END) AS reserved
		FROM @extschema@.stock_log entry
		WHERE stock_verify.sku IS NULL OR entry.sku = stock_verify.sku
		GROUP BY entry.sku
	), held AS (
		SELECT hold.sku, sum(hold.quantity) AS reserved
		FROM @extschema@.stock_hold hold
		WHERE stock_verify.sku IS NULL OR hold.sku = stock_verify.sku
		GROUP BY hold.sku
	), item AS (
		SELECT item.*
		FROM @extschema@.stock_item item
		WHERE stock_verify.sku IS NULL OR item.sku = stock_verify.sku
	)
	SELECT item_key.sku,
		   (coalesce(logged.received, 0) + coalesce(logged.adjusted, 0)
			- coalesce(logged.confirmed, 0) - coalesce(logged.reserved, 0))::bigint,
		   coalesce(logged.reserved, 0)::bigint,
		   difference.detail IS NULL,
		   difference.detail
	FROM item
	FULL JOIN logged USING (sku)
	FULL JOIN held USING (sku) AS item_key
	CROSS JOIN LATERAL (
		SELECT string_agg(
			format('%s is %s in %s and %s in stock_log', figure.name,
				   coalesce(figure.found, 0), figure.place, coalesce(figure.logged, 0)),
			'; ' ORDER BY figure.place, figure.name) AS detail
		FROM (VALUES
			('received', 'stock_item', item.received, logged.received),
			('adjusted', 'stock_item', item.adjusted, logged.adjusted),
			('confirmed', 'stock_item', item.confirmed, logged.confirmed),
			('reserved', 'stock_item', item.reserved, logged.reserved),
			('reserved', 'stock_hold', held.reserved, logged.reserved)
		) figure (name, place, found, logged)
		WHERE coalesce(figure.found, 0) <> coalesce(figure.logged, 0)
	) difference
	ORDER BY item_key.sku;
END
$$;
COMMENT ON FUNCTION stock_verify(text) IS
	'Recomputes every item, or one, from its log and compares it with its row and its holds; detail says what differs.';
