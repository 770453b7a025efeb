-- The tables of cloudevents.js: the current addresses, and all moves in the
-- order in which they have arrived.

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
