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
 * Rows of ours have numbers of their sequences.  pg_restore sets all sequences
 * after it has loaded the tables of all schemas; until then, a number that is
 * drawn is one that a row has.  Positions so high were written by hand.
 */
CREATE FUNCTION idempotency_internal.idempotency_restoring()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE
		WHEN greatest(
			(SELECT max(position) FROM idempotency_internal.outbox_log_0
			WHERE position < bigint '1' << 62),
			(SELECT max(position) FROM idempotency_internal.outbox_log_1
			WHERE position < bigint '1' << 62),
			(SELECT max(position) FROM idempotency_internal.outbox_log_2
			WHERE position < bigint '1' << 62))
			> CASE WHEN p.is_called THEN p.last_value ELSE 0 END
			OR NOT p.is_called AND EXISTS (SELECT
				FROM idempotency_internal.outbox_partition o
				WHERE o.position > 0)
			THEN 'outbox_position_seq'
		WHEN NOT s.is_called
			AND (EXISTS (SELECT FROM idempotency_internal.stock_log)
				OR EXISTS (SELECT FROM idempotency_internal.stock_hold)
				OR EXISTS (SELECT FROM idempotency_internal.stock_history_0)
				OR EXISTS (SELECT FROM idempotency_internal.stock_history_1)
				OR EXISTS (SELECT FROM idempotency_internal.stock_history_2))
			THEN 'stock_log_id_seq' END
	FROM idempotency_internal.outbox_position_seq p,
		idempotency_internal.stock_log_id_seq s
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_restoring() IS
	'Internal: a sequence that is behind the rows with its numbers, since a restore has not ended; null: there is none.';

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
	), strict AS (
		SELECT string_agg(format('%s of %s', i.indexrelid::regclass, c.relname), ', '
			ORDER BY c.relname, i.indexrelid::regclass::text) AS indexes
		FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
		WHERE c.relnamespace = 'idempotency_internal'::regnamespace
			-- These have other unique keys of ours.
			AND c.relname !~ '_ring$'
			AND c.relname <> ALL ('{outbox_home,outbox_subscription}')
			AND (i.indisunique OR i.indisexclusion) AND NOT i.indisprimary
			-- REINDEX CONCURRENTLY makes a copy of a primary key.
			AND NOT EXISTS (
				SELECT FROM pg_index k
				WHERE k.indrelid = i.indrelid AND k.indisprimary
					AND i.indpred IS NULL
					AND k.indkey::text = i.indkey::text)
	), shape (kind, columns, nullable, checks) AS (
		-- The tables that our C code writes to, as they were created.
		VALUES ('idem_key', 9, '{lease_until,request,response}'::text[],
			'{idem_key_0_check,idem_key_0_key_check,idem_key_0_scope_check,idem_key_0_state_check,idem_key_numbers_check,idem_key_times_check}'::text[]),
		('outbox_log', 10, '{deliver_at,expires_at,headers,key,type}',
			'{outbox_log_0_check,outbox_log_created_at_check,outbox_log_expires_at_check,outbox_log_position_check}'),
		('outbox_history', 12, '{answer,created_at,duration_ms,error,key,status,topic,type}', '{}'),
		('stock_log', 13, '{actor,line,lines,note,reservation,reserved_at,reserved_by,reserved_id}',
			'{stock_log_actor_check,stock_log_check,stock_log_check1,stock_log_check2,stock_log_id_check,stock_log_line_check,stock_log_lines_check,stock_log_note_check,stock_log_reservation_check,stock_log_reserved_check,stock_log_sku_check}'),
		('stock_history', 13, '{actor,line,lines,note,reservation,reserved_at,reserved_by,reserved_id}',
			'{stock_history_actor_check,stock_history_change_check,stock_history_id_check,stock_history_line_check,stock_history_lines_check,stock_history_note_check,stock_history_quantity_check,stock_history_reservation_check,stock_history_reserved_check,stock_history_sku_check}'),
		('stock_hold', 9, '{actor,lines}',
			'{stock_hold_expires_at_check,stock_hold_line_check,stock_hold_line_max_check,stock_hold_lines_check,stock_hold_opened_check,stock_hold_quantity_check,stock_hold_reservation_check,stock_hold_sku_check,stock_hold_waits_check}'),
		('stock_item', 5, '{}',
			'{stock_item_confirmed_check,stock_item_received_check,stock_item_sku_check,stock_item_sums_check}'),
		('stock_queue', 5, '{}',
			'{stock_queue_id_check,stock_queue_quantity_check,stock_queue_reservation_check,stock_queue_sku_check,stock_queue_ttl_us_check}'),
		('stock_in_doubt', 9, '{}', '{}')
	), written AS (
		SELECT c.oid, c.relname, c.relnatts, c.relrowsecurity, c.relispartition,
			s.*
		FROM shape s JOIN pg_class c
			ON regexp_replace(c.relname, '_[0-2]$', '') = s.kind AND c.relkind = 'r'
		WHERE c.relnamespace = 'idempotency_internal'::regnamespace
	), added (what) AS (
		SELECT format('constraint %I of %s', k.conname, w.relname)
		FROM written w JOIN pg_constraint k ON k.conrelid = w.oid
		WHERE k.contype = 'f' OR k.contype = 'c' AND k.conname <> ALL (w.checks)
		UNION ALL
		SELECT format('foreign key %I of %s', k.conname, k.conrelid::regclass)
		FROM written w JOIN pg_constraint k ON k.confrelid = w.oid
		WHERE k.contype = 'f' AND w.kind <> 'stock_item' AND k.conrelid <> w.oid
		UNION ALL
		SELECT format('NOT NULL of %s.%I', w.relname, a.attname)
		FROM written w JOIN pg_attribute a ON a.attrelid = w.oid
		WHERE a.attnotnull AND a.attname = ANY (w.nullable)
		UNION ALL
		SELECT format('trigger %I of %s', t.tgname, w.relname)
		FROM written w JOIN pg_trigger t ON t.tgrelid = w.oid
		JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE NOT t.tgisinternal
			AND p.pronamespace <> 'idempotency_internal'::regnamespace
		UNION ALL
		SELECT format('rule %I of %s', r.rulename, w.relname)
		FROM written w JOIN pg_rewrite r ON r.ev_class = w.oid
		UNION ALL
		SELECT format('policy %I of %s', p.polname, w.relname)
		FROM written w JOIN pg_policy p ON p.polrelid = w.oid
		UNION ALL
		SELECT format('child %s of %s', i.inhrelid::regclass, w.relname)
		FROM written w JOIN pg_inherits i ON i.inhparent = w.oid
		UNION ALL
		SELECT format(x.what, w.relname)
		FROM written w CROSS JOIN LATERAL (VALUES
			('row security of %s', w.relrowsecurity),
			('partition %s', w.relispartition),
			('columns of %s', w.relnatts <> w.columns)) x (what, found)
		WHERE x.found
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
	UNION ALL
	SELECT 'sequences',
		CASE WHEN r.behind IS NULL THEN 'ok' ELSE 'error' END,
		CASE WHEN r.behind IS NULL THEN 'no row is ahead of them'
			ELSE format('%s is behind its rows; the sweeper waits', r.behind) END,
		CASE WHEN r.behind IS NOT NULL THEN 'when no restore runs any more: SELECT idempotency_repair()' END
	FROM idempotency_internal.idempotency_restoring() r(behind)
	UNION ALL
	SELECT 'indexes',
		CASE WHEN strict.indexes IS NULL THEN 'ok' ELSE 'warning' END,
		CASE WHEN strict.indexes IS NULL THEN 'no unique index was added'
			ELSE format('unique or exclusion, so calls can fail: %s', strict.indexes) END,
		CASE WHEN strict.indexes IS NOT NULL THEN 'drop it, or create it without UNIQUE' END
	FROM strict
	UNION ALL
	SELECT 'alterations',
		CASE WHEN a.list IS NULL THEN 'ok' ELSE 'warning' END,
		CASE WHEN a.list IS NULL THEN 'nothing was added that is not enforced'
			ELSE format('not enforced by calls, or refused by them: %s', a.list) END,
		CASE WHEN a.list IS NOT NULL THEN 'undo it: the extension writes to these tables without the executor' END
	FROM (SELECT string_agg(added.what, ', ' ORDER BY added.what) AS list
		FROM added) a
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
		SELECT format('%s, for subscription %s%s',
				(array_agg(r.reason ORDER BY s.name))[1],
				quote_ident(min(s.name)),
				CASE WHEN count(*) > 1 THEN format(' and %s others', count(*) - 1)
				ELSE '' END),
			'give it another url: outbox_alter(); or change the setting and reload'
		FROM idempotency_internal.outbox_subscription s,
			idempotency_internal.outbox_url_refused(s.url) r(reason)
		WHERE r.reason IS NOT NULL
		HAVING count(*) > 0
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
SET jit = off
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
