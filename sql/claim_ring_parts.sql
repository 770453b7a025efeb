-- A large segment is read in parts, by one step after the other, and retired
-- when all of it was found expired.  If this fails, a step of the sweeper takes
-- as long as the segment is large, or a key that has not expired is forgotten.
\getenv dir PG_ABS_SRCDIR
\set db regress_claim_ring_parts
\i :dir/sql/include/ring.sql
\pset null null

-- A few keys in a page, so that few keys fill two parts.
ALTER TABLE idem_key_0 SET (fillfactor = 10);
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'k' || i FROM generate_series(1, 4000) i), ttl => '1 us');
SELECT outcome FROM idem_claim('last');
SELECT pg_relation_size('idem_key_0') / 8192 BETWEEN 257 AND 511 AS two_parts;
SELECT until('idem_switch()');
SELECT until(format('idempotency_is_quiet(%L)', quiet_xid)) FROM idem_ring WHERE state = 'old';

-- Keys that have not expired are looked for in both parts.
SELECT idem_migrate(), idem_migrate(), idem_migrate(), idem_migrate();
SELECT outcome FROM idem_claim('last');

-- One step is not enough.  Meanwhile nothing is looked for.
SELECT idem_retire(), idem_migrate();
SELECT state FROM idem_ring WHERE slot = 0;

-- The trigger was disabled, so there may be other rows.
ALTER TABLE idem_key_0 DISABLE TRIGGER ALL;
UPDATE idem_key_0 SET expires_at = now() + interval '1 h' WHERE key = 'k1';
ALTER TABLE idem_key_0 ENABLE ALWAYS TRIGGER idem_key_redirect;
SELECT idem_retire();
SELECT rest_until IS NOT NULL AS rests FROM idem_ring WHERE slot = 0;
SELECT idem_migrate();
SELECT idem_retire();

-- What is known survives a rollback, and a ring that is busy.
BEGIN;
SELECT idem_retire();
ROLLBACK;
SELECT state FROM idem_ring WHERE slot = 0;
SELECT until('idem_retire()');
SELECT state FROM idem_ring WHERE slot = 0;
SELECT outcome FROM idem_claim('k1');

-- Of what the table has next, nothing is known.
CALL old_snapshots_end('idem_ring');
SELECT until('idem_truncate()');
SELECT until('idem_switch()'), until('idem_switch()');
SELECT slot, segment, state FROM idem_ring ORDER BY slot;
SELECT until(format('idempotency_is_quiet(%L)', quiet_xid)) FROM idem_ring WHERE slot = 1;
SELECT idem_migrate();
SELECT until('idem_retire()');
\pset null ''

\i :dir/sql/include/ring_end.sql
