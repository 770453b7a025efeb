-- The tables of saga.js, and the function with which an order begins.

CREATE TABLE orders (
	id       text PRIMARY KEY,
	sku      text NOT NULL,
	quantity integer NOT NULL CHECK (quantity > 0),
	amount   bigint NOT NULL CHECK (amount BETWEEN 1 AND 1000000000000),
	state    text NOT NULL DEFAULT 'placed'
);

-- Amounts are positive for charges, and negative for refunds.
CREATE TABLE payments (
	order_id text NOT NULL REFERENCES orders,
	amount   bigint NOT NULL,
	receipt  text NOT NULL
);

CREATE TABLE shipments (
	order_id text NOT NULL REFERENCES orders,
	receipt  text NOT NULL
);

-- Whatever happens next is done by saga.js, which gets the event.
CREATE FUNCTION place_order(id text, sku text, quantity integer, amount bigint)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO orders VALUES (id, sku, quantity, amount);
	PERFORM outbox_enqueue('saga.placed', jsonb_build_object('order', id), key => id);
END
$$;
