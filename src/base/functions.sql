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

CREATE FUNCTION idempotency_internal.idempotency_truncate_in_place(
	"table" regclass)
RETURNS void
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION
	idempotency_internal.idempotency_truncate_in_place(regclass) IS
	'Internal: truncates a retired table of a ring, without new files, and at once.';

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
		BEGIN
			EXECUTE format('TRUNCATE idempotency_internal.%I', tables || '_' || unused);
		EXCEPTION WHEN disk_full THEN
			-- TRUNCATE needs space itself.
			PERFORM idempotency_internal.idempotency_truncate_in_place(
				format('idempotency_internal.%I', tables || '_' || unused)::regclass);
		END;
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

	-- The view stock_history would read each table several times.
	SELECT greatest(max(e.id) FILTER (WHERE e.id < most),
		max(e.reserved_id) FILTER (WHERE e.reserved_id < most),
		(SELECT max(h.id) FROM idempotency_internal.stock_hold h
			WHERE h.id < most))
	INTO used FROM idempotency_internal.stock_entry e;
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
	PERFORM idempotency_internal.idempotency_record('idempotency_repair');
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
