-- A batch of keys is claimed at once, each like a single claim, and answered
-- in the order of the array.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;

-- Keys are claimed in the order of the index, by bytes, so that batches cannot
-- deadlock; the tokens show that.
SELECT key, outcome, attempt, rank() OVER (ORDER BY token) AS claimed_as,
	response, retry_after
FROM idem_claim_many('{m-b,m-ä,m-a,m-B,m-ab}') WITH ORDINALITY ORDER BY ordinality;
SELECT key, outcome, token IS NOT NULL AS token, attempt
FROM idem_claim_many('{m-b,m-new,m-ä}') WITH ORDINALITY ORDER BY ordinality;

-- A duplicate within the batch gets the answer of a second call.
SELECT key, outcome, token IS NOT NULL AS token, attempt
FROM idem_claim_many('{m-d2,m-d1,m-d2,m-d2}') WITH ORDINALITY ORDER BY ordinality;
SELECT key, outcome, token IS NOT NULL AS token, attempt,
	retry_after IS NOT NULL AS retry_after
FROM idem_claim_many('{m-d4,m-d3,m-d4,m-d4}', lease => '1 h') WITH ORDINALITY ORDER BY ordinality;
SELECT key, outcome FROM idem_claim_many('{m-d3,m-d5}', 'elsewhere')
WITH ORDINALITY ORDER BY ordinality;

-- Keys in every state.
SELECT idem_complete('m-s1', token, '{"done": 1}') FROM idem_claim('m-s1', lease => '1 h');
SELECT idem_complete('m-s2', token, to_jsonb(repeat('long ', 100000)))
FROM idem_claim('m-s2', lease => '1 h', request => 'r');
SELECT idem_fail('m-s3', token, '"declined"', retry => false)
FROM idem_claim('m-s3', lease => '1 h');
SELECT idem_fail('m-s4', token, '"busy"') FROM idem_claim('m-s4', lease => '1 h');
SELECT outcome FROM idem_claim('m-s5', lease => '1 h');
SELECT outcome FROM idem_claim('m-s6', lease => '1 us');
SELECT outcome FROM idem_claim('m-s7', ttl => '1 us');
SELECT key, outcome, token IS NOT NULL AS token, attempt,
	left(response::text, 12) AS response,
	length(response::text) AS length, retry_after > '59 min' AS retry_after
FROM idem_claim_many('{m-s7,m-s6,m-s5,m-s4,m-s3,m-s2,m-s1,m-s8}', lease => '1 min') WITH ORDINALITY
ORDER BY ordinality;

-- The lease and ttl of the call apply to all keys.
SELECT outcome FROM idem_claim_many('{m-t1,m-t2}', lease => '1 h', ttl => '7 days');
SELECT key, state, round(extract(epoch FROM lease_until - now()) / 60) AS lease,
	round(extract(epoch FROM expires_at - lease_until) / 3600) AS ttl
FROM idem_key WHERE key LIKE 'm-t_' ORDER BY key;

-- Thousands in one call are all claimed, even if only the first rows are
-- fetched.
SELECT count(*), count(*) FILTER (WHERE outcome = 'claimed') AS claimed,
	bool_and(key = 'm-n' || md5(ordinality::text)) AS in_order
FROM idem_claim_many(
	ARRAY(SELECT 'm-n' || md5(i::text) FROM generate_series(1, 5000) i))
WITH ORDINALITY;
SELECT outcome, count(*)
FROM idem_claim_many(
	ARRAY(SELECT 'm-n' || md5(i::text) FROM generate_series(4991, 5010) i))
GROUP BY 1 ORDER BY 1;
SELECT outcome, count(*)
FROM idem_claim_many(array_fill('m-same'::text, ARRAY[100000]))
GROUP BY 1 ORDER BY 1;
SELECT outcome FROM idem_claim_many('{m-l1,m-l2,m-l3}') LIMIT 1;
SELECT outcome FROM idem_claim('m-l3');

-- A saved answer is in memory once, however often its key is in the batch.
CREATE FUNCTION peak_kb() RETURNS integer LANGUAGE sql AS
	$$ SELECT substring(pg_read_file('/proc/self/status', 0, 10000, true)
		FROM 'VmHWM:\s+(\d+) kB')::integer $$;
SELECT idem_complete('m-big', token, to_jsonb(repeat('x', 6000)))
FROM idem_claim('m-big', lease => '1 h');
SELECT peak_kb() AS before \gset
SELECT outcome, count(*), sum(length(response::text))
FROM idem_claim_many(array_fill('m-big'::text, ARRAY[20000])) GROUP BY 1;
SELECT (peak_kb() - :before < 40000) IS NOT FALSE AS small;
DROP FUNCTION peak_kb;

-- A rollback undoes all claims of a batch, also one to a savepoint.
BEGIN;
SELECT outcome FROM idem_claim_many('{m-r1,m-r2}');
SAVEPOINT s;
SELECT outcome FROM idem_claim_many('{m-r2,m-r3}') WITH ORDINALITY ORDER BY ordinality;
ROLLBACK TO s;
SELECT outcome FROM idem_claim_many('{m-r2,m-r3}') WITH ORDINALITY ORDER BY ordinality;
ROLLBACK;
SELECT key, outcome FROM idem_claim_many('{m-r3,m-r2,m-r1}') WITH ORDINALITY ORDER BY ordinality;

-- An empty batch claims nothing; array subscripts do not matter.
SELECT count(*) FROM idem_claim_many('{}');
SELECT key, outcome FROM idem_claim_many('[7:8]={m-u2,m-u1}') WITH ORDINALITY ORDER BY ordinality;

-- Bad arguments raise an error, and nothing is claimed.
\set SHOW_CONTEXT never
SELECT idem_claim_many(array_fill('m-e1'::text, ARRAY[100001]));
SELECT idem_claim_many('{{m-e1,m-e2},{m-e3,m-e4}}');
\set VERBOSITY sqlstate
SELECT idem_claim_many(NULL);
SELECT idem_claim_many('{m-e1,NULL,m-e2}');
SELECT idem_claim_many('{m-e1,""}');
SELECT idem_claim_many(ARRAY['m-e1', repeat('x', 256)]);
SELECT idem_claim_many('{m-e1}', NULL);
SELECT idem_claim_many('{m-e1}', repeat('x', 256));
SELECT idem_claim_many('{m-e1}', lease => '0');
SELECT idem_claim_many('{m-e1}', lease => '300000 years');
SELECT idem_claim_many('{m-e1}', ttl => '-1 s');
SELECT idem_claim_many('{m-e1}', wait => NULL);
BEGIN READ ONLY;
SELECT idem_claim_many('{m-e1}');
ROLLBACK;
DO $$
BEGIN
	PERFORM idem_claim_many('{m-e1,m-e2}');
	RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
	NULL;
END
$$;
SELECT count(*) FROM idem_key WHERE key LIKE 'm-e%';
SELECT count(*)
FROM idem_claim_many(ARRAY[repeat('z', 255), 'm-e1', 'm-e2'], repeat('z', 255))
WHERE outcome = 'claimed';
