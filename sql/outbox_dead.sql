-- Dead letters are redriven or discarded by operators, and deleted when they
-- are old.
\set db idempotency_dead
\getenv dir PG_ABS_SRCDIR
\i :dir/sql/include/ring.sql
CREATE VIEW letters AS
SELECT d.position, d.state, d.blocks_key, d.attempts,
	count(a.at) AS attempts_known
FROM outbox_delivery d LEFT JOIN outbox_attempt a USING (subscription, position)
GROUP BY d.subscription, d.position;
CREATE FUNCTION add(n integer, state text, key text, days integer)
RETURNS void
LANGUAGE sql AS $$
	INSERT INTO outbox_delivery (subscription, partition, position, state,
		blocks_key, attempts, last_at, created_at, topic, key, payload)
	SELECT id, 0, n, add.state, add.state = 'parked', 1,
		now() - days * interval '1 day', now(), 't', add.key, '{}'
	FROM outbox_subscription;
	INSERT INTO outbox_attempt (subscription, position, attempt, at,
		duration_ms, status, error)
	SELECT id, n, 1, now(), 1, 500, 'answered 500' FROM outbox_subscription;
$$;

SELECT outbox_subscribe('s', 'http://127.0.0.1:1/') > '' AS subscribed;
SELECT add(1, 'dead', 'a', 1), add(2, 'dead', 'a', 1), add(3, 'dead', NULL, 1),
	add(4, 'parked', 'b', 90),
	add(5, 'dead', 'c', 31), add(6, 'dead', 'd', 1), add(7, 'dead', 'e', 29);
SELECT * FROM letters ORDER BY 1;

-- Old ones are deleted by the sweeper, after 30 days by default.
SELECT outbox_expire();
SELECT * FROM letters ORDER BY 1;
SELECT subscription, position, attempt, duration, status, error, answer
FROM outbox_attempts ORDER BY position;

SELECT position, topic, key, last_error FROM outbox_dead_page('s', max_events => 2);
SELECT position FROM outbox_dead_page('s', after => 2);

SELECT outbox_discard('s', '{6,4,100}');
SELECT outbox_redrive('s', '{1,2,6}');
SELECT * FROM letters ORDER BY 1;
SELECT outbox_redrive('s');
SELECT outbox_discard('s');
SELECT add(8, 'dead', 'f', 1), add(9, 'dead', 'g', 1);
SELECT outbox_discard('s');
SELECT * FROM letters ORDER BY 1;

-- Lost events are acknowledged, in all partitions.
SELECT outbox_subscribe('p', 'https://example.com/', topics => '{none}',
	partitions => 2) IS NOT NULL AS subscribed;
UPDATE outbox_partition SET lost = 1 + number;
SELECT name, lost FROM outbox_subscriptions ORDER BY name;
SELECT outbox_acknowledge_lost('p');
SELECT name, lost FROM outbox_subscriptions ORDER BY name;
SELECT outbox_unsubscribe('p');

\set VERBOSITY sqlstate
-- An event that cannot be sent stays dead.  If that cannot be told, for want of
-- memory, redriving it is an error.
SELECT add(8, 'dead', repeat('k', 2000), 1);
SELECT outbox_redrive('s', '{8}');
BEGIN;
CREATE OR REPLACE FUNCTION idempotency_internal.outbox_check_event(
	topic text, payload jsonb, key text, type text, headers jsonb, deliver_at timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'out of memory' USING ERRCODE = 'out_of_memory'; END $$;
SELECT outbox_redrive('s', '{8}');
ROLLBACK;
SELECT outbox_discard('s', '{8}');
SELECT outbox_discard('nobody');
SELECT outbox_discard(NULL);
SELECT outbox_dead_page('nobody');
SELECT outbox_dead_page('s', after => NULL);
SELECT outbox_dead_page('s', max_events => 0);
SELECT outbox_acknowledge_lost('nobody');
SELECT outbox_acknowledge_lost(NULL);
SELECT outbox_unsubscribe('s');
SELECT (SELECT count(*) FROM outbox_partition) AS partitions,
	(SELECT count(*) FROM outbox_delivery) AS deliveries,
	(SELECT count(*) FROM outbox_attempt) AS attempts;
\i :dir/sql/include/ring_end.sql
