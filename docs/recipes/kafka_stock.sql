-- The tables of kafka_stock.js: orders whose lines come one by one, in any
-- order, over several partitions.

CREATE TABLE orders (
	name       text PRIMARY KEY,
	line_count integer NOT NULL,
	gathered   integer NOT NULL,
	state      text NOT NULL DEFAULT 'gathering'
		CHECK (state IN ('gathering', 'reserved', 'refused', 'confirmed',
			'cancelled', 'expired'))
);

-- No constraint keeps a line from being there twice: that is the claim's doing.
CREATE TABLE order_lines (
	order_name text NOT NULL REFERENCES orders,
	sku        text NOT NULL,
	quantity   bigint NOT NULL CHECK (quantity > 0)
);

-- Messages that nobody can make anything of.
CREATE TABLE refused_messages (
	id     text NOT NULL,
	reason text NOT NULL
);
