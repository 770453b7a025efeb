-- The tables of the RabbitMQ recipe. The effect of a message is not idempotent:
-- applied twice, it shows in the balance.

CREATE TABLE accounts (
	name    text PRIMARY KEY,
	balance bigint NOT NULL DEFAULT 0
);

CREATE TABLE deposits (
	message text NOT NULL,
	account text NOT NULL REFERENCES accounts,
	amount  bigint NOT NULL
);
