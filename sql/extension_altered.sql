-- If tables, indexes or types of ours were altered so that our code cannot
-- read or write them, they are refused, and so is a renamed schema.  If this
-- fails, an owner's ALTER TABLE or CREATE INDEX leads to wrong rows, or to an
-- index without them.
\set db idempotency_altered
\getenv dir PG_ABS_SRCDIR
\i :dir/sql/include/ring.sql
SELECT stock_receive('altered', 10);

BEGIN;
ALTER TABLE stock_queue DROP COLUMN ttl_us;
SELECT stock_reserve('altered', 100, 'altered', wait => true);
ROLLBACK;

-- Additional indexes of every kind get an entry for each new row.
\set VERBOSITY sqlstate
CREATE FUNCTION reads(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS off) ' || query LOOP
		EXIT WHEN line ~ 'Index.*Scan';
	END LOOP;
	RETURN NEXT substring(line, '(?:using|on) (\w+)');
	RETURN QUERY EXECUTE query;
END
$$;
BEGIN;
CREATE INDEX by_sum ON stock_log ((quantity + 1), lower(note));
CREATE INDEX by_hash ON stock_log USING hash (note);
CREATE INDEX by_time ON stock_log USING brin (at);
CREATE INDEX by_part ON stock_log (quantity) WHERE quantity > 5 AND note <> 'no';
CREATE INDEX by_null ON stock_log (quantity) WHERE note IS NULL;
CREATE INDEX by_payload ON outbox_log_0 USING gin (payload);
CREATE INDEX by_customer ON outbox_log_0 ((payload ->> 'customer')) INCLUDE (topic);
SELECT stock_receive('altered', 1, 'here'), stock_receive('altered', 7, 'HERE');
SELECT count(outbox_enqueue('order', jsonb_build_object('customer', n))) FROM generate_series(1, 3) n;
SET LOCAL enable_seqscan = off;
SELECT reads($$SELECT quantity::text FROM stock_log WHERE note = 'here'$$);
SELECT reads($$SELECT note FROM stock_log WHERE quantity + 1 = 8$$);
SELECT reads($$SELECT count(*)::text FROM stock_log WHERE at > now() - interval '1 day'$$);
SELECT reads($$SELECT note FROM stock_log WHERE quantity > 5 AND note <> 'no'$$);
SELECT reads($$SELECT topic FROM outbox_log_0 WHERE payload @> '{"customer": 2}'$$);
SELECT reads($$SELECT count(*)::text FROM outbox_log_0 WHERE payload ->> 'customer' = '3'$$);
ROLLBACK;

-- Rows that change, and rows of which a primary key is looked for first.
BEGIN;
CREATE INDEX by_sku ON stock_hold USING hash (sku);
CREATE INDEX by_time ON stock_hold USING brin (expires_at);
CREATE INDEX by_double ON stock_hold ((quantity * 2)) WHERE line >= 0;
CREATE INDEX by_row ON idem_key_0 (scope) WHERE idem_key_0 IS NOT NULL;
CREATE INDEX by_upper ON idem_key_0 (upper(key)) WHERE key LIKE 'a%';
SELECT (stock_reserve('altered', 2, 'indexed')).outcome, (stock_extend('indexed', '1 day')).outcome AS extended;
SELECT (idem_claim('a1')).outcome, (idem_claim('b1')).outcome;
SET LOCAL enable_seqscan = off;
SELECT reads($$SELECT quantity::text FROM stock_hold WHERE quantity * 2 = 4 AND line >= 0$$);
SELECT reads($$SELECT key FROM idem_key_0 WHERE upper(key) = 'A1' AND key LIKE 'a%'$$);
SELECT reads($$SELECT count(*)::text FROM idem_key_0 WHERE scope >= '' AND idem_key_0 IS NOT NULL$$);
ROLLBACK;

-- What a unique key or an exclusion constraint of a user forbids is an error.
BEGIN;
CREATE UNIQUE INDEX ON idem_key_0 (key);
SELECT (idem_claim('same', scope => 'a')).outcome;
SELECT (idem_claim('same', scope => 'b')).outcome;
ROLLBACK;
BEGIN;
ALTER TABLE stock_hold ADD UNIQUE (quantity) DEFERRABLE INITIALLY DEFERRED;
SELECT (stock_reserve('altered', 2, 'first')).outcome;
SELECT (stock_reserve('altered', 2, 'second')).outcome;
ROLLBACK;
BEGIN;
ALTER TABLE stock_log ADD EXCLUDE (note WITH =) WHERE (quantity > 1);
SELECT stock_receive('altered', 1, 'here'), stock_receive('altered', 1, 'here');
SELECT stock_receive('altered', 2, 'here');
SELECT stock_receive('altered', 2, 'here');
ROLLBACK;

BEGIN;
ALTER TABLE stock_item DROP CONSTRAINT stock_item_pkey;
SELECT stock_receive('a new one', 1);
ROLLBACK;

-- The indexes that our code searches.
\set VERBOSITY terse
BEGIN;
ALTER TABLE idem_key_0 DROP CONSTRAINT idem_key_0_pkey;
SELECT idem_claim('altered');
ROLLBACK;
BEGIN;
ALTER TABLE idem_key_0 DROP CONSTRAINT idem_key_0_pkey, ADD PRIMARY KEY (token);
SELECT idem_claim('altered');
ROLLBACK;
BEGIN;
ALTER TABLE stock_item DROP CONSTRAINT stock_item_pkey;
CREATE INDEX ON stock_item (sku);
SELECT stock_receive('a new one', 1);
ROLLBACK;
UPDATE stock_item SET sku = sku WHERE sku = 'altered';		-- drops the counter
BEGIN;
ALTER TABLE stock_log DROP CONSTRAINT stock_log_pkey;
CREATE INDEX ON stock_log (sku DESC, id);
CREATE INDEX ON stock_log (sku text_pattern_ops, id);
CREATE INDEX ON stock_log (sku, id) WHERE id > 0;
SELECT stock_reserve('altered', 1, 'altered');
ROLLBACK;
BEGIN;
DROP INDEX stock_log_settled;
SELECT stock_confirm('unheard of');
ROLLBACK;
BEGIN;
ALTER TABLE stock_hold DROP CONSTRAINT stock_hold_pkey;
SELECT stock_reserve('altered', 1, 'altered');
ROLLBACK;
BEGIN;
ALTER TABLE stock_hold DROP CONSTRAINT stock_hold_pkey;
CREATE INDEX ON stock_hold (reservation, line);
SELECT stock_reserve('altered', 1, 'altered');
ROLLBACK;
-- This one is read if a reservation may have lapsed.
BEGIN;
SELECT outcome FROM stock_reserve('altered', 1, 'lapses', ttl => '1 us');
DROP INDEX stock_hold_sku_expires_at;
SELECT stock_reserve('altered', 1000, 'altered');
ROLLBACK;
\set VERBOSITY sqlstate

-- The result types.
BEGIN;
ALTER TYPE stock_reservation ADD ATTRIBUTE shelf text;
SELECT stock_reserve('altered', 1, 'altered');
ROLLBACK;
BEGIN;
ALTER TYPE stock_reservation ADD ATTRIBUTE shelf text;
SELECT stock_reserve_many('{"altered": 100}', 'altered');
ROLLBACK;
BEGIN;
ALTER TYPE idem_answer ADD ATTRIBUTE shelf text;
SELECT idem_claim('altered');
ROLLBACK;

-- The internal schema was renamed.
BEGIN;
ALTER SCHEMA idempotency_internal RENAME TO renamed;
SELECT idem_claim('altered');
ROLLBACK;

-- The rollbacks have restored everything.
\set VERBOSITY default
SELECT available, reserved FROM stock_level('altered');
SELECT ok FROM stock_verify('altered');
SELECT outcome FROM idem_claim('altered');
SELECT idem_forget('altered');
\i :dir/sql/include/ring_end.sql
