-- A scope that has moved to another database: no claim in it, export, import.
-- If this fails, a request that is repeated after the move is done twice, or
-- gets no answer in either database.

CREATE FUNCTION refuses(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail  text;
	hint    text;
BEGIN
	EXECUTE call;
	RETURN 'no';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' / ', SQLSTATE || ' ' || message, nullif(detail, ''), nullif(hint, ''));
END
$$;
CREATE FUNCTION without_times(exported jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT exported - '{expires_at,lease_until,last_token,token}'::text[]
		|| CASE WHEN exported ->> 'expires_at' = '-infinity' THEN '{"forgotten": true}'::jsonb ELSE '{}' END
		|| CASE WHEN exported ? 'lease_until' THEN '{"leased": true}'::jsonb ELSE '{}' END
$$;

SELECT outcome FROM idem_claim('first', 'neighbour');
SELECT outcome FROM idem_claim('done', 'tenant', request => 'x');
SELECT token AS leased FROM idem_claim('leased', 'tenant', lease => '1 h') \gset
SELECT token FROM idem_claim('failed', 'tenant', lease => '1 h') \gset
SELECT idem_fail('failed', :token, '{"reason": null}', 'tenant', retry => false);
SELECT token FROM idem_claim('free', 'tenant', lease => '1 h') \gset
SELECT idem_fail('free', :token, NULL, 'tenant');
SELECT outcome FROM idem_claim('forgotten', 'tenant');
SELECT idem_forget('forgotten', 'tenant');
SELECT outcome FROM idem_claim('done', 'neighbour');

-- The fence stands from the commit on, for this transaction at once.
SELECT idem_unfence('tenant');
BEGIN;
SELECT idem_fence('tenant');
SELECT refuses($$SELECT idem_claim('new', 'tenant')$$);
SELECT refuses($$SELECT idem_export('tenant')$$);
ROLLBACK;
SELECT outcome FROM idem_claim('new', 'tenant');
SELECT refuses($$SELECT idem_export('tenant')$$);
SELECT idem_fence('tenant');
SELECT idem_fence('tenant');
SELECT scope, fenced_at <= clock_timestamp() AS fenced FROM idem_fences;

-- What this transaction has claimed could be rolled back.
BEGIN;
SELECT outcome FROM idem_claim('own', 'elsewhere');
SELECT refuses($$SELECT idem_export('tenant')$$);
ROLLBACK;

SELECT refuses(call) FROM unnest(ARRAY[
	$$SELECT idem_claim('done', 'tenant')$$,
	$$SELECT idem_claim_many('{done,new}', 'tenant')$$,
	$$SELECT idem_forget('done', 'tenant')$$]) call;
SELECT refuses(format(call, :leased)) FROM unnest(ARRAY[
	$$SELECT idem_complete('leased', %s, '1', 'tenant')$$,
	$$SELECT idem_fail('leased', %s, '1', 'tenant')$$,
	$$SELECT idem_renew('leased', %s, '1 h', 'tenant')$$]) call;
\set VERBOSITY sqlstate
CALL idem_wait('done', 'tenant');
\set VERBOSITY default
SELECT outcome FROM idem_claim('done', 'neighbour');
SELECT outcome FROM idem_claim('done', '');

-- The export.
CREATE TABLE exported AS SELECT e AS line FROM idem_export('tenant') e;
SELECT without_times(line) FROM exported ORDER BY line ->> 'key' NULLS FIRST;
SELECT count(*) FROM idem_export(VARIADIC '{tenant}');
SELECT refuses(call) FROM unnest(ARRAY[
	$$SELECT idem_export('tenant', 'neighbour')$$,
	$$SELECT idem_export(NULL)$$,
	$$SELECT idem_export(VARIADIC NULL)$$]) call;
SELECT idem_export(VARIADIC '{}');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT refuses($$SELECT idem_export('tenant')$$);
COMMIT;

-- The import here, as if into another database: nothing is newer.
BEGIN;
SELECT count(*) FILTER (WHERE idem_import(line)) AS imported, count(*) FROM exported;
COMMIT;
-- As if the other database did not have these keys, or older ones.
DO $$
BEGIN
	FOR slot IN 0..2 LOOP
		EXECUTE format($change$
			UPDATE idem_key_%1$s SET expires_at = '-infinity', token = 1 WHERE scope = 'tenant' AND key IN ('done', 'free');
			UPDATE idem_key_%1$s SET state = 'c', lease_until = NULL, token = 1 WHERE scope = 'tenant' AND key = 'leased';
			UPDATE idem_key_%1$s SET token = 1000000000 WHERE scope = 'tenant' AND key = 'failed';
			DELETE FROM idem_key_%1$s WHERE scope = 'tenant' AND key IN ('new', 'forgotten')
			$change$, slot);
	END LOOP;
END
$$;
BEGIN;
SELECT line ->> 'key' AS key, idem_import(line) FROM exported ORDER BY key NULLS FIRST;
SELECT idem_unfence('tenant');
COMMIT;
SELECT key, outcome, response, attempt FROM idem_claim_many('{done,failed,forgotten,leased,new}', 'tenant');
SELECT outcome FROM idem_claim('done', 'tenant', request => 'y');
SELECT outcome, attempt FROM idem_claim('free', 'tenant');
SELECT idem_complete('leased', :leased, '{"paid": true}', 'tenant');

-- Of one claim, the row that has come further is kept, whichever comes later.
CREATE FUNCTION row_of(token bigint, state text, expires text, lease text) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_strip_nulls(jsonb_build_object('scope', 'order', 'key', 'k', 'attempt', 1,
		'token', token, 'state', state, 'expires_at', expires, 'lease_until', lease))
$$;
SELECT idem_fence('order');
SELECT what, idem_import(line) FROM (VALUES
	(1, 'in progress', row_of(5, 'in_progress', '2100-01-03', '2100-01-01')),
	(2, 'the same', row_of(5, 'in_progress', '2100-01-03', '2100-01-01')),
	(3, 'renewed', row_of(5, 'in_progress', '2100-01-04', '2100-01-02')),
	(4, 'completed', row_of(5, 'completed', '2100-01-05', NULL)),
	(5, 'in progress', row_of(5, 'in_progress', '2100-01-03', '2100-01-01')),
	(6, 'forgotten', row_of(5, 'retryable', '-infinity', NULL)),
	(7, 'completed', row_of(5, 'completed', '2100-01-05', NULL)),
	(8, 'claimed again', row_of(6, 'in_progress', '2100-01-03', '2100-01-01')),
	(9, 'the older claim, forgotten', row_of(5, 'retryable', '-infinity', NULL))) v (n, what, line) ORDER BY n;
SELECT state, token FROM idem_key WHERE scope = 'order';

-- Tokens are larger than all of the other database.
SELECT idem_import('{"scope": "order", "last_token": 5000000000}');
SELECT idem_import('{"scope": "order", "last_token": 7}');
SELECT idem_unfence('order');
SELECT outcome, token > 5000000000 AS larger FROM idem_claim('other', 'order');

-- Bad arguments.
SELECT idem_fence('bad');
SELECT refuses(call) FROM unnest(ARRAY[
	$$SELECT idem_fence(NULL)$$,
	$$SELECT idem_fence(repeat('x', 256))$$,
	$$SELECT idem_fence('outbox:x')$$,
	$$SELECT idem_unfence(NULL)$$,
	$$SELECT idem_import(NULL)$$,
	$$SELECT idem_import('[]')$$,
	$$SELECT idem_import('{"scope": "bad"}')$$,
	$$SELECT idem_import('{"key": "k", "scope": 7}')$$,
	$$SELECT idem_import('{"key": "k", "scope": "none", "token": 1, "attempt": 1, "state": "completed", "expires_at": "infinity"}')$$,
	$$SELECT idem_import('{"key": "k", "scope": "none", "token": 1, "attempt": 1, "state": "completed", "expires_at": "2100-01-01"}')$$,
	$$SELECT idem_import('{"last_token": -1, "scope": "bad"}')$$,
	$$SELECT idem_import('{"last_token": null, "scope": "bad"}')$$,
	$$SELECT idem_import('{"last_token": 4611686018427387905, "scope": "bad"}')$$,
	$$SELECT idem_import('{"last_token": 1, "scope": "none"}')$$]) call;
SELECT change, refuses(format('SELECT idem_import(%L)', '{"key": "k", "scope": "bad", "token": 1, "attempt": 1,
	"state": "completed", "expires_at": "2100-01-01"}'::jsonb || change))
FROM unnest(ARRAY['{"key": ""}', '{"token": 0}', '{"token": null}', '{"attempt": 0}', '{"attempt": null}', '{"state": "p"}',
	'{"state": null}', '{"state": "in_progress"}', '{"lease_until": "2100-01-01"}', '{"expires_at": null}',
	'{"request": "00"}', '{"request": "0"}', '{"token": 1e30}',
	'{"state": "in_progress", "lease_until": "infinity"}']::jsonb[]) change;
SELECT count(*) FROM idem_key WHERE scope = 'bad';

-- Rows that are inserted by hand, or restored, count from their commit too.
INSERT INTO idem_fence (scope) VALUES ('by hand');
SELECT refuses($$SELECT idem_claim('k', 'by hand')$$);
TRUNCATE idem_fence;
SELECT outcome FROM idem_claim('k', 'by hand');

DROP TABLE exported;
DROP FUNCTION refuses, without_times, row_of;
SELECT count(idem_forget(key, scope)) > 0 AS forgotten FROM idem_keys;
