-- The tables of event_outbox.js. The effect of an event is not idempotent: the
-- rows would be wrong if it was applied twice, or in another order.

CREATE TABLE customers (
	name text PRIMARY KEY
);

-- The customer is checked only at the commit, after the event was enqueued.
CREATE TABLE orders (
	name     text PRIMARY KEY,
	customer text NOT NULL REFERENCES customers DEFERRABLE INITIALLY DEFERRED,
	quantity integer NOT NULL,
	version  integer NOT NULL DEFAULT 1,
	picked   integer NOT NULL DEFAULT 0
);

CREATE TABLE picks (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_name text NOT NULL,
	version    integer NOT NULL,
	quantity   integer NOT NULL
);

CREATE TABLE shelf (
	picks bigint NOT NULL
);
INSERT INTO shelf VALUES (0);
