-- The table of webhooks.js, in the database of the receiver. Each event counts
-- once because of the claim, not because of a constraint.

CREATE TABLE parcels (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_id bigint NOT NULL,
	item     text NOT NULL,
	quantity integer NOT NULL
);
