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
				WHEN (SELECT r.url
					FROM idempotency_internal.outbox_subscription r
					WHERE r.name = s.name) IS NULL THEN 'its readers are too slow, or none is running; see outbox_fetch()'
				ELSE 'the endpoint is too slow; see max_in_flight' END
		FROM subscription s
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

CREATE FUNCTION idempotency_internal.outbox_volume(
	"table" regclass, OUT free bigint, OUT total bigint)
RETURNS record
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_volume(regclass) IS
	'Internal: bytes of the file system that a table is on: how many a server can still write, and all.';

/*
 * The log takes one and a half retentions when all subscriptions read it, and
 * has no end when one does not read an old segment.  For how fast it grows, a
 * segment counts as an hour old, at least: a burst tells nothing.
 */
CREATE FUNCTION idempotency_internal.outbox_log_space(
	OUT size numeric, OUT keep numeric, OUT free numeric, OUT total numeric,
	OUT needed numeric)
RETURNS record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT log.size,
		nullif(greatest(pg_size_bytes(
			current_setting('idempotency.outbox_keep_size')), -1), -1)::numeric,
		volume.free, volume.total,
		CASE WHEN EXISTS (SELECT FROM idempotency_internal.outbox_ring o,
				idempotency_internal.outbox_partitions_behind(o.last_position)
				WHERE o.state = 'old')
			THEN 86400 * grows.speed
			ELSE 1.5 * grows.speed * extract(epoch FROM
				current_setting('idempotency.outbox_retention')::interval)
				- log.size END
	FROM idempotency_internal.outbox_log_size() log(size),
		idempotency_internal.outbox_ring r,
		CAST('idempotency_internal.outbox_log_' || r.slot AS regclass) t("table"),
		idempotency_internal.outbox_volume(t."table") volume,
		LATERAL (SELECT pg_total_relation_size(t."table") / greatest(3600,
			extract(epoch FROM clock_timestamp() - r.opened_at)) AS speed) grows
	WHERE r.state = 'current'
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_log_space() IS
	'Internal: size and limit of the log, the space on its file system, and how much of that it will take if it goes on as now.';

CREATE FUNCTION idempotency_internal.outbox_status(
	patience interval DEFAULT '10 min',
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT * FROM idempotency_internal.outbox_subscription_status()
	UNION ALL
	SELECT format('relay %s', t.relay), 'error',
		format('delivers nothing: busy for %s%s',
			date_trunc('second', clock_timestamp() - t.since),
			' at subscription ' || s.name),
		coalesce(format('if it lasts: SELECT outbox_pause(%L)', s.name), 'see pg_stat_activity')
	FROM idempotency_internal.outbox_turns() t
	LEFT JOIN idempotency_internal.outbox_subscription s
		ON s.id = t.subscription
	WHERE t.since < clock_timestamp() - interval '10 s'
	UNION ALL
	SELECT 'log',
		CASE WHEN l.size > l.keep / 2 OR l.is_short THEN 'warning' ELSE 'ok' END,
		pg_size_pretty(l.size) || CASE WHEN l.keep IS NOT NULL
				THEN format(' of %s, idempotency.outbox_keep_size', pg_size_pretty(l.keep))
				ELSE '' END
			|| CASE WHEN l.is_short
				THEN format('; %s of %s are free', pg_size_pretty(l.free), pg_size_pretty(l.total))
				ELSE '' END,
		CASE WHEN l.size > l.keep / 2 THEN 'beyond the limit, subscriptions that are behind lose events'
			WHEN l.is_short THEN 'the disk will be full; see "The log grows" in the runbook' END
	FROM (SELECT s.*, s.free < s.needed
				OR s.free < s.total / 10 AND s.free < s.size AS is_short
			FROM idempotency_internal.outbox_log_space() s) l
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
