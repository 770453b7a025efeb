-- The table of webhooks.js, in the receiver's own database. It has no
-- constraint on orders or events: that each event counts once is the claim's
-- doing.

CREATE TABLE parcels (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_id bigint NOT NULL,
	item     text NOT NULL,
	quantity integer NOT NULL
);
