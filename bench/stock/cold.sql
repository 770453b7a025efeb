/*
 * The two clusters that are started again and again: one item, or very many;
 * and items with 1,000 open reservations each.
 */

CREATE EXTENSION idempotency;

/* In steps: a transaction needs a counter for each item that it changes. */
CREATE PROCEDURE make_items(items integer)
LANGUAGE plpgsql AS $$
DECLARE
	step constant integer := 10000;
BEGIN
	FOR lowest IN 1 .. items BY step LOOP
		PERFORM stock_receive('item-' || n, 1000)
		FROM generate_series(lowest, least(lowest + step - 1, items)) n;
		COMMIT;
	END LOOP;
END
$$;

/*
 * The rows of one item after those of another, and all of them mixed: each of
 * an item's rows is then on a page of its own, or nearly.
 */
CREATE PROCEDURE make_logs(items integer)
LANGUAGE sql AS $$
	SELECT stock_receive('apart-' || n, 1000), stock_receive('mixed-' || n, 1000)
	FROM generate_series(1, items) n;
	SELECT stock_reserve('apart-' || n, 1, format('apart-%s-%s', n, row))
	FROM generate_series(1, items) n, generate_series(1, 999) row
	ORDER BY n, row;
	SELECT stock_reserve('mixed-' || n, 1, format('mixed-%s-%s', n, row))
	FROM generate_series(1, items) n, generate_series(1, 999) row
	ORDER BY row, n;
$$;

/*
 * How long a reservation takes that asks for too much: it counts the item, and
 * changes nothing, so that the item can be measured again.
 */
CREATE FUNCTION touch_ms(sku text) RETURNS double precision
LANGUAGE plpgsql AS $$
DECLARE
	started_at timestamptz := clock_timestamp();
	outcome    stock_outcome := (stock_reserve(sku, 1000000, 'too-many')).outcome;
BEGIN
	IF outcome <> 'insufficient' THEN
		RAISE EXCEPTION 'the answer for % is %', sku, outcome;
	END IF;
	RETURN 1000 * extract(epoch FROM clock_timestamp() - started_at);
END
$$;

/* The median of items that are in use nowhere, as stock_counters says. */
CREATE FUNCTION first_touch_ms(skus text[]) RETURNS double precision
LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM idempotency_internal.stock_counters()
		WHERE sku = ANY (skus))
	THEN
		RAISE EXCEPTION 'this is not the first touch';
	END IF;
	RETURN percentile_cont(0.5) WITHIN GROUP (ORDER BY touch_ms(sku))
		FROM unnest(skus) sku;
END
$$;
