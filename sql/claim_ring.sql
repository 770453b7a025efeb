-- Keys are in a ring of segments.  A key is found in any of them, and one that
-- can be claimed again moves to the current one.  If this fails, a key has two
-- owners, or is forgotten.  The isolation tests do the same with two sessions.
\getenv dir PG_ABS_SRCDIR
\set db regress_claim_ring
\i :dir/sql/include/ring.sql

:ring
SELECT idem_complete('done', token, '{"n": 1}')
FROM idem_claim('done', request => 'r', lease => '1 h');
SELECT idem_complete('big', token, big('a'), 'scope')
FROM idem_claim('big', 'scope', lease => '1 h');
SELECT idem_fail('final', token, '"no"', retry => false)
FROM idem_claim('final', lease => '1 h');
SELECT idem_fail('retry', token) FROM idem_claim('retry', lease => '1 h');
SELECT outcome FROM idem_claim('running', lease => '1 h');
SELECT token AS lapsed FROM idem_claim('lapsed', lease => '1 us') \gset
SELECT outcome FROM idem_claim('gone', ttl => '1 us', request => 'r');
SELECT until('idem_switch()');
:ring

-- Keys in an old segment are answered from there,
SELECT outcome, attempt, response FROM idem_claim('done', request => 'r');
SELECT outcome FROM idem_claim('done', request => 'other');
SELECT outcome, response = big('a') AS response FROM idem_claim('big', 'scope');
SELECT outcome, response FROM idem_claim('final');
SELECT outcome, retry_after > '59 min' AS retry_after
FROM idem_claim('running', lease => '1 h');
SELECT key, outcome FROM idem_claim_many('{running,new,done}') WITH ORDINALITY ORDER BY ordinality;
-- and those that can be claimed again are claimed in the current segment.
SELECT outcome, attempt, token > :lapsed AS larger
FROM idem_claim('lapsed', lease => '1 h');
SELECT outcome, attempt FROM idem_claim('retry');
SELECT outcome, attempt FROM idem_claim('gone', request => 'other');
SELECT outcome FROM idem_claim('big');
SELECT * FROM places ORDER BY key, segment;

-- A replay writes nothing, and stops searching when it has found the key.
CREATE VIEW looks AS SELECT coalesce(sum(idx_scan), 0) AS count
FROM pg_stat_xact_all_tables WHERE relname LIKE 'idem_key__';
BEGIN;
SELECT count FROM looks \gset before_
SELECT outcome FROM idem_claim('new');
SELECT count - :before_count AS looks FROM looks;
SELECT outcome FROM idem_claim('done');
SELECT count - :before_count AS looks FROM looks;
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;

-- A claim that is rolled back moves nothing.
SELECT idem_fail('s', token) FROM idem_claim('s', lease => '1 h');
SELECT until('idem_switch()');
BEGIN;
SELECT outcome, attempt FROM idem_claim('s');
ROLLBACK;
SELECT * FROM places WHERE key = 's';

-- Claim, fail and claim again in one transaction, with a savepoint in between.
BEGIN;
SELECT token AS s2 FROM idem_claim('s') \gset
SAVEPOINT a;
SELECT idem_fail('s', :s2);
SELECT outcome, attempt FROM idem_claim('s');
SELECT idem_forget('s');
SELECT outcome, attempt FROM idem_claim('s');
ROLLBACK TO a;
SELECT outcome, attempt FROM idem_claim('s');
SELECT idem_complete('s', :s2, '"second"');
COMMIT;
SELECT outcome, attempt, response FROM idem_claim('s');
SELECT * FROM places WHERE key = 's';

-- A transaction with an older snapshot finds a key that has moved since.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM idem_key;
SELECT outcome, attempt, response FROM idem_claim('s');
SELECT outcome FROM idem_claim('final');
SELECT outcome FROM idem_claim('r');
SELECT outcome FROM idem_claim('r');
COMMIT;
SELECT * FROM places WHERE key = 'r';

\i :dir/sql/include/ring_end.sql
