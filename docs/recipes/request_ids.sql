-- The effect of request_ids.js. Each request is booked once because of the
-- claim, not because of a constraint.

CREATE TABLE bookings (
	request text NOT NULL,
	amount  bigint NOT NULL,
	attempt integer NOT NULL
);
