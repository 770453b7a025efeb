-- The tables of event_outbox.js. What an event does is not idempotent: applied
-- twice, or in another order, it shows.

CREATE TABLE customers (
	name text PRIMARY KEY
);

-- That the customer exists is checked at the commit, when the event has been
-- announced already.
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
