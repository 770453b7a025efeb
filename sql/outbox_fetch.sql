-- Subscriptions that are read: batches, acknowledgements, retries, what is left
-- out, and bad arguments.  If this fails, a reader misses events, gets them
-- out of order, or loses those that have failed.
\getenv dir PG_ABS_SRCDIR
\set db regress_outbox_fetch
\i :dir/sql/include/ring.sql
\pset null -
\set VERBOSITY terse
CREATE FUNCTION state() RETURNS TABLE (lag bigint, in_flight int, waiting bigint, parked bigint, dead bigint, delivered bigint)
LANGUAGE sql AS 'SELECT lag_events, in_flight, waiting, parked, dead, delivered FROM outbox_subscriptions WHERE name = ''r''';
-- Fetches, and says which events came; the token is in the table last.
CREATE TABLE last (token bigint);
CREATE FUNCTION got(max_events int DEFAULT 100, lease interval DEFAULT '1 h')
RETURNS TABLE (event text, key text, attempt int)
LANGUAGE plpgsql AS $$
BEGIN
	TRUNCATE last;
	RETURN QUERY
		WITH batch AS (SELECT * FROM outbox_fetch('r', max_events, lease)),
			noted AS (INSERT INTO last SELECT DISTINCT b.token FROM batch b)
		SELECT b.topic || b.payload, b.key, b.attempt FROM batch b;
END
$$;
CREATE FUNCTION ack(failed text DEFAULT NULL, error text DEFAULT NULL) RETURNS boolean
LANGUAGE sql AS $$
	SELECT outbox_ack('r', token, ARRAY(SELECT position FROM outbox_log
		WHERE topic || payload = ANY (string_to_array(failed, ' '))), error) FROM last
$$;
CREATE FUNCTION lapse() RETURNS void
LANGUAGE sql AS 'UPDATE idempotency_internal.outbox_partition SET leased_until = now()';
CREATE FUNCTION due() RETURNS void
LANGUAGE sql AS 'UPDATE idempotency_internal.outbox_delivery SET due_at = now() WHERE due_at IS NOT NULL';

SELECT outbox_subscribe('r', url => NULL, topics => '{a, b}', retry_schedule => '{0 s, 1 h, 2 h}');
SELECT count(*) FROM outbox_fetch('r');
SELECT outbox_enqueue('a', '1', key => 'k'), outbox_enqueue('c', '2'), outbox_enqueue('b', '3'),
	outbox_enqueue('a', '4', key => 'k', type => 't', headers => '{"x-h": "v"}'), outbox_enqueue('a', '5');
-- The columns.
SELECT token > 0 AS token, position, id = outbox_event_id(position) AS id, topic, key, type, payload, headers,
	now() - created_at < '1 min' AS now, attempt FROM outbox_fetch('r', 2);
SELECT * FROM state();
-- One batch is out; nobody else gets these events, nor those after them.
SELECT * FROM got();
SELECT lapse();
-- After a lapse they come again, fewer at a time.
SELECT * FROM got();
SELECT ack(), ack();
SELECT * FROM state();
-- A batch with an event that fails: the later ones of its key are parked.
SELECT * FROM got();
SELECT outbox_enqueue('a', '6', key => 'k'), outbox_enqueue('a', '7', key => 'other');
SELECT ack('b3 a4', 'no such customer');
SELECT position, topic, key, state, attempts, next_attempt_at > now() AS later, last_error FROM outbox_deliveries ORDER BY position;
SELECT position, attempt, status, error FROM outbox_attempts ORDER BY position;
SELECT * FROM got();
SELECT ack();
SELECT * FROM state();
-- They are due.
SELECT due();
SELECT * FROM got(2);
SELECT * FROM state();
SELECT ack('a4');
SELECT due();
SELECT * FROM got(10);
SELECT ack('a6');
SELECT position, key, state, attempts FROM outbox_deliveries ORDER BY position;
-- The schedule ends.
SELECT due();
SELECT * FROM got(); SELECT ack('a6');
SELECT due();
SELECT * FROM got(); SELECT ack('a6', 'still');
SELECT position, topic, attempts, last_error FROM outbox_dead;
SELECT outbox_redrive('r');
SELECT * FROM got(); SELECT ack();
SELECT * FROM state();
-- A batch with several events of a key that fail: they stay in order.
SELECT count(outbox_enqueue('a', to_jsonb(n), key => 'k')) FROM generate_series(8, 11) n;
SELECT * FROM got(3); SELECT ack('a8 a9 a10');
SELECT * FROM got();
SELECT position, key, state, attempts FROM outbox_deliveries ORDER BY position;
SELECT due();
SELECT * FROM got(); SELECT ack('a9 a11');
SELECT position, key, state, attempts FROM outbox_deliveries ORDER BY position;
SELECT due();
SELECT * FROM got(); SELECT ack();
SELECT * FROM state();
-- The lease of a single event that lapses is a failed attempt.
SELECT count(outbox_enqueue('a', to_jsonb(n), key => 'k' || n % 2)) FROM generate_series(12, 15) n;
SELECT * FROM got(); SELECT lapse();
SELECT * FROM got(); SELECT lapse();
SELECT * FROM got(); SELECT lapse();
SELECT * FROM got(); SELECT ack();
SELECT position, key, state, attempts, last_error FROM outbox_deliveries ORDER BY position;
SELECT due();
SELECT * FROM got(); SELECT lapse();
SELECT * FROM got(); SELECT lapse();
SELECT * FROM got();
SELECT position, key, state, attempts, last_error FROM outbox_deliveries ORDER BY position;
SELECT due();
SELECT * FROM got(); SELECT ack();
SELECT * FROM got(); SELECT ack();
SELECT * FROM state();
-- Without a key it is not returned as a new event besides.
SELECT count(outbox_enqueue('a', to_jsonb(n))) FROM generate_series(151, 152) n;
SELECT * FROM got(1); SELECT lapse();
SELECT * FROM got(); SELECT ack();
SELECT due();
SELECT * FROM got(); SELECT ack();
-- Events whose time has not come.
SELECT count(outbox_enqueue('a', '16', key => 'k', deliver_at => now() + interval '1 h')), count(outbox_enqueue('a', '17', key => 'k'));
SELECT * FROM got(); SELECT ack();
SELECT due();
SELECT * FROM got(); SELECT ack();
-- Rollback of the reader; several batches in a transaction; own events.
SELECT count(outbox_enqueue('a', to_jsonb(n))) FROM generate_series(18, 20) n;
BEGIN;
SELECT * FROM got(); SELECT ack();
ROLLBACK;
BEGIN;
SELECT outbox_enqueue('a', '21') > 0 AS own;
SELECT pg_sleep(0.15);
SELECT * FROM got(2); SELECT ack();
SAVEPOINT one;
SELECT * FROM got(2); SELECT ack();
ROLLBACK TO one;
SELECT * FROM got(2); SELECT ack();
SELECT * FROM got(2);
COMMIT;
SELECT * FROM got(2); SELECT ack();
SELECT * FROM state();
-- Replay and a batch that is out.
SELECT * FROM got();
SELECT count(outbox_enqueue('a', to_jsonb(n))) FROM generate_series(22, 23) n;
SELECT * FROM got(1);
SELECT outbox_replay('r', from_position => (SELECT position FROM outbox_log WHERE payload = '20')) > 0 AS replayed;
\set VERBOSITY default
SELECT ack();
\set VERBOSITY terse
SELECT * FROM got(); SELECT ack();
-- Filters, patterns, a test event.
SELECT outbox_alter('r', topics => '{a.*}', filter => '$.n > 1');
SELECT outbox_enqueue('a.b', '{"n": 1}') IS NULL, outbox_enqueue('a.b', '{"n": 2}') IS NULL, outbox_enqueue('a', '{"n": 2}') IS NULL,
	outbox_ping('r') IS NULL;
SELECT * FROM got(); SELECT ack();
SELECT * FROM got(); SELECT ack();
SELECT filtered, filter_errors FROM outbox_subscriptions;
SELECT outbox_enqueue('a.b', '{"n": 1}') IS NULL, outbox_ping('r') IS NULL;
SELECT * FROM got(); SELECT ack();
SELECT filtered, filter_errors FROM outbox_subscriptions;
-- Paused: what is out can be acknowledged.
SELECT outbox_enqueue('a.b', '{"n": 3}') IS NULL, outbox_enqueue('a.b', '{"n": 4}') IS NULL;
SELECT * FROM got(1);
SELECT outbox_pause('r', 'maintenance');
SELECT ack();
SELECT * FROM got();
SELECT outbox_resume('r');
SELECT * FROM got(); SELECT ack();
-- Partitions: a batch of each can be out, and a key is in one of them.
SELECT outbox_subscribe('p', url => NULL, topics => '{p}', partitions => 3);
SELECT count(outbox_enqueue('p', to_jsonb(n), key => 'k' || n % 20)) FROM generate_series(1, 100) n;
CREATE TABLE batches AS SELECT * FROM outbox_fetch('p', 60);
INSERT INTO batches SELECT * FROM outbox_fetch('p', 60);
INSERT INTO batches SELECT * FROM outbox_fetch('p', 60);
SELECT count(*) FROM outbox_fetch('p');
SELECT count(DISTINCT token), count(*), count(DISTINCT payload) FROM batches;
SELECT max(tokens) FROM (SELECT count(DISTINCT token) AS tokens FROM batches GROUP BY key) k;
SELECT count(*) FILTER (WHERE outbox_ack('p', token)) FROM (SELECT DISTINCT token FROM batches) t;
SELECT outbox_subscribe('u', 'https://example.com/') IS NOT NULL AS url;
SELECT outbox_unsubscribe('p');
-- Errors.
\set VERBOSITY sqlstate
SELECT * FROM outbox_fetch(NULL);
SELECT * FROM outbox_fetch('p');
SELECT * FROM outbox_fetch('u');
SELECT * FROM outbox_fetch('r', NULL);
SELECT * FROM outbox_fetch('r', 0);
SELECT * FROM outbox_fetch('r', 10001);
SELECT * FROM outbox_fetch('r', lease => NULL);
SELECT * FROM outbox_fetch('r', lease => '0');
SELECT * FROM outbox_fetch('r', lease => '-1 s');
SELECT * FROM outbox_fetch('r', lease => '367 days');
SELECT outbox_ack(NULL, 1);
SELECT outbox_ack('r', NULL);
SELECT outbox_ack('r', 0);
SELECT outbox_ack('r', 9223372036854775807);
SELECT outbox_ack('r', 1, NULL);
SELECT outbox_ack('r', 1, '{{1}}');
SELECT outbox_ack('r', 1, '{NULL}');
SELECT outbox_ack('r', 1, '{}', 'why');
SELECT outbox_ack('p', 1);
SELECT outbox_ack('u', 1);
SELECT outbox_enqueue('a.b', '{"n": 5}') IS NULL;
SELECT * FROM got();
SELECT outbox_ack('r', token, '{1}') FROM last;
SELECT outbox_ack('r', token, ARRAY[1, max(position) + 1]) FROM last, outbox_log GROUP BY token;
SELECT outbox_ack('r', token, ARRAY[(SELECT max(position) FROM outbox_log)], repeat('ü', 10000)) FROM last;
SELECT octet_length(last_error) FROM outbox_deliveries;
SELECT due();
SELECT * FROM got();
SELECT outbox_ack('r', token, '{1}') FROM last;
SELECT ack();
CALL outbox_wait(NULL);
CALL outbox_wait('p');
CALL outbox_wait('u');
CALL outbox_wait('r', NULL);
CALL outbox_wait('r', '0');
CALL outbox_wait('r', '25 h');
CALL outbox_wait('r', '10 ms');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM outbox_fetch('r');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox_ack('r', 1);
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
CALL outbox_wait('r', '10 ms');
ROLLBACK;
BEGIN READ ONLY;
SELECT * FROM outbox_fetch('r');
ROLLBACK;
DO $$ BEGIN CALL outbox_wait('r', '10 ms'); END $$;
CREATE FUNCTION waits() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL outbox_wait('r', '10 ms'); END $$;
SELECT waits();
BEGIN;
CALL outbox_wait('r', '10 ms');
SELECT count(*) FROM outbox_fetch('r');
COMMIT;
SELECT outbox_subscribe('r2', NULL, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
SELECT outbox_subscribe('r2', NULL, headers => '{}');
SELECT outbox_subscribe('r2', NULL, format => 'cloudevents');
SELECT outbox_subscribe('r2', NULL, rate_limit => 1);
SELECT outbox_alter('r', url => 'https://example.com/');
SELECT outbox_alter('r', headers => '{"x": "y"}');
SELECT outbox_alter('r', rate_limit => 10);
SELECT outbox_rotate_secret('r');
SELECT outbox_alter('r', retry_schedule => '{0 s}');
SELECT * FROM state();
SELECT outbox_unsubscribe('r');
-- A batch lapses that has set events aside: one for later, and one behind
-- another of its key.  They are handed out once, although the log is read again.
SELECT outbox_subscribe('r', url => NULL, topics => '{l}', retry_schedule => '{0 s, 1 h, 2 h}');
SELECT outbox_enqueue('l', '1', key => 'k') IS NOT NULL AS enqueued;
SELECT * FROM got();
SELECT ack('l1');
SELECT outbox_enqueue('l', '2', key => 'k') IS NOT NULL, outbox_enqueue('l', '3', deliver_at => now() + '1 h') IS NOT NULL, outbox_enqueue('l', '4') IS NOT NULL;
SELECT * FROM got();
UPDATE idempotency_internal.outbox_partition SET leased_until = now() WHERE leased_until IS NOT NULL;
SELECT due();
UPDATE idempotency_internal.outbox_log_0 SET deliver_at = now() WHERE topic = 'l' AND deliver_at IS NOT NULL;
SELECT * FROM got();
SELECT ack();
SELECT * FROM got();
SELECT ack();
SELECT * FROM got();
SELECT ack();
SELECT * FROM got();
SELECT * FROM state();
SELECT outbox_unsubscribe('r');
-- A timeout that strikes in a filter ends the statement, and nothing is left of
-- its transaction, neither locks nor the failed state.
SELECT outbox_subscribe('slow', NULL, topics => '{slow}', filter => 'exists($.a[*] ? (exists($.a[*] ? (@ < 0))))');
SELECT count(outbox_enqueue('slow', (SELECT jsonb_build_object('a', jsonb_agg(n)) FROM generate_series(1, 5000) n)))
FROM generate_series(1, 20);
SET statement_timeout = '100 ms';
SELECT count(*) FROM outbox_fetch('slow');
RESET statement_timeout;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'idempotency_internal.outbox_partition'::regclass;
SELECT outbox_unsubscribe('slow');
-- A filter that exceeds a limit for an event counts as one that fails: pairs of
-- values, which nothing could interrupt, time, and memory.  Many values are no
-- reason, nor are values that are compared with each other in a large payload.
SELECT outbox_enqueue('limit', jsonb_build_object('p', jsonb_agg(n), 'q', jsonb_agg(-n), 'a', 1, 'b', 2, 'deep', (repeat('[', 300) || repeat(']', 300))::jsonb)) IS NULL
FROM generate_series(1, 20000) n;
SELECT outbox_enqueue('limit', '{"p": 1, "q": 1, "a": 2, "b": 1}') IS NULL;
CREATE TABLE limits (name text, filter jsonpath);
INSERT INTO limits VALUES
	('pairs', '$.p[*] == $.q[*]'),
	('pairs in a filter', 'exists($ ? (@.p[*] == @.q[*]))'),
	('pairs in a path', '$.p[*] ? (@ == $.q[*]).type() == "number"'),
	('pairs in a subscript', '$.p[0, $.p[*] ? (@ == $.q[*])] == 1'),
	('pairs of a pattern', '$.p[*] ? (@ == $.q[*]).type() like_regex "n"'),
	('pairs of a prefix', '$.p[*] ? (@ == $.q[*]).type() starts with "n"'),
	('time', 'exists($.p[*] ? (!exists($.p[*] ? (@ < 0)) && @ < 0)) || $.p[*] == 1'),
	('memory', '$.deep.**.**.**.** == 1 || $.p == 1'),
	('many values', '$.p[*] <= 0 || $.q[*] == 1'),
	('few values', '$.a > $.b');
SELECT count(outbox_subscribe(name, NULL, topics => '{limit}', start => 'earliest', filter => filter)) FROM limits;
SELECT l.name, f.events FROM limits l, LATERAL (SELECT string_agg(left(payload::text, 30), ' ') AS events FROM outbox_fetch(l.name)) f
ORDER BY 1;
SELECT name, filtered, filter_errors FROM outbox_subscriptions JOIN limits USING (name) ORDER BY 1;
SELECT outbox_unsubscribe(name) IS NULL AS gone FROM limits;
DROP TABLE limits;
-- What a costly filter has read is recorded, and a call ends after a second of
-- CPU time: the next one does not begin again.
SELECT count(outbox_enqueue('costly', p)) FROM (SELECT jsonb_agg(n) AS p FROM generate_series(1, 1200) n) p, generate_series(1, 24);
SELECT outbox_enqueue('costly', '[-1]') > 0 AS enqueued;
SELECT outbox_subscribe('costly', NULL, topics => '{costly}', start => 'earliest', filter => 'exists($[*] ? (exists($[*] ? (@ < 0))))') IS NULL AS subscribed;
SELECT position AS start FROM outbox_subscriptions WHERE name = 'costly' \gset
CALL outbox_wait('costly', '10 s');
SELECT count(*) FROM outbox_fetch('costly');
SELECT position > :start AS recorded, filtered > 0 AS counted FROM outbox_subscriptions WHERE name = 'costly';
DO $$
BEGIN
	FOR i IN 1..40 LOOP
		PERFORM outbox_ack('costly', token) FROM outbox_fetch('costly');
		EXIT WHEN FOUND;
	END LOOP;
END
$$;
SELECT delivered, filtered FROM outbox_subscriptions WHERE name = 'costly';
SELECT outbox_unsubscribe('costly');
-- That second is for all partitions together.
SELECT count(outbox_enqueue('costlier', p, key => i::text)) FROM (SELECT jsonb_agg(n) AS p FROM generate_series(1, 1200) n) p, generate_series(1, 120) i;
SELECT outbox_subscribe('costly' || n, NULL, topics => '{costlier}', start => 'earliest', partitions => n, filter => 'exists($[*] ? (exists($[*] ? (@ < 0))))') IS NULL AS subscribed FROM unnest(ARRAY[1, 8]) n;
SELECT count(*) FROM outbox_fetch('costly1');
SELECT count(*) FROM outbox_fetch('costly8');
SELECT bool_or(s.filtered > 0) AS some, max(s.filtered) <= 3 * min(s.filtered) + 8 AS alike FROM outbox_subscriptions s WHERE s.name IN ('costly1', 'costly8');
SELECT outbox_unsubscribe('costly' || n) FROM unnest(ARRAY[1, 8]) n;
-- Rows that no constraint has kept out: an error or a retry, not a crash.
SELECT outbox_subscribe('odd', NULL, topics => '{odd}');
ALTER TABLE idempotency_internal.outbox_delivery DROP CONSTRAINT outbox_delivery_key_check;
ALTER TABLE idempotency_internal.outbox_partition DROP CONSTRAINT outbox_partition_number_check, DROP CONSTRAINT outbox_partition_lease_check;
SELECT outbox_ping('odd') > 0 AS ping;
UPDATE idempotency_internal.outbox_delivery SET blocks_key = true, attempts = 2147483647;
SELECT outbox_ack('odd', token, ARRAY[position]) FROM outbox_fetch('odd');
SELECT blocks_key, state, attempts FROM idempotency_internal.outbox_delivery;
UPDATE idempotency_internal.outbox_partition SET token = 1, leased_until = now(), leased_count = -1, leased_events = '{{1,2}}', lapsed_to = -1;
SELECT count(*) FROM outbox_fetch('odd');
UPDATE idempotency_internal.outbox_partition SET number = 1000;
SELECT count(*) FROM outbox_fetch('odd');
CALL outbox_wait('odd', '10 ms');
