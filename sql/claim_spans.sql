-- Leases and ttls have upper limits.  If this fails, a duration that a driver
-- sends in nanoseconds becomes a lease of a thousand years, and a key whose
-- owner has died is never free again.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
SET timezone = 'UTC';
\set SHOW_CONTEXT never

-- 40 s and an hour, as lib/pq sends them.
SELECT idem_claim('s1', lease => '40000000000');
SELECT idem_claim('s1', ttl => '3600000000000');
SELECT idem_claim('s1', lease => '300000 years');

-- Up to the limits.
SELECT outcome, token AS t1
FROM idem_claim('s1', lease => '366 days', ttl => '3653 days') \gset
\echo :outcome
SELECT expires_at - lease_until AS ttl FROM idem_key WHERE key = 's1';
SELECT idem_renew('s1', :t1, '366 days') > now() + interval '365 days'
	AS renewed;
SELECT idem_complete('s1', :t1, ttl => '3653 days');
SELECT outcome FROM idem_claim('s2', ttl => '10 years');
SELECT outcome, token AS t3 FROM idem_claim('s3', lease => '1 year') \gset
\echo :outcome

-- Beyond the limits, whatever the outcome of the claim would be, and in any unit.
\set VERBOSITY sqlstate
SELECT idem_claim('s1', lease => '366 days 1 us');
SELECT idem_claim('s1', ttl => '3653 days 1 us');
SELECT idem_claim_many('{s1,s4}', lease => '13 months');
SELECT idem_claim_many('{s1,s4}', ttl => '11 years');
SELECT idem_claim('s4', lease => '1000 months -29999 days');
SELECT idem_claim('s4', lease => '1000000 months -29999999 days');
SELECT idem_claim('s4', lease => '10000000 months -299999999 days');
SELECT idem_claim('s4', lease => '-1000000 months 30000001 days');
SELECT idem_claim('s4', lease => '-300000 years');
SELECT idem_renew('s3', :t3, '366 days 1 us');
SELECT idem_complete('s3', :t3, ttl => '11 years');
SELECT count(*) FROM idem_key WHERE key = 's4';
\set VERBOSITY default

-- The settings have the same limits.
SET idempotency.lease = '366d';
SET idempotency.ttl = '3653d';
SELECT idem_renew('s3', :t3) > now() + interval '365 days' AS renewed;
SELECT outcome FROM idem_claim('s5');
\set VERBOSITY sqlstate
SET idempotency.lease = '8785h';
SET idempotency.ttl = '87673h';
\set VERBOSITY default
RESET idempotency.lease;
RESET idempotency.ttl;

-- A row that was written by hand does not lead beyond the range of timestamps.
UPDATE idem_key_0 SET expires_at = '294276-12-31 23:59:59.999999'
WHERE key = 's3';
UPDATE idem_key_1 SET expires_at = '294276-12-31 23:59:59.999999'
WHERE key = 's3';
UPDATE idem_key_2 SET expires_at = '294276-12-31 23:59:59.999999'
WHERE key = 's3';
SELECT idem_renew('s3', :t3, '366 days');

SELECT idem_forget('s' || i) FROM generate_series(1, 5) i;
