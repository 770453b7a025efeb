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
