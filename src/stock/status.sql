/* stock: the checks that idempotency_status() makes of stock. */

CREATE FUNCTION idempotency_internal.stock_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH counted AS MATERIALIZED (
		SELECT * FROM idempotency_internal.stock_counters()
	), counter AS MATERIALIZED (
		SELECT count(*) AS used, count(*) FILTER (WHERE c.in_use) AS pinned,
			count(*) FILTER (WHERE c.rows > 10 * current_setting(
				'idempotency.stock_compact_after')::numeric) AS crowded
		FROM counted c
	), setting AS (
		SELECT current_setting('idempotency.stock_items')::bigint AS items
	)
	SELECT 'stock counters',
		CASE WHEN counter.pinned > setting.items / 2 THEN 'warning' ELSE 'ok' END,
		format('%s of %s counters in use, %s by open transactions', counter.used, setting.items, counter.pinned),
		CASE WHEN counter.pinned > setting.items / 2 THEN 'increase idempotency.stock_items' END
	FROM counter, setting
	UNION ALL
	SELECT 'stock log',
		CASE WHEN counter.crowded > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN counter.crowded > 0 THEN format('items above 10 times idempotency.stock_compact_after: %s', counter.crowded)
			ELSE 'compacted' END,
		CASE WHEN counter.crowded > 0 THEN 'does the sweeper run? does a transaction stay open?' END
	FROM counter
	UNION ALL
	SELECT 'reservations',
		CASE WHEN hold.overdue > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN hold.overdue > 0 THEN format('%s should have expired more than 1 min ago', hold.overdue)
			ELSE 'none is overdue' END,
		CASE WHEN hold.overdue > 0 THEN 'does the sweeper run? their stock is available all the same' END
	FROM (SELECT count(*) AS overdue FROM (
			SELECT FROM idempotency_internal.stock_hold h
			WHERE (SELECT idempotency_internal.stock_may_lapse(
					now() - interval '1 min'))
				AND h.expires_at < clock_timestamp() - interval '1 min'
			LIMIT 1000) late) hold
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
		CASE WHEN queue.late > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN queue.late > 0 THEN format('items whose queue could be served for more than 1 min: %s', queue.late)
			ELSE format('%s wait for %s items', queue.waiting, queue.items) END,
		CASE WHEN queue.late > 0 THEN 'does the sweeper run? does a transaction lock the first of a queue?' END
	FROM (SELECT coalesce(sum(whole.waiting), 0) AS waiting, count(*) AS items,
			count(*) FILTER (WHERE counted.available >= first.quantity
				AND hold.at < clock_timestamp() - interval '1 min') AS late
		FROM (SELECT q.sku, min(q.id) AS id, count(*) AS waiting
			FROM idempotency_internal.stock_queue q GROUP BY q.sku) whole
		JOIN idempotency_internal.stock_queue first USING (sku, id)
		LEFT JOIN idempotency_internal.stock_hold hold
			ON hold.reservation = first.reservation AND hold.id = first.id
		LEFT JOIN counted ON counted.sku = whole.sku) queue
$$;
COMMENT ON FUNCTION idempotency_internal.stock_status() IS
	'Internal: what idempotency_status says of stock.';
