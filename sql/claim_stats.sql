-- What idem_stats counts and estimates, and who may read it.  If this fails,
-- monitoring shows wrong numbers.
\getenv dir PG_ABS_SRCDIR
\set db regress_claim_stats
\i :dir/sql/include/ring.sql
\set counters 'SELECT claimed, replayed, in_progress, mismatches, takeovers, expired FROM idem_stats;'
\set keys 'SELECT keys_in_progress, keys_completed, keys_failed, keys_retryable, oldest_lease FROM idem_stats;'

SELECT since BETWEEN now() - interval '1 min' AND now() AS since FROM idem_stats;
:counters
:keys

-- A claim is counted when it is answered, even if its transaction is rolled
-- back; a key only while it exists.
SELECT outcome FROM idem_claim('c1', request => 'a');
:counters
:keys
BEGIN;
SELECT outcome FROM idem_claim('c2');
:keys
ROLLBACK;
:counters
:keys

-- Replays and mismatches.
SELECT outcome FROM idem_claim('c1', request => 'a');
SELECT outcome FROM idem_claim('c1');
:counters
SELECT outcome FROM idem_claim('c1', request => 'b');
:counters

-- A lease; oldest_lease is the one that ends first.
SELECT token AS l1 FROM idem_claim('l1', lease => '2 h') \gset
SELECT token AS l2 FROM idem_claim('l2', lease => '1 h') \gset
SELECT outcome FROM idem_claim('l1');
:counters
SELECT keys_in_progress, keys_completed, keys_failed, keys_retryable,
	oldest_lease =
		(SELECT lease_until FROM idem_key WHERE key = 'l2') AS oldest_lease
FROM idem_stats;
SELECT idem_complete('l2', :l2);
SELECT idem_fail('l1', :l1);
:keys
SELECT idem_fail('f1', token, retry => false) FROM idem_claim('f1', lease => '1 h');
SELECT outcome FROM idem_claim('f1');
:counters
:keys

-- A claim that takes a key over from an owner whose lease has ended counts; a
-- retry after a failure does not.
SELECT outcome, attempt FROM idem_claim('l1');
SELECT outcome, attempt FROM idem_claim('l3', lease => '1 us');
SELECT outcome, attempt FROM idem_claim('l3');
:counters
:keys
SELECT outcome FROM idem_claim('g1', ttl => '1 us');
SELECT outcome, attempt FROM idem_claim('g1', ttl => '1 us');
:counters

-- In a batch each key counts; a refused call does not.
SELECT outcome FROM idem_claim_many('{c1,m1,m2,m1,f1}') WITH ORDINALITY ORDER BY ordinality;
\set VERBOSITY sqlstate
SELECT idem_claim('');
SELECT idem_complete('c1', 1000);
SELECT idem_claim_many('{m3,NULL}');
:counters

-- An expired key does not count as a key any more, and counts as expired when
-- its segment is retired.  Keys of all segments count, each once.
:keys
SELECT count(*)
FROM idem_claim_many(ARRAY(SELECT 'x' || i FROM generate_series(1, 100) i),
	ttl => '1 us');
SELECT count(*)
FROM idem_claim_many(ARRAY(SELECT 'y' || i FROM generate_series(1, 2000) i),
	lease => '1 h');
SELECT until('idem_switch()');
SELECT count(*)
FROM idem_claim_many(ARRAY(SELECT 'z' || i FROM generate_series(1, 1000) i),
	lease => '30 min');
SELECT keys_in_progress, keys_completed, keys_failed, keys_retryable,
	oldest_lease = (SELECT min(lease_until) FROM idem_key) AS oldest_lease
FROM idem_stats;
-- A table with more pages than are read is estimated from a sample.
SELECT keys BETWEEN 1500 AND 3000 AS keys,
	in_progress BETWEEN 1500 AND 3000 AS in_progress
FROM idem_sample(0::smallint, 4);
SELECT idem_migrate(1000), idem_migrate(1000), idem_migrate(1000);
SELECT until('idem_retire()');
SELECT expired, keys_in_progress, keys_completed, keys_failed, keys_retryable
FROM idem_stats;
CALL old_snapshots_end('idem_ring');
SELECT until('idem_truncate()');
SELECT expired, keys_in_progress, keys_completed, keys_failed, keys_retryable
FROM idem_stats;

-- For pg_monitor, and for no other role.
CREATE ROLE regress_watcher;
CREATE ROLE regress_stranger;
GRANT pg_monitor TO regress_watcher;
SELECT idempotency_grant('regress_stranger');
SET ROLE regress_watcher;
SELECT claimed, keys_in_progress FROM idem_stats;
SELECT * FROM idem_key;
SELECT * FROM idempotency_internal.idem_ring;
SELECT idempotency_internal.idem_expire();
SELECT idempotency_internal.idem_count_expired(1);
SET ROLE regress_stranger;
SELECT * FROM idem_stats;
SELECT idempotency_internal.idem_counters();
SELECT idempotency_internal.idem_sample(0::smallint, 1);
RESET ROLE;
DROP OWNED BY regress_stranger;
DROP ROLE regress_watcher, regress_stranger;

\i :dir/sql/include/ring_end.sql
