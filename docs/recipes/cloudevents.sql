-- The tables of cloudevents.js: what is so now, and all that has happened, in
-- the order in which it has arrived.

CREATE TABLE addresses (
	customer text PRIMARY KEY,
	city     text NOT NULL,
	sequence text COLLATE "C" NOT NULL
);

CREATE TABLE moves (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	customer text NOT NULL,
	city     text NOT NULL
);
