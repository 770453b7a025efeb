/* stock: the checks that idempotency_status() makes of stock. */

/*
 * Only the first 1,000 overdue holds are counted.  The queues are found one
 * after the other, and how many wait in each is known to its counter.
 */
CREATE FUNCTION idempotency_internal.stock_numbers(
	OUT counters_used bigint, OUT counters_in_use bigint,
	OUT counters_max bigint, OUT crowded bigint, OUT overdue bigint,
	OUT waiting bigint, OUT waiting_items bigint, OUT late_items bigint)
RETURNS record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
	WITH RECURSIVE counted AS MATERIALIZED (
		SELECT * FROM idempotency_internal.stock_counters()
	), queued (sku) AS (
		(SELECT q.sku FROM idempotency_internal.stock_queue q
		ORDER BY q.sku LIMIT 1)
		UNION ALL
		SELECT (SELECT q.sku FROM idempotency_internal.stock_queue q
			WHERE q.sku > before.sku ORDER BY q.sku LIMIT 1)
		FROM queued before WHERE before.sku IS NOT NULL
	)
	SELECT counter.used, counter.in_use,
		current_setting('idempotency.stock_items')::bigint,
		counter.crowded, hold.overdue, queue.waiting, queue.items, queue.late
	FROM (SELECT count(*) AS used, count(*) FILTER (WHERE c.in_use) AS in_use,
			count(*) FILTER (WHERE c.rows > 10 * current_setting(
				'idempotency.stock_compact_after')::numeric) AS crowded
		FROM counted c) counter,
		(SELECT count(*) AS overdue FROM (
			SELECT FROM idempotency_internal.stock_hold h
			WHERE (SELECT idempotency_internal.stock_may_lapse(
					now() - interval '1 min'))
				AND h.expires_at < clock_timestamp() - interval '1 min'
			LIMIT 1000) late) hold,
		(SELECT coalesce(sum(whole.waiting), 0)::bigint AS waiting,
			count(*) AS items,
			count(*) FILTER (WHERE whole.available >= first.quantity
				AND first.at < clock_timestamp() - interval '1 min') AS late
		FROM (SELECT q.sku, coalesce(c.waiting::bigint, (
				SELECT count(*) FROM idempotency_internal.stock_queue every
				WHERE every.sku = q.sku)) AS waiting, c.available
			FROM queued q LEFT JOIN counted c ON c.sku = q.sku
			WHERE q.sku IS NOT NULL) whole
		CROSS JOIN LATERAL (
			SELECT q.quantity, (
				SELECT h.at FROM idempotency_internal.stock_hold h
				WHERE h.reservation = q.reservation AND h.id = q.id) AS at
			FROM idempotency_internal.stock_queue q
			WHERE q.sku = whole.sku ORDER BY q.id LIMIT 1) first) queue
$$;
COMMENT ON FUNCTION idempotency_internal.stock_numbers() IS
	'Internal: how many counters there are, holds are overdue, and reservations wait.';

CREATE FUNCTION idempotency_internal.stock_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH number AS MATERIALIZED (
		SELECT * FROM idempotency_internal.stock_numbers()
	)
	SELECT 'stock counters',
		CASE WHEN n.counters_in_use > n.counters_max / 2 THEN 'warning' ELSE 'ok' END,
		format('%s of %s counters in use, %s by open transactions', n.counters_used, n.counters_max, n.counters_in_use),
		CASE WHEN n.counters_in_use > n.counters_max / 2 THEN 'increase idempotency.stock_items' END
	FROM number n
	UNION ALL
	SELECT 'stock log',
		CASE WHEN n.crowded > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN n.crowded > 0 THEN format('items above 10 times idempotency.stock_compact_after: %s', n.crowded)
			ELSE 'compacted' END,
		CASE WHEN n.crowded > 0 THEN 'does the sweeper run? does a transaction stay open?' END
	FROM number n
	UNION ALL
	SELECT 'reservations',
		CASE WHEN n.overdue > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN n.overdue > 0 THEN format('%s should have expired more than 1 min ago', n.overdue)
			ELSE 'none is overdue' END,
		CASE WHEN n.overdue > 0 THEN 'does the sweeper run? their stock is available all the same' END
	FROM number n
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
		CASE WHEN n.late_items > 0 THEN 'warning' ELSE 'ok' END,
		CASE WHEN n.late_items > 0 THEN format('items whose queue could be served for more than 1 min: %s', n.late_items)
			ELSE format('%s wait for %s items', n.waiting, n.waiting_items) END,
		CASE WHEN n.late_items > 0 THEN 'does the sweeper run? does a transaction lock the first of a queue?' END
	FROM number n
$$;
COMMENT ON FUNCTION idempotency_internal.stock_status() IS
	'Internal: what idempotency_status says of stock.';
