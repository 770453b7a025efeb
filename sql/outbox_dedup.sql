-- dedup_key: an event is enqueued once for each topic and key, and replace.  If
-- this fails, something is announced twice, or not at all.
\getenv dir PG_ABS_SRCDIR
\set db regress_outbox_dedup
\i :dir/sql/include/ring.sql
\pset null -
\set VERBOSITY terse
-- Positions begin with 1; the log as topic and payload.
CREATE VIEW log AS SELECT string_agg(position || topic || payload, ' ' ORDER BY position) FROM outbox_log;

SELECT outbox_enqueue('a', '1', dedup_key => 'k'), outbox_enqueue('a', '2', dedup_key => 'k');
-- The same key of another topic is another one; so is another case, or a space.
SELECT outbox_enqueue('b', '3', dedup_key => 'k'), outbox_enqueue('a', '4', dedup_key => 'K'), outbox_enqueue('a', '5', dedup_key => 'k ');
SELECT outbox_enqueue('a', '6'), outbox_enqueue('a', '6');
TABLE log;
SELECT key, scope, state, attempt, response, expires_at - now() BETWEEN '23 h 59 min' AND '24 h 1 min' AS day FROM idem_key ORDER BY token;
-- The position is returned, whatever the event of this call is, but it has to be a valid one.
SELECT outbox_enqueue('a', '"other"', 'key', 'type', '{"x-h": "v"}', now() + '1 h', now() + '2 h', 'k');
SELECT outbox_enqueue('a', '1', dedup_key => 'k', headers => '{"host": "x"}');
SELECT outbox_enqueue('a', NULL, dedup_key => 'k');

-- A rollback leaves neither event nor key, also of a savepoint.
BEGIN;
SELECT outbox_enqueue('a', '7', dedup_key => 'rolled back');
SELECT outbox_enqueue('a', '8', dedup_key => 'rolled back');
SAVEPOINT s;
SELECT outbox_enqueue('a', '9', dedup_key => 'savepoint');
ROLLBACK TO s;
SELECT outbox_enqueue('a', '10', dedup_key => 'savepoint');
ROLLBACK;
SELECT outbox_enqueue('a', '11', dedup_key => 'rolled back'), outbox_enqueue('a', '12', dedup_key => 'savepoint');
TABLE log;

-- The ttl; the setting is the default.
SELECT outbox_enqueue('a', '13', dedup_key => 'short', dedup_ttl => '1 ms');
SELECT pg_sleep(0.002);
SELECT outbox_enqueue('a', '14', dedup_key => 'short', dedup_ttl => '10 years');
SELECT outbox_enqueue('a', '15', dedup_key => 'short');
SET idempotency.ttl = '1 h';
SELECT outbox_enqueue('a', '16', dedup_key => 'hour');
RESET idempotency.ttl;
SELECT key, expires_at - now() > '9 years' AS years, expires_at - now() < '61 min' AS hour FROM idem_key WHERE key IN ('short', 'hour') ORDER BY 1;
-- Operators can forget a key; then the event is enqueued again.
SELECT idem_forget('k', 'outbox:a');
SELECT outbox_enqueue('a', '17', dedup_key => 'k');
-- The segment of the log with the event is gone, the key is not.
TRUNCATE outbox_log_0, outbox_log_1, outbox_log_2;
SELECT outbox_enqueue('a', '18', dedup_key => 'K'), outbox_enqueue('a', '19', dedup_key => 'k');
TABLE log;

-- replace: a new event in any case; the one before is cancelled if it waits.
SELECT outbox_enqueue('r', '1', dedup_key => 'd', replace => true, deliver_at => now() + '1 h') AS first \gset
SELECT outbox_enqueue('r', '2', dedup_key => 'd', replace => true, deliver_at => now() + '1 h') > :first AS later;
SELECT outbox_is_cancelled(:first), outbox_is_cancelled(:first + 1), outbox_cancel(:first);
-- Without replace, the one that waits counts, unless it was cancelled.
SELECT outbox_enqueue('r', '3', dedup_key => 'd') = :first + 1 AS same;
SELECT outbox_cancel(:first + 1);
SELECT outbox_enqueue('r', '4', dedup_key => 'd') > :first + 1 AS new;
-- One that need not wait is on its way already.
SELECT outbox_enqueue('r', '5', dedup_key => 'd', replace => true) AS third \gset
SELECT payload, outbox_is_cancelled(position) FROM outbox_log WHERE topic = 'r' ORDER BY position;
-- In one statement and in one transaction, only the last one is left.
SELECT count(DISTINCT outbox_enqueue('many', to_jsonb(n), dedup_key => 'd', replace => true)) FROM generate_series(1, 5) n;
BEGIN;
SELECT outbox_enqueue('own', '1', dedup_key => 'd', replace => true) IS NOT NULL AS enqueued;
SAVEPOINT s;
SELECT outbox_enqueue('own', '2', dedup_key => 'd', replace => true) IS NOT NULL AS enqueued;
ROLLBACK TO s;
SELECT payload FROM outbox_log WHERE topic = 'own';
SELECT outbox_enqueue('own', '3', dedup_key => 'd', replace => true) IS NOT NULL AS enqueued;
COMMIT;
SELECT topic, payload FROM outbox_log WHERE topic IN ('many', 'own') ORDER BY position;
SELECT attempt FROM idem_key WHERE scope = 'outbox:many';
-- Cancelled in its own transaction, and announced again.
BEGIN;
SELECT outbox_cancel(outbox_enqueue('own', '4', dedup_key => 'c'));
SELECT outbox_enqueue('own', '5', dedup_key => 'c') IS NOT NULL AS enqueued;
COMMIT;
SELECT payload FROM outbox_log WHERE topic = 'own' ORDER BY position;

-- Keys that move to the next segment keep their answers.
SELECT idem_switch();
SELECT outbox_enqueue('own', '6', dedup_key => 'c') = max(position) AS same FROM outbox_log WHERE topic = 'own';
SELECT outbox_enqueue('own', '7', dedup_key => 'c', replace => true) > max(position) AS new FROM outbox_log WHERE topic = 'own';

-- The longest ones.
SELECT outbox_enqueue(repeat('x', 248), '1', dedup_key => repeat('x', 255)) IS NULL AS too_long;
-- Bad arguments, which leave nothing behind.
CREATE TEMP TABLE before AS SELECT * FROM log;
SELECT outbox_enqueue('a', '1', dedup_key => '');
SELECT outbox_enqueue('a', '1', dedup_key => repeat('x', 256));
SELECT outbox_enqueue(repeat('x', 249), '1', dedup_key => 'k');
SELECT outbox_enqueue('a', '1', dedup_ttl => '1 h');
SELECT outbox_enqueue('a', '1', replace => true);
SELECT outbox_enqueue('a', '1', dedup_key => 'k', replace => NULL);
SELECT outbox_enqueue('a', '1', dedup_key => 'k', dedup_ttl => '0');
SELECT outbox_enqueue('a', '1', dedup_key => 'k', dedup_ttl => '-1 s');
SELECT outbox_enqueue('a', '1', dedup_key => 'k', dedup_ttl => '100 years');
SELECT outbox_enqueue('outbox.dead', '1', dedup_key => 'k');
SELECT (SELECT l FROM log l) = (SELECT b FROM before b) AS unchanged;
-- The scopes are for outbox_enqueue alone.
SELECT * FROM idem_claim('new', 'outbox:a');
SELECT * FROM idem_claim_many('{new}', 'outbox:');
SELECT idem_complete('k', 1, NULL, 'outbox:a');
SELECT idem_fail('k', 1, NULL, 'outbox:a');
SELECT idem_renew('k', 1, '1 h', 'outbox:a');
SELECT outcome FROM idem_claim('k', 'outbox');
-- The owner has spoilt a key.
UPDATE idem_key_0 SET response = NULL WHERE key = 'short';
UPDATE idem_key_0 SET response = '"x"' WHERE key = 'hour';
SELECT outbox_enqueue('a', '1', dedup_key => 'short');
SELECT outbox_enqueue('a', '1', dedup_key => 'hour');
SELECT idem_forget('short', 'outbox:a');
SELECT outbox_enqueue('a', '20', dedup_key => 'short') IS NOT NULL AS enqueued;
BEGIN READ ONLY;
SELECT outbox_enqueue('a', '1', dedup_key => 'k');
ROLLBACK;
\i :dir/sql/include/ring_end.sql
