-- Without a lease a claim is completed by its transaction's commit and
-- vanishes with its rollback.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;

SELECT outcome, token > 0 AS token, attempt, response, retry_after
FROM idem_claim('t1');
SELECT * FROM idem_claim('t1');

-- An answer is saved before the commit, and replayed after it.
BEGIN;
SELECT token AS t2 FROM idem_claim('t2') \gset
SELECT idem_complete('t2', :t2, '{"order": 1}');
SELECT outcome, response FROM idem_claim('t2');
COMMIT;
SELECT outcome, token, attempt, response FROM idem_claim('t2');

-- Before the commit the answer can be changed, also to a failure.
BEGIN;
SELECT token AS t3 FROM idem_claim('t3') \gset
SELECT idem_complete('t3', :t3, '{"order": 2}');
SELECT idem_complete('t3', :t3, '{"order": 3}');
SELECT idem_fail('t3', :t3, '{"reason": "sold out"}', retry => false);
COMMIT;
SELECT outcome, token, attempt, response FROM idem_claim('t3');

-- A rollback undoes the claim, also one to a savepoint.
BEGIN;
SELECT outcome FROM idem_claim('t4');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT outcome FROM idem_claim('t4');
ROLLBACK TO s;
SELECT outcome, attempt FROM idem_claim('t4');
COMMIT;
SELECT outcome FROM idem_claim('t4');

-- Claim, fail and claim again in one transaction; attempts are counted.
BEGIN;
SELECT token AS t5 FROM idem_claim('t5') \gset
SELECT idem_fail('t5', :t5, '"first"');
SELECT outcome, token > :t5 AS larger, attempt FROM idem_claim('t5');
SELECT outcome FROM idem_claim('t5');
COMMIT;

-- In a PL/pgSQL exception block.
DO $$
BEGIN
	BEGIN
		PERFORM idem_claim('t6');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	RAISE WARNING 't6 is %', (SELECT outcome FROM idem_claim('t6'));
END
$$;

-- One claim for each of many rows; each key is claimed once.
SELECT c.outcome, count(*)
FROM generate_series(1, 100) i, idem_claim('t7-' || i % 60) c
GROUP BY 1 ORDER BY 1;

-- Scopes are independent.
SELECT outcome FROM idem_claim('t1', 'elsewhere');
SELECT outcome FROM idem_claim('t1', scope => 'elsewhere');

-- Another request under the same key is distinguished from a repeated one.
SELECT outcome FROM idem_claim('t8', request => '{"amount": 1}');
SELECT outcome FROM idem_claim('t8', request => '{"amount": 1}');
SELECT * FROM idem_claim('t8', request => '{"amount": 2}');
SELECT outcome FROM idem_claim('t8');
SELECT octet_length(request) FROM idem_key WHERE key = 't8';

-- A remembered key can be dropped.
SELECT idem_forget('t8');
SELECT idem_forget('t8');
SELECT outcome, attempt FROM idem_claim('t8', request => '{"amount": 2}');

-- A replay takes no transaction id and writes nothing.
BEGIN;
SELECT outcome, response FROM idem_claim('t2');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
