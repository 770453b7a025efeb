/*
 * How it stands in the shop, as one row: numbers, the stock of each product, and
 * of each kind of event the last that has happened since $1.  A call that was
 * rolled back is counted as that only, as in the report.
 */

WITH called AS (
	SELECT count(*)::int AS calls,
		   count(*) FILTER (WHERE NOT died AND NOT answer ? 'replayed')::int AS claimed,
		   count(*) FILTER (WHERE NOT died AND answer ? 'replayed')::int AS repeated,
		   count(*) FILTER (WHERE NOT died AND NOT answer ? 'replayed'
			   AND answer ->> 'status' = 'insufficient')::int AS refused,
		   count(*) FILTER (WHERE died)::int AS rolled_back
	FROM load.call
), ordered AS (
	SELECT count(*)::int AS orders,
		   count(*) FILTER (WHERE status = 'paid')::int AS paid
	FROM shop.orders
), happened (kind, text) AS (
	(SELECT 'placed', format('order-%s is placed: %s', id, load.goods(lines))
		FROM shop.orders WHERE placed_at > $1 ORDER BY placed_at DESC LIMIT 1)
	UNION ALL
	(SELECT 'repeated', format('copy %s of request %s gets the saved answer: order-%s',
			copy + 1, number, answer ->> 'order')
		FROM load.call
		WHERE at > $1 AND NOT died AND answer ? 'replayed' AND answer ? 'order'
		ORDER BY at DESC LIMIT 1)
	UNION ALL
	(SELECT 'refused', format('request %s is refused: %s wanted, %s left', number,
			load.goods(jsonb_build_object(short ->> 'sku', short -> 'wanted')),
			short ->> 'available')
		FROM load.call, jsonb_path_query_first(answer, '$.shortages[0]') short
		WHERE at > $1 AND NOT died AND NOT answer ? 'replayed'
			AND answer ->> 'status' = 'insufficient'
		ORDER BY at DESC LIMIT 1)
	UNION ALL
	(SELECT 'rolled_back', format('a client dies before the commit of order-%s: nothing is left of it',
			answer ->> 'order')
		FROM load.call
		WHERE at > $1 AND died AND NOT answer ? 'replayed' AND answer ? 'order'
		ORDER BY at DESC LIMIT 1)
	UNION ALL
	(SELECT 'paid', format('order-%s is paid a second time, which changes nothing',
			answer ->> 'order')
		FROM load.call WHERE at > $1 AND paid = 'already_confirmed'
		ORDER BY at DESC LIMIT 1)
	UNION ALL
	(SELECT 'expired', format('%s was not paid in time: %s available again',
			reservation, load.goods(jsonb_build_object(sku, quantity)))
		FROM stock_history WHERE at > $1 AND change = 'expire'
		ORDER BY at DESC LIMIT 1)
)
SELECT clock_timestamp() AS now, called.*, ordered.*,
	   (SELECT count(*)::int FROM load.request) AS requests,
	   (SELECT count(DISTINCT reservation)::int FROM stock_history
			WHERE change = 'expire') AS expired,
	   (SELECT count(DISTINCT reservation)::int
			FROM idempotency_internal.stock_hold) AS unpaid,
	   (SELECT json_agg(json_build_object('sku', sku, 'stocked', received,
			'available', available, 'reserved', reserved, 'sold', confirmed)
			ORDER BY received, sku) FROM stock_levels) AS stock,
	   (SELECT coalesce(json_agg(happened), '[]') FROM happened) AS happened
FROM called, ordered;
