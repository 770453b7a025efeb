-- The steps by which keys expire, each by hand: switch, migrate, retire,
-- truncate; and how idem_expire, which the sweeper calls, chooses them.  If
-- this fails, keys are forgotten too early, or accumulate.
\getenv dir PG_ABS_SRCDIR
\set db regress_claim_ring_steps
\i :dir/sql/include/ring.sql
CREATE VIEW ring AS SELECT r.state, r.segment,
	r.closed_at IS NOT NULL AS closed,
	r.quiet_xid IS NOT NULL AS quiet, count(p.key) AS keys,
	count(p.key) FILTER (WHERE p.live) AS live
FROM idem_ring r LEFT JOIN places p USING (segment) GROUP BY r.slot
ORDER BY r.segment;

-- Segments are opened until the ring is full; then the current one only grows.
SELECT count(*) FROM idem_claim_many('{a1,a2,a3,a4,a5}');
SELECT outcome FROM idem_claim('gone', ttl => '1 us');
SELECT idem_complete('big', token, big('a'))
FROM idem_claim('big', lease => '1 h', request => 'r');
SELECT until('idem_switch()');
SELECT count(*) FROM idem_claim_many('{b1,b2}');
SELECT until('idem_switch()');
SELECT * FROM ring;
SELECT idem_switch();
SELECT outcome FROM idem_claim('c1');
SELECT key, outcome FROM idem_claim_many('{a1,b1,c1}') WITH ORDINALITY ORDER BY ordinality;
SELECT * FROM ring;

-- Keys that have not expired stay in use until they are migrated, from the
-- oldest segment, at most so many at a time.
SELECT until(format('idempotency_is_quiet(%L)', quiet_xid)) FROM idem_ring
WHERE state = 'old' ORDER BY segment DESC LIMIT 1;
SELECT idem_retire();
SELECT idem_truncate();
SELECT idem_migrate(4);
SELECT idem_retire();
SELECT idem_migrate(4);
SELECT idem_migrate(4);
SELECT * FROM ring;
SELECT outcome, response = big('a') AS response
FROM idem_claim('big', request => 'r');
SELECT outcome FROM idem_claim('big', request => 'other');
SELECT until('idem_retire()');
SELECT * FROM ring;
SELECT idem_retire();
SELECT idem_switch();
CALL old_snapshots_end('idem_ring');
SELECT until('idem_truncate()');
SELECT idem_truncate();
SELECT * FROM ring;
SELECT sum(pg_relation_size(format('idem_key_%s', slot))) AS bytes
FROM idem_ring WHERE state = 'empty';
SELECT key, outcome FROM idem_claim_many('{a1,b1,c1,gone}') WITH ORDINALITY ORDER BY ordinality;

-- A retired segment is not searched any more.
SELECT idem_migrate() > 0 AS migrated, until('idem_retire()');
CALL old_snapshots_end('idem_ring');
SELECT until('idem_truncate()');
SELECT count(*) FROM idem_claim_many('{x1,x2,x3}', ttl => '1 us');
SELECT until('idem_switch()');
SELECT idem_migrate() > 0 AS migrated;
SELECT outcome FROM idem_claim('x1');
SELECT until('idem_retire()');
SELECT outcome FROM idem_claim('x2');
SELECT * FROM places WHERE key LIKE 'x%' ORDER BY key, segment;
SELECT key FROM idem_key WHERE key LIKE 'x%' ORDER BY key;
CALL old_snapshots_end('idem_ring');
SELECT until('idem_truncate()');

-- The switch records a transaction id that is later than that of every writer
-- into the segment that it closes, including its own.
BEGIN;
SELECT outcome FROM idem_claim('first');
SELECT until('idem_switch()');
SELECT quiet_xid > pg_current_xact_id() AS later,
	idempotency_is_quiet(quiet_xid) FROM idem_ring
WHERE state = 'old' ORDER BY segment DESC LIMIT 1;
ROLLBACK;
BEGIN;
SELECT until('idem_switch()');
SELECT outcome FROM idem_claim('y1');
SELECT place, segment FROM places WHERE key = 'y1';
ROLLBACK;
SELECT outcome FROM idem_claim('y2');
SELECT place, segment FROM places WHERE key = 'y2';
SELECT * FROM ring;
BEGIN;
SAVEPOINT a;
SELECT until('idem_switch()');
SELECT outcome FROM idem_claim('y2');
ROLLBACK TO a;
SELECT outcome FROM idem_claim('y2');
SELECT outcome FROM idem_claim('y3');
COMMIT;
SELECT * FROM ring;
SELECT place, segment FROM places WHERE key = 'y3';

\set VERBOSITY sqlstate
SELECT idem_migrate(0);
SELECT idem_migrate(-1);
SELECT idem_migrate(NULL);
SELECT idem_migrate(1, 3::smallint);
SELECT idem_sample(0::smallint, 0);
SELECT idem_expire(NULL);

-- idem_expire opens the next segment when more than a tenth has expired,
CREATE FUNCTION let_expire(keys text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem_key_0 SET expires_at = now() WHERE key ~ keys;
	UPDATE idem_key_1 SET expires_at = now() WHERE key ~ keys;
	UPDATE idem_key_2 SET expires_at = now() WHERE key ~ keys;
$$;
SELECT let_expire('');
SELECT until('idem_expire()');
SELECT until('idem_expire()');
CALL old_snapshots_end('idem_ring');
SELECT until('idem_expire()');
SELECT idem_expire();
SELECT count(*)
FROM idem_claim_many(ARRAY(SELECT 'k' || i FROM generate_series(1, 20) i));
SELECT let_expire('^k[12]$');
SELECT idem_expire();
SELECT let_expire('^k3$');
SELECT until('idem_expire()');
SELECT * FROM ring;
-- and empties the old one, step by step, when all its keys have expired.
SELECT idem_expire();
SELECT let_expire('^k[1-9]$|^k1[0-9]$');
SELECT idem_expire();
SELECT let_expire('^k20$');
SELECT until('idem_expire()');
SELECT * FROM ring;
CALL old_snapshots_end('idem_ring');
SELECT until('idem_expire()');
SELECT * FROM ring;
SELECT idem_expire();
SELECT outcome FROM idem_claim('k20');

-- If no table is empty, keys with a longer ttl are migrated, provided that
-- this frees at least as many as have to be moved,
SELECT count(*) FROM idem_claim_many('{p1,p2,p3,p4,p5,p6,p7,p8,p9}');
SELECT let_expire('^p[1-4]$');
SELECT until('idem_expire()');
SELECT count(*) FROM idem_claim_many('{q1,q2,q3,q4,q5,q6,q7,q8,q9}');
SELECT let_expire('^q[12]$');
SELECT until('idem_expire()');
SELECT count(*) FROM idem_claim_many('{r1,r2,r3,r4,r5,r6,r7,r8,r9}');
SELECT let_expire('^r1$');
SELECT * FROM ring;
SELECT idem_expire();
SELECT let_expire('^r2$');
-- out of the segment with the fewest of them, a batch at a time.
SELECT until('idem_expire(4)');
SELECT * FROM ring;
SELECT until('idem_expire(4)'), until('idem_expire(4)');
CALL old_snapshots_end('idem_ring');
SELECT until('idem_expire(4)');
SELECT * FROM ring;
SELECT key, outcome FROM idem_claim_many('{p5,q3,r3}') WITH ORDINALITY ORDER BY ordinality;

\i :dir/sql/include/ring_end.sql
