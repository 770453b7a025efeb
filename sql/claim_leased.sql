-- With a lease a claim is committed as in progress.  Its owner finishes it
-- with its token, unless another claimer has taken it over.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;

SELECT token AS l1 FROM idem_claim('l1', lease => '1 h') \gset
SELECT outcome, token, attempt, response,
	retry_after BETWEEN '59 min' AND '1 h' AS retry_after
FROM idem_claim('l1', lease => '1 h');
SELECT idem_complete('l1', :l1, '{"charge": "ch_1"}');
SELECT * FROM idem_claim('l1', lease => '1 h');

-- A repeated complete with the same answer succeeds; with another answer it is
-- refused.
SELECT idem_complete('l1', :l1, '{"charge": "ch_1"}');
\set VERBOSITY sqlstate
SELECT idem_complete('l1', :l1, '{"charge": "ch_2"}');
SELECT idem_complete('l1', :l1);
SELECT response FROM idem_claim('l1');

-- A lease that has ended is taken over with a larger token, and the late owner
-- is refused by every function.
SELECT token AS l2 FROM idem_claim('l2', lease => '1 us') \gset
SELECT outcome, token > :l2 AS larger, attempt, token AS l2b
FROM idem_claim('l2', lease => '1 h') \gset second_
\echo :second_outcome :second_larger :second_attempt
SELECT idem_complete('l2', :l2, '"late"');
SELECT idem_fail('l2', :l2, '"late"');
SELECT idem_renew('l2', :l2);
SELECT state, token = :second_l2b AS owner, attempt, response FROM idem_key
WHERE key = 'l2';
SELECT idem_complete('l2', :second_l2b, '"on time"');
SELECT outcome, attempt, response FROM idem_claim('l2');

-- The owner may finish or renew late if the key was not taken over.
SELECT token AS l3 FROM idem_claim('l3', lease => '1 us') \gset
SELECT idem_renew('l3', :l3) < now() + interval '1 min' AS by_the_setting;
SELECT idem_renew('l3', :l3, '1 h') > now() + interval '59 min' AS renewed;
SELECT outcome FROM idem_claim('l3', lease => '1 h');

-- A lease never becomes shorter, nor does the time for which the key is known.
SELECT lease_until, expires_at FROM idem_key WHERE key = 'l3' \gset before_
SELECT idem_renew('l3', :l3, '1 s') = :'before_lease_until' AS kept;
SELECT idem_renew('l3', :l3) = :'before_lease_until' AS kept;
SELECT lease_until = :'before_lease_until' AS lease, expires_at = :'before_expires_at' AS expiry
FROM idem_key WHERE key = 'l3';

SELECT token AS l4 FROM idem_claim('l4', lease => '1 us') \gset
SELECT idem_complete('l4', :l4);
SELECT idem_complete('l4', :l4);
SELECT idem_complete('l4', :l4, '"an answer after all"');
SELECT outcome, response FROM idem_claim('l4');
SELECT outcome FROM idem_claim('l4', request => 'a');

-- A failure that may be retried frees the key; a permanent one is replayed.
SELECT token AS l5 FROM idem_claim('l5', lease => '1 h', request => 'a') \gset
SELECT idem_fail('l5', :l5, '{"code": 503}');
SELECT outcome, attempt, token AS l5b
FROM idem_claim('l5', lease => '1 h', request => 'b') \gset again_
\echo :again_outcome :again_attempt
SELECT idem_fail('l5', :again_l5b, '{"code": 402}', retry => false);
SELECT outcome, attempt, response FROM idem_claim('l5');
SELECT outcome FROM idem_claim('l5', request => 'a');

-- Only a claim in progress can be renewed, completed or failed.
SELECT idem_renew('l5', :again_l5b);
SELECT idem_fail('l5', :again_l5b);
SELECT idem_complete('l5', :again_l5b);

-- Nothing remains after the ttl.
SELECT outcome FROM idem_claim('l6', ttl => '1 us', request => 'a');
SELECT outcome, attempt FROM idem_claim('l6', request => 'b');
SELECT token AS l7 FROM idem_claim('l7', lease => '1 us', ttl => '1 us') \gset
SELECT idem_complete('l7', :l7);
SELECT idem_forget('l7');

-- After the lease has ended, any other request can claim the key.
SELECT outcome FROM idem_claim('l9', lease => '1 us', request => 'a');
SELECT outcome, attempt FROM idem_claim('l9', lease => '1 h', request => 'b');
SELECT outcome FROM idem_claim('l9', lease => '1 h', request => 'a');

-- A key is remembered for the ttl that it was claimed with, or for the given
-- one.
SELECT token AS l10 FROM idem_claim('l10', lease => '1 h', ttl => '7 days') \gset
SELECT idem_complete('l10', :l10);
SELECT round(extract(epoch FROM expires_at - now()) / 3600) AS hours
FROM idem_key WHERE key = 'l10';
BEGIN;
SELECT token AS l11 FROM idem_claim('l11', ttl => '7 days') \gset
SELECT idem_fail('l11', :l11, retry => false);
COMMIT;
SELECT round(extract(epoch FROM expires_at - now()) / 3600) AS hours
FROM idem_key WHERE key = 'l11';
BEGIN;
SELECT token AS l12 FROM idem_claim('l12', ttl => '7 days') \gset
SELECT idem_complete('l12', :l12, ttl => '1 h');
COMMIT;
SELECT round(extract(epoch FROM expires_at - now()) / 3600) AS hours
FROM idem_key WHERE key = 'l12';

-- In one transaction, in one statement.
SELECT outcome
FROM idem_claim('l8', lease => '1 h') c, idem_complete('l8', c.token, '8');
SELECT outcome, response FROM idem_claim('l8');
