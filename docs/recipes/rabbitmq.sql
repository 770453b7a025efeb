-- The tables of the RabbitMQ recipe. The effect of a message is not idempotent:
-- if it was applied twice, the balance would be wrong.

CREATE TABLE accounts (
	name    text PRIMARY KEY,
	balance bigint NOT NULL DEFAULT 0
);

CREATE TABLE deposits (
	message text NOT NULL,
	account text NOT NULL REFERENCES accounts,
	amount  bigint NOT NULL
);
