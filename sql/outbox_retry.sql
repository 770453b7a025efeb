-- After an endpoint works again, deliveries that wait for a retry become due
-- at once, and no others.  If this fails, an operator waits for the schedule,
-- or events are sent too early.  retry_now.pl does the same with a relay.
\getenv dir PG_ABS_SRCDIR
\set db regress_outbox_retry
\i :dir/sql/include/ring.sql
\set VERBOSITY terse
\pset null -
SELECT count(outbox_subscribe(name, 'https://example.com/')) FROM unnest('{s,other}'::text[]) name;
CREATE PROCEDURE fill() LANGUAGE sql AS $$
	DELETE FROM outbox_delivery;
	INSERT INTO outbox_delivery (subscription, position, partition, state,
		blocks_key, attempts, due_at, last_at, created_at, topic, key, payload)
	SELECT s.id, v.position, 0, v.state, v.key IS NOT NULL, v.attempts,
		now() + v.due, now() - v.last, now(), v.topic, v.key, '{}'
	FROM outbox_subscription s, (VALUES
		(1, 'waiting', 'a', 3, interval '5 h', interval '1 h', 'failed'),
		(2, 'parked', 'a', 0, NULL, NULL, 'behind it'),
		(3, 'waiting', NULL, 1, interval '24 h', interval '1 min', 'failed without a key'),
		(4, 'waiting', NULL, 0, interval '3 d', NULL, 'scheduled'),
		(5, 'waiting', NULL, 0, interval '9 min', interval '1 s', 'tried as a probe'),
		(6, 'waiting', NULL, 2, interval '-1 h', interval '2 h', 'due already'),
		(7, 'dead', NULL, 10, NULL, interval '1 d', 'dead')
	) v (position, state, key, attempts, due, last, topic);
	UPDATE outbox_subscription SET failing_since = now() - interval '1 h';
$$;
CREATE VIEW due AS
SELECT s.name, d.position, d.topic, d.state, d.attempts,
	CASE WHEN d.due_at < now() - interval '30 min' THEN 'long ago'
		WHEN d.due_at <= clock_timestamp() THEN 'now'
		WHEN d.due_at > now() THEN 'later' END AS due
FROM outbox_delivery d JOIN outbox_subscription s ON s.id = d.subscription;

CALL fill();
SELECT next_attempt_at < now() - interval '30 min' AS overdue
FROM outbox_subscriptions WHERE name = 's';
SELECT name, version AS before FROM outbox_subscription WHERE name = 's' \gset
SELECT outbox_retry('s');
SELECT * FROM due ORDER BY name DESC, position;
-- The breaker is closed, and the relay reads the subscription again.
SELECT name, failing_since IS NULL AS works, version > :before AS altered
FROM outbox_subscription ORDER BY name DESC;
SELECT name, state, waiting, next_attempt_at <= now() + interval '1 s' AS next
FROM outbox_subscriptions ORDER BY name DESC;

-- The second call finds them due, so it takes off no further attempt.
SELECT outbox_retry('s');
SELECT position, attempts FROM due WHERE name = 's' ORDER BY position;

-- Some deliveries: unknown positions, duplicates and other states are ignored.
CALL fill();
SELECT outbox_retry(name => 's', positions => '{3,3,2,4,7,99,-1}');
SELECT topic, due FROM due WHERE name = 's' AND state = 'waiting' ORDER BY position;
SELECT outbox_retry('s', '{}');
SELECT outbox_retry('s', '[5:6]={1,5}');
SELECT topic, due FROM due WHERE name = 's' AND state = 'waiting' ORDER BY position;
SELECT failing_since IS NULL AS works FROM outbox_subscription WHERE name = 's';

-- A paused or disabled subscription does not change its state.
CALL fill();
SELECT outbox_pause('s', 'for repair');
SELECT outbox_retry('s');
SELECT state, reason FROM outbox_subscriptions WHERE name = 's';
SELECT topic, due FROM due WHERE name = 's' AND state = 'waiting' ORDER BY position;
UPDATE outbox_subscription SET state = 'disabled' WHERE name = 's';
SELECT outbox_retry('s');
SELECT state FROM outbox_subscriptions WHERE name = 's';
SELECT outbox_resume('s');

-- A rollback undoes it, also one to a savepoint.
CALL fill();
BEGIN;
SELECT outbox_retry('s', '{1}');
SAVEPOINT a;
SELECT outbox_retry('s');
ROLLBACK TO a;
SELECT topic, due FROM due WHERE name = 's' AND state = 'waiting' ORDER BY position;
ROLLBACK;
SELECT count(*) FROM due WHERE due = 'now';
SELECT count(failing_since) FROM outbox_subscription;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox_retry('s', '{1}');
COMMIT;

-- No delivery waits.
DELETE FROM outbox_delivery;
SELECT outbox_retry('s');
SELECT next_attempt_at FROM outbox_subscriptions WHERE name = 's';

-- Bad arguments, also of the other two functions that take positions.
BEGIN READ ONLY;
SELECT outbox_retry('s');
ROLLBACK;
SELECT format('SELECT outbox_%s(%s)', function, arguments)
FROM unnest('{retry,redrive,discard}'::text[]) function,
	unnest(ARRAY['NULL', $$'nobody'$$, $$''$$, $$'s', '{1,NULL}'$$,
		$$'s', '{{1},{2}}'$$, $$'s', '{9223372036854775807}'$$]) arguments
ORDER BY 1 \gexec
\i :dir/sql/include/ring_end.sql
