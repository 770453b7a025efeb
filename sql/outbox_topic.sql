-- Topics are registered, replaced and removed; bad arguments are refused.  A
-- schema needs an extension that is not installed here: test/tap/t/
-- topic_schema.pl has it.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;

SELECT outbox_topic('order.placed');
SELECT outbox_topic('order.shipped', NULL, 'an order has left the house');
SELECT topic, schema, description, created_at <= changed_at AS times_ok
FROM outbox_topics ORDER BY topic;
SELECT changed_at AS before FROM outbox_topics WHERE topic = 'order.shipped' \gset
SELECT outbox_topic('order.shipped', description => 'an order has left the house');
SELECT changed_at = :'before' AS unchanged FROM outbox_topics WHERE topic = 'order.shipped';
SELECT outbox_topic('order.shipped', description => 'it is on its way');
SELECT description, changed_at > :'before' AS changed FROM outbox_topics WHERE topic = 'order.shipped';
SELECT outbox_enqueue('order.shipped', '1') > 0 AS enqueued;

-- Without the extension.
SELECT outbox_topic('order.placed', '{}');
SELECT outbox_topic('order.placed', 'true');

-- Bad arguments.
SELECT outbox_topic(NULL);
SELECT outbox_topic('');
SELECT outbox_topic(repeat('x', 256));
SELECT outbox_topic(repeat('x', 255));
SELECT outbox_topic('order.*');
SELECT outbox_topic('outbox.ping');
SELECT outbox_topic('t', '"object"');
SELECT outbox_topic('t', 'null');
SELECT outbox_topic('t', jsonb_build_object('title', repeat('x', 262144)));
SELECT outbox_topic('t', description => repeat('x', 1001));
SELECT outbox_drop_topic(NULL);
SELECT outbox_drop_topic('unknown');
SELECT octet_length(topic), schema FROM outbox_topics ORDER BY topic;

-- The table accepts no row that enqueuing could not read.
\set VERBOSITY sqlstate
INSERT INTO outbox_registered_topic (topic, schema) VALUES ('t', '[]');
INSERT INTO outbox_registered_topic (topic) VALUES ('');

-- There is a limit.
\set VERBOSITY default
BEGIN;
INSERT INTO outbox_registered_topic (topic)
SELECT 'many.' || i FROM generate_series(1, 9997) i;
SELECT outbox_topic('one too many');
ROLLBACK;
BEGIN;
INSERT INTO outbox_registered_topic (topic)
SELECT 'many.' || i FROM generate_series(1, 9997) i;
SELECT outbox_topic('many.1', description => 'it is there already');
ROLLBACK;

SELECT outbox_drop_topic(topic) FROM outbox_topics;
SELECT count(*) FROM outbox_topics;
