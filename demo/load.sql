/*
 * What the demonstration brings to the shop: products, customers' requests,
 * and a ledger of what each call was answered.  None of it belongs to the shop.
 *
 * psql variables: requests.
 */

CREATE SCHEMA load;

/* Products with enough stock for all, and one that half of the orders want. */
CREATE TABLE load.product (
	sku     text PRIMARY KEY,
	stocked bigint NOT NULL,
	hot     boolean NOT NULL
);
INSERT INTO load.product VALUES ('lamp', :requests / 5, true);
INSERT INTO load.product
	SELECT sku, :requests * 2 / 3, false
	FROM unnest('{hat,mug,book,clock,vase,chair,bowl}'::text[]) sku;

SELECT count(stock_receive(sku, stocked, 'opening stock')) FROM load.product;

/* One customer in five never pays. */
CREATE TABLE load.request (
	number     integer PRIMARY KEY,
	request_id text NOT NULL,
	customer   text NOT NULL,
	lines      jsonb NOT NULL,
	pays       boolean NOT NULL
);
SELECT setseed(0.5);
INSERT INTO load.request
	SELECT n, gen_random_uuid(), format('customer-%s', n % 500), wanted.lines, random() < 0.8
	FROM generate_series(1, :requests) n
	CROSS JOIN LATERAL (
		SELECT jsonb_object_agg(line.sku, line.quantity) AS lines
		FROM (
			SELECT ('{hat,mug,book,clock,vase,chair,bowl}'::text[])
					[1 + (n * (k + 1) + k) % 7] AS sku,
				   1 + (n + k) % 3 AS quantity
			FROM generate_series(1, 1 + n % 3) k
			UNION ALL
			SELECT 'lamp', 1 + n % 2
			WHERE hashint4(n) % 2 = 0
		) line
	) wanted;

/* '{"hat": 1, "mug": 2}' is "1 hat, 2 mugs". */
CREATE FUNCTION load.goods(lines jsonb) RETURNS text LANGUAGE sql
	AS $$ SELECT string_agg(format('%s %s', quantity,
			CASE WHEN quantity = '1' THEN sku ELSE sku || 's' END), ', ')
		FROM jsonb_each_text(lines) line (sku, quantity) $$;

/*
 * One row a call of checkout.  died: the client rolled back what the call had
 * done, and nobody heard the answer.  paid: what pay answered, where called.
 */
CREATE TABLE load.call (
	number integer NOT NULL,
	copy   integer NOT NULL,
	died   boolean NOT NULL,
	answer jsonb NOT NULL,
	paid   stock_settlement,
	at     timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (number, copy)
);

/* The transactions of pgbench, as it logs them.  The odd ones are checkouts. */
CREATE TABLE load.timing (
	client_id      integer,
	transaction_no integer,
	duration_us    bigint,
	script_no      integer,
	end_s          bigint,
	end_us         bigint
);

GRANT USAGE ON SCHEMA load TO shop;
GRANT SELECT ON load.request TO shop;
GRANT INSERT ON load.call TO shop;
