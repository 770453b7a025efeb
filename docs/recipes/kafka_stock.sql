-- The tables of kafka_stock.js: orders whose lines arrive one by one, in any
-- order, over several partitions.

CREATE TABLE orders (
	name       text PRIMARY KEY,
	line_count integer NOT NULL,
	gathered   integer NOT NULL,
	hash       text NOT NULL,	-- of all lines, as the producer has them
	state      text NOT NULL DEFAULT 'gathering'
		CHECK (state IN ('gathering', 'reserved', 'refused', 'confirmed',
			'cancelled', 'expired'))
);

-- A line is not inserted twice because of the claim, not because of a
-- constraint.
CREATE TABLE order_lines (
	order_name text NOT NULL REFERENCES orders,
	sku        text NOT NULL,
	quantity   bigint NOT NULL CHECK (quantity > 0)
);

-- Messages with invalid data.
CREATE TABLE refused_messages (
	id     text NOT NULL,
	reason text NOT NULL
);
