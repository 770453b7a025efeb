-- archive.sql
--
-- The archive of archive.js, in a database of its own: every change of stock
-- for good, with the columns of stock_log.

CREATE EXTENSION IF NOT EXISTS idempotency;

CREATE TABLE archive (
	id          bigint PRIMARY KEY,
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL,
	change      text NOT NULL,
	line        smallint,
	sku         text NOT NULL,
	reservation text,
	actor       text,
	note        text,
	lines       smallint,
	reserved_id bigint,
	reserved_at timestamptz,
	reserved_by text
);
CREATE INDEX ON archive (sku, at);
CREATE INDEX ON archive (reservation);
