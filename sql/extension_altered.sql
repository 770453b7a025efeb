-- If tables, indexes or types of ours were altered so that our code cannot
-- read or write them, they are refused, and so is a renamed schema.  If this
-- fails, an owner's ALTER TABLE or CREATE INDEX leads to wrong rows, or to an
-- index without them.
\set db idempotency_altered
\getenv dir PG_ABS_SRCDIR
\i :dir/sql/include/ring.sql
SELECT stock_receive('altered', 10);

BEGIN;
ALTER TABLE stock_log ADD COLUMN shelf text;
SELECT stock_receive('altered', 1);
ROLLBACK;

-- Additional indexes are maintained if they are B-trees on columns.
\set VERBOSITY sqlstate
BEGIN;
CREATE INDEX ON stock_log (actor);
CREATE INDEX ON stock_log (note, at) WHERE note IS NOT NULL;
SELECT stock_receive('altered', 1, 'here');
SET LOCAL enable_seqscan = off;
SELECT quantity FROM stock_log WHERE note = 'here';
ROLLBACK;
BEGIN;
CREATE INDEX ON stock_log ((quantity + 1));
SELECT stock_receive('altered', 1);
ROLLBACK;
BEGIN;
CREATE INDEX ON stock_log USING hash (actor);
SELECT stock_receive('altered', 1);
ROLLBACK;
BEGIN;
CREATE INDEX ON stock_log (actor) WHERE quantity > 5;
SELECT stock_receive('altered', 1);
ROLLBACK;
BEGIN;
CREATE INDEX ON stock_log (actor) WHERE note IS NULL;
SELECT stock_receive('altered', 1);
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
BEGIN;
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
