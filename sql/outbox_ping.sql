-- A ping is an event and a delivery for one subscription, which other
-- subscriptions do not get.  If this fails, a test event reaches the wrong
-- receivers, or none.  ping.pl does the same with a relay.
\getenv dir PG_ABS_SRCDIR
\set db regress_outbox_ping
\i :dir/sql/include/ring.sql
\set VERBOSITY terse
\pset null -
SELECT count(outbox_subscribe(name, 'https://example.com/', topics => topics, partitions => partitions))
FROM (VALUES ('all', '{*}'::text[], 1), ('none', '{none}', 7), ('own', '{outbox.*}', 1)) v (name, topics, partitions);
SELECT version AS before FROM outbox_subscription WHERE name = 'none' \gset
CREATE VIEW pings AS
SELECT s.name, d.state, d.topic, d.key, d.type, d.payload, d.headers, d.attempts, d.last_at,
	d.blocks_key, d.due_at <= clock_timestamp() AS due,
	d.partition = outbox_partition_number(NULL, d.position, s.partitions) AS partition,
	d.created_at = e.created_at AND d.payload = e.payload AND d.topic = e.topic AS as_logged
FROM outbox_delivery d JOIN outbox_subscription s ON s.id = d.subscription
LEFT JOIN outbox_log e USING (position);

SELECT outbox_ping('none') AS position \gset
SELECT outbox_ping(name => 'own') - :position AS next;
SELECT * FROM pings ORDER BY name;
SELECT subscription, position = :position AS position, state, topic, attempts, last_at
FROM outbox_deliveries WHERE subscription = 'none';
SELECT topic, key, type, headers, deliver_at, xid < pg_current_xact_id() AS ended FROM outbox_log ORDER BY position;
SELECT outbox_event_id(:position) ~ ('^msg_[0-9a-f]{32}_' || :position || '_\d+$') AS id;
-- The relay need not read the subscription again.
SELECT version = :before AS same, state FROM outbox_subscription WHERE name = 'none';
TRUNCATE outbox_delivery;
SELECT count(outbox_ping('none')) FROM generate_series(1, 20);
SELECT count(DISTINCT d.partition) > 1 AS several FROM outbox_delivery d;
SELECT bool_and(partition) AS each_in_its_own FROM pings;
TRUNCATE outbox_delivery;

-- A rollback undoes it, also one to a savepoint.
BEGIN;
SAVEPOINT a;
SELECT outbox_ping('all') > 0 AS sent;
ROLLBACK TO a;
SELECT count(*) FROM pings;
SELECT outbox_ping('none') > 0 AS sent;
ROLLBACK;
SELECT count(*) FROM pings;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox_ping('all') > 0 AS sent;
COMMIT;
SELECT name, state FROM pings;
TRUNCATE outbox_delivery;

-- A subscription that fails is pinged, others are not.
UPDATE outbox_subscription SET failing_since = now() WHERE name = 'all';
SELECT outbox_ping('all') > 0 AS sent;
SELECT name, state, waiting FROM outbox_subscriptions ORDER BY name;
SELECT outbox_pause('all', 'for repair');
SELECT outbox_ping('all');
UPDATE outbox_subscription SET state = 'disabled' WHERE name = 'all';
SELECT outbox_ping('all');
\set VERBOSITY default
SELECT outbox_ping('all');
SELECT outbox_resume('all');
UPDATE outbox_home SET database = 1;
SELECT outbox_ping('all');
DELETE FROM outbox_home;
SELECT outbox_ping('all');
SELECT outbox_adopt();
SELECT outbox_ping('all') > 0 AS sent;
\set VERBOSITY terse
SELECT outbox_ping('nobody');
SELECT outbox_ping('');
SELECT outbox_ping(NULL);
BEGIN READ ONLY;
SELECT outbox_ping('all');
ROLLBACK;
SELECT count(*) FROM pings;

-- The topics of such events are reserved, and patterns match them only if they
-- begin likewise.
SELECT outbox_enqueue('outbox.ping', '{}');
SELECT outbox_enqueue('outbox.', '{}');
INSERT INTO outbox_log (topic, payload) VALUES ('outbox.ping', '{"subscription": "all"}');
SELECT outbox_enqueue(topic, '{}', type => 'outbox.ping') > 0 AS enqueued
FROM unnest('{outbox,outbox_ping,Outbox.ping,my.outbox.ping}'::text[]) topic;
SELECT pattern, topic, outbox_topic_matches(ARRAY[pattern], topic) AS matches
FROM (VALUES ('*', 'outbox.ping'), ('*', 'outbox.'), ('*', 'outbox'), ('*', 'outboxes.ping'),
	('o*', 'outbox.ping'), ('outbox*', 'outbox.ping'), ('*.ping', 'outbox.ping'),
	('outbox.*', 'outbox.ping'), ('outbox.*', 'outbox.pong'), ('outbox.ping', 'outbox.ping'),
	('outbox.*', 'outbox'), ('outbox.*', 'order')) v (pattern, topic);
SELECT outbox_topic_matches('{*,outbox.p*}', 'outbox.ping') AS one_of_them;
-- The relay reads pings from the log for nobody.
SELECT topic, outbox_is_wanted('{*,outbox.*}', topic) AS wanted
FROM unnest('{outbox.ping,outbox.pings,outbox.pin,order}'::text[]) topic;

-- A dump contains pings, so the rows are valid.
BEGIN;
CREATE TABLE log AS SELECT * FROM outbox_event WHERE topic = 'outbox.ping';
CREATE TABLE delivery AS SELECT * FROM outbox_delivery;
TRUNCATE outbox_log_0, outbox_delivery;
INSERT INTO outbox_log_0 SELECT * FROM log;
INSERT INTO outbox_delivery SELECT * FROM delivery;
ROLLBACK;
SELECT outbox_unsubscribe('all');
SELECT count(*) FROM outbox_delivery;
\i :dir/sql/include/ring_end.sql
