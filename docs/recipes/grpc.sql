-- The table of grpc.js. It needs no column and no constraint for request ids.

CREATE TABLE orders (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account  text NOT NULL,
	sku      text NOT NULL,
	quantity integer NOT NULL
);
