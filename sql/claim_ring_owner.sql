-- The owner of a key in an old segment: nothing is written there; changed rows
-- move to the current segment.  If this fails, an answer is lost or an owner
-- is refused after a switch.
\getenv dir PG_ABS_SRCDIR
\set db regress_claim_ring_owner
\i :dir/sql/include/ring.sql

SELECT token AS t1 FROM idem_claim('complete', lease => '1 h', request => 'r') \gset
SELECT token AS t2
FROM idem_claim('fail', lease => '1 h', ttl => '7 days', request => 'r') \gset
SELECT token AS t3
FROM idem_claim('renew', lease => '1 us', ttl => '7 days', request => 'r') \gset
SELECT token AS t4 FROM idem_claim('forget', lease => '1 h') \gset
SELECT token AS t5 FROM idem_claim('late', lease => '1 us') \gset
SELECT token AS t6 FROM idem_claim('kept', lease => '1 h') \gset
SELECT idem_complete('done', token, big('a')) FROM idem_claim('done', lease => '1 h');
SELECT until('idem_switch()');

SELECT idem_complete('complete', :t1, big('b'));
SELECT outcome, response = big('b') AS response
FROM idem_claim('complete', request => 'r');
SELECT idem_fail('fail', :t2, '"no"', retry => false);
SELECT outcome, response FROM idem_claim('fail', request => 'r');
SELECT idem_renew('renew', :t3, '1 h') > now() AS renewed;
SELECT outcome, attempt FROM idem_claim('renew', lease => '1 h', request => 'r');
SELECT key, outcome
FROM unnest('{complete,fail,renew}'::text[]) key,
	idem_claim(key, request => 'other');
SELECT idem_forget('forget'), idem_forget('forget');
SELECT outcome, attempt FROM idem_claim('late', lease => '1 h');
SELECT key, round(extract(epoch FROM
	expires_at - coalesce(lease_until, now())) / 86400) AS days
FROM idem_key WHERE key IN ('fail', 'renew') ORDER BY 1;
SELECT * FROM places ORDER BY key, segment;

-- A call that is refused, or changes nothing, moves nothing.
SELECT idem_complete('done', token, big('a')) FROM idem_key WHERE key = 'done';
\set VERBOSITY sqlstate
SELECT idem_complete('done', token, '1') FROM idem_key WHERE key = 'done';
SELECT idem_complete('kept', :t5);
SELECT idem_fail('kept', :t5);
SELECT idem_renew('kept', :t5);
SELECT idem_complete('late', :t5);
SELECT idem_complete('nothing', :t5);
SELECT idem_forget('nothing');
SELECT * FROM places WHERE place = 'old' ORDER BY key;

-- A change that is rolled back leaves the row where it was.
BEGIN;
SELECT idem_complete('kept', :t6, '6');
ROLLBACK;
SELECT * FROM places WHERE key = 'kept';
SELECT idem_complete('kept', :t6, '6');
SELECT outcome, response FROM idem_claim('kept');

-- In the oldest of three segments, and in one that was current when the
-- transaction began.
SELECT token AS t7 FROM idem_claim('oldest', lease => '1 h') \gset
SELECT until('idem_switch()');
BEGIN;
SELECT token AS t8 FROM idem_claim('current') \gset
SELECT idem_renew('oldest', :t7) > now() AS renewed;
SELECT idem_complete('oldest', :t7, '7');
SELECT idem_complete('current', :t8, '8');
COMMIT;
SELECT key, outcome, response FROM unnest('{oldest,current}'::text[]) key, idem_claim(key);
SELECT * FROM places WHERE key IN ('oldest', 'current') ORDER BY key, segment;

\i :dir/sql/include/ring_end.sql
