-- The effect of request_ids.js. It has no constraint on the request: that each
-- is booked once is the claim's doing.

CREATE TABLE bookings (
	request text NOT NULL,
	amount  bigint NOT NULL,
	attempt integer NOT NULL
);
