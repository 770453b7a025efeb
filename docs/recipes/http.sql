-- The tables of http.js. They need no column and no constraint for request
-- keys.

CREATE TABLE orders (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account  text NOT NULL,
	item     text NOT NULL,
	quantity integer NOT NULL
);

CREATE TABLE payments (
	id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account text NOT NULL,
	amount  bigint NOT NULL,
	receipt text NOT NULL
);
