/*
 * The report of the demonstration, one row for each line: its kind, and what
 * the kind has.
 *
 *     headline  text
 *     figure    label, value, note     (no label: an empty line)
 *     check     t or f, text, detail
 *
 * The figures and the checks come from the shop's tables, the books of the
 * extension, the ledger of the calls and what the receiver has seen.  No check
 * takes the extension's word where another witness can be asked.
 *
 * psql variables: summary, the receiver's file; clients, how many there were;
 * calm, the number of the last request that came before the burst; cpus.
 */

SET search_path = shop, load, public, pg_temp;

CREATE TEMP VIEW seen AS
	SELECT * FROM jsonb_to_record(pg_read_file(:'summary')::jsonb)
		AS (requests bigint, badly_signed bigint, failed bigint, busy bigint,
			cut bigint, duplicates bigint, out_of_order bigint, events jsonb);

CREATE TEMP TABLE received AS
	SELECT event.* FROM seen, jsonb_to_recordset(seen.events)
		AS event (type text, "order" text, arrived_ms double precision,
			latency_ms double precision);

/*
 * Reservations expire two seconds later: those of the calm part during the burst,
 * and those of the burst partly after it.
 */
CREATE TEMP VIEW timed AS
	SELECT received.*, type = 'stock.expired' AS expiry, number <= :calm AS calm
	FROM received
	JOIN orders ON "order" = 'order-' || id
	JOIN request USING (request_id);

/* What each product had, and what the shop's own table says was bought. */
CREATE TEMP VIEW sold AS
	SELECT product.sku, product.stocked, product.hot,
		   coalesce(sum(line.quantity::bigint), 0)::bigint AS placed,
		   coalesce(sum(line.quantity::bigint) FILTER (
			   WHERE orders.status = 'paid'), 0)::bigint AS paid
	FROM product
	LEFT JOIN (orders
		CROSS JOIN LATERAL jsonb_each_text(orders.lines) line (sku, quantity))
		ON line.sku = product.sku
	GROUP BY product.sku;

/* Calls whose answer was heard, and which of them were not repetitions. */
CREATE TEMP VIEW heard AS
	SELECT number, answer - 'replayed' AS answer, NOT answer ? 'replayed' AS original
	FROM call WHERE NOT died;

CREATE TEMP VIEW expired AS
	SELECT DISTINCT reservation FROM stock_history WHERE change = 'expire';

CREATE FUNCTION pg_temp.pretty(n numeric) RETURNS text LANGUAGE sql
	AS $$ SELECT to_char(n, 'FM999,999,999,990') $$;

/* In milliseconds, or from a second on in seconds. */
CREATE FUNCTION pg_temp.percentile(
	share double precision, spread_ms double precision[])
RETURNS text LANGUAGE sql
	AS $$ SELECT CASE WHEN value < 999.95 THEN to_char(value, 'FM990.0') || ' ms'
			ELSE to_char(value / 1000, 'FM999,990.0') || ' s' END
		  FROM (SELECT percentile_cont(share) WITHIN GROUP (ORDER BY ms) AS value
				FROM unnest(spread_ms) ms) percentile $$;

/* ---- figures ---- */

SELECT 'headline', format('%s requests, sent %s times, became %s orders.',
	pg_temp.pretty((SELECT count(*) FROM request)),
	pg_temp.pretty((SELECT count(*) FROM call)),
	pg_temp.pretty((SELECT count(*) FROM orders)));

WITH
calls AS (
	SELECT count(*) AS sent,
		   count(*) FILTER (WHERE died) AS died,
		   count(*) FILTER (WHERE died AND NOT answer ? 'replayed'
			   AND answer ? 'order') AS undone,
		   count(paid) AS payments,
		   count(*) FILTER (WHERE paid = 'already_confirmed') AS paid_before,
		   count(*) FILTER (WHERE paid = 'expired') AS paid_late
	FROM call
), answers AS (
	SELECT count(*) FILTER (WHERE NOT original) AS replayed,
		   count(*) FILTER (WHERE original
			   AND answer ->> 'status' = 'insufficient') AS refused
	FROM heard
), ordered AS (
	SELECT count(*) AS placed, count(*) FILTER (WHERE status = 'paid') AS paid
	FROM orders
), lamp AS (
	SELECT sold.stocked, sold.paid, wanted.quantity AS wanted,
		returned.quantity AS returned
	FROM sold
	CROSS JOIN LATERAL (
		SELECT sum((lines ->> sku)::bigint) AS quantity FROM request) wanted
	CROSS JOIN LATERAL (
		SELECT coalesce(sum(quantity), 0) AS quantity FROM stock_history log
		WHERE log.sku = sold.sku AND log.change = 'expire') returned
	WHERE hot
), events AS (
	SELECT (SELECT count(*) FROM received) AS taken,
		   array_agg(latency_ms) FILTER (WHERE calm) AS calm,
		   array_agg(latency_ms) FILTER (WHERE NOT calm) AS burst,
		   1000 * count(*) FILTER (WHERE NOT calm) / (max(arrived_ms) FILTER (WHERE NOT calm)
			   - min(arrived_ms) FILTER (WHERE NOT calm)) AS rate
	FROM timed WHERE NOT expiry
), clock AS (
	SELECT array_agg(duration_us / 1000.0::double precision) AS latency,
		   count(*) / (max(end_s + end_us / 1e6)
			   - min(end_s + end_us / 1e6 - duration_us / 1e6)) AS rate
	FROM timing WHERE transaction_no % 2 = 1
)
SELECT 'figure', line.*
FROM calls, answers, ordered, lamp, events, seen, clock, LATERAL (VALUES
	('checkouts sent', pg_temp.pretty(sent),
		format('each request by four of %s clients at once', :clients)),
	('  replayed', pg_temp.pretty(replayed),
		'duplicates, which got the saved answer'),
	('  rolled back', pg_temp.pretty(died),
		format('clients died before the commit, %s with an order', pg_temp.pretty(undone))),
	('  refused', pg_temp.pretty(refused), 'not enough stock'),
	('  placed', pg_temp.pretty(placed), 'orders'),
	('', '', ''),
	('payments sent', pg_temp.pretty(payments),
		format('%s of them repeated, %s too late', pg_temp.pretty(paid_before), pg_temp.pretty(paid_late))),
	('  paid', pg_temp.pretty(ordered.paid), 'orders'),
	('  expired', pg_temp.pretty((SELECT count(*) FROM expired)),
		format('not paid in time; available again after %s', current_setting('idempotency.reservation_ttl'))),
	('', '', ''),
	('lamps', pg_temp.pretty(stocked),
		format('the hot one: %s wanted, %s sold, %s came back', pg_temp.pretty(wanted),
			pg_temp.pretty(lamp.paid), pg_temp.pretty(returned))),
	('', '', ''),
	('events delivered', pg_temp.pretty(taken), 'in order for each order'),
	('  failed', pg_temp.pretty(failed + busy + cut),
		format('sent again: %s answered 503, %s busy, %s cut off',
			pg_temp.pretty(failed), pg_temp.pretty(busy), pg_temp.pretty(cut))),
	('  seen twice', pg_temp.pretty(duplicates), 'duplicates, recognised by their webhook-id'),
	('', '', ''),
	('throughput', pg_temp.pretty(round(clock.rate::numeric)) || '/s',
		format('checkouts in the burst; p50 %s, p99 %s', pg_temp.percentile(0.5, clock.latency),
			pg_temp.percentile(0.99, clock.latency))),
	('delivery, calm', pg_temp.percentile(0.5, events.calm),
		format('from enqueue, p50; p99 %s with retries', pg_temp.percentile(0.99, events.calm))),
	('delivery, burst', pg_temp.percentile(0.5, events.burst),
		format('p50; p99 %s, beside %s busy clients on %s CPUs',
			pg_temp.percentile(0.99, events.burst), :clients, :cpus)),
	('  arrived', pg_temp.pretty(round(events.rate::numeric)) || '/s',
		'events of the burst, from the first to the last')
) line;

/* ---- checks ---- */

/* How many elements are in one list and not in the other, with repetitions. */
CREATE FUNCTION pg_temp.difference(a text[], b text[])
RETURNS bigint LANGUAGE sql
	AS $$ SELECT count(*) FROM (
			(SELECT unnest(a) EXCEPT ALL SELECT unnest(b))
			UNION ALL
			(SELECT unnest(b) EXCEPT ALL SELECT unnest(a))) differing $$;

CREATE TEMP VIEW wrongly_answered AS
	SELECT number FROM request LEFT JOIN heard USING (number)
	GROUP BY number
	HAVING count(DISTINCT answer) <> 1 OR count(*) FILTER (WHERE original) <> 1;

/* Orders that existed only in transactions that rolled back. */
CREATE TEMP VIEW undone AS
	SELECT 'order-' || (answer ->> 'order') AS "order" FROM call
	WHERE died AND NOT answer ? 'replayed' AND answer ? 'order';

/* No row of the log may find less of its product than it takes. */
CREATE TEMP VIEW oversold AS
	SELECT sku FROM (
		SELECT sku, sum(CASE WHEN change IN ('receive', 'cancel', 'expire') THEN quantity
							 WHEN change = 'reserve' THEN -quantity ELSE 0 END)
					OVER (PARTITION BY sku ORDER BY id) AS available
		FROM stock_history) running
	WHERE available < 0
	UNION
	SELECT sku FROM sold WHERE paid > stocked;

CREATE TEMP VIEW misbooked AS
	SELECT sku FROM stock_verify() books FULL JOIN sold USING (sku)
	WHERE books.ok IS NOT TRUE OR sold.sku IS NULL
		OR (books.available, books.reserved)
			IS DISTINCT FROM (sold.stocked - sold.paid, 0);

CREATE FUNCTION pg_temp.orders(statuses text[] DEFAULT '{placed,paid,expired}')
RETURNS text[] LANGUAGE sql
	AS $$ SELECT coalesce(array_agg('order-' || id), '{}') FROM shop.orders
		WHERE status = ANY (statuses) $$;

CREATE FUNCTION pg_temp.announced(event_type text) RETURNS text[] LANGUAGE sql
	AS $$ SELECT coalesce(array_agg("order"), '{}') FROM received
		WHERE type = event_type $$;

/* wrong: how many are not as they should be; total: how many were looked at. */
WITH checks (text, wrong, total, noun) AS (VALUES
	('all copies of a request got the same answer',
		(SELECT count(*) FROM wrongly_answered), (SELECT count(*) FROM request),
		'requests'),
	('each request made one order, and the client knows it',
		pg_temp.difference(
			ARRAY(SELECT request_id || ' ' || id FROM orders),
			ARRAY(SELECT request_id || ' ' || (answer ->> 'order') FROM heard
				JOIN request USING (number)
				  WHERE original AND answer ->> 'status' = 'placed'))
		+ (SELECT count(*) - count(DISTINCT request_id) FROM orders),
		(SELECT count(*) FROM orders), 'orders'),
	('rolled back orders left no rows and no events',
		(SELECT count(*) FROM undone WHERE "order" = ANY (pg_temp.orders())
			OR "order" IN (SELECT "order" FROM received)
			OR "order" IN (SELECT reservation FROM stock_history
				WHERE reservation IS NOT NULL)),
		(SELECT count(*) FROM undone), 'orders undone'),
	('no product was ever oversold',
		(SELECT count(*) FROM oversold), (SELECT count(*) FROM product), 'products'),
	('stock_verify finds no error, and agrees with orders',
		(SELECT count(*) FROM misbooked), (SELECT count(*) FROM stock_levels),
		'products'),
	('exactly the committed orders had an event',
		pg_temp.difference(pg_temp.orders(), pg_temp.announced('order.placed')),
		cardinality(pg_temp.announced('order.placed')), 'events'),
	('each payment took effect once and had an event',
		pg_temp.difference(pg_temp.orders('{paid}'), pg_temp.announced('order.paid'))
		+ pg_temp.difference(pg_temp.orders('{paid}'),
			ARRAY(SELECT 'order-' || (answer ->> 'order') FROM call
				WHERE paid = 'done')),
		cardinality(pg_temp.announced('order.paid')), 'events'),
	('each unpaid order expired and had an event',
		pg_temp.difference(pg_temp.orders('{placed,expired}'), pg_temp.announced('stock.expired'))
		+ pg_temp.difference(pg_temp.orders('{placed,expired}'),
			ARRAY(SELECT reservation FROM expired)),
		cardinality(pg_temp.announced('stock.expired')), 'events'),
	('every signature is valid',
		(SELECT badly_signed FROM seen), (SELECT requests FROM seen), 'requests'),
	('the events of each order arrived in order',
		(SELECT out_of_order FROM seen),
		(SELECT count(DISTINCT "order") FROM received), 'orders'),
	('no event waits or is dead, and no stock is held',
		(SELECT sum(lag_events + waiting + parked + dead)::bigint
			FROM outbox_subscriptions)
			+ (SELECT count(*) FROM idempotency_internal.stock_hold),
		(SELECT count(*) FROM outbox_log), 'events')
)
SELECT 'check', wrong = 0 AND total > 0, text,
	CASE WHEN wrong = 0 THEN format('%s %s', pg_temp.pretty(total), noun)
		 ELSE format('%s wrong (%s %s)', pg_temp.pretty(wrong), pg_temp.pretty(total), noun) END
FROM checks;
