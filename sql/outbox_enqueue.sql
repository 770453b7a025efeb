-- Events are appended in the transaction of their cause; bad ones are refused
-- and leave nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
SELECT coalesce(max(position), 0) AS before FROM outbox_log \gset

SELECT outbox_enqueue('order.placed', '{"order": 1}', key => 'c1', type => 'com.example.order',
	headers => '{"X-Tenant": "7"}', deliver_at => '2020-01-01 00:00+00') > :before AS position;
BEGIN;
SELECT outbox_enqueue('order.placed', '{"order": 2}') > 0 AS position;
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT outbox_enqueue('order.placed', '{"order": 3}') > 0 AS position;
ROLLBACK TO s;
SELECT outbox_enqueue('order.placed', 'null') > 0 AS position;
COMMIT;
INSERT INTO outbox_log (topic, payload)
	SELECT 'bulk', to_jsonb(i) FROM generate_series(1, 1000) i;
SELECT topic, key, type, payload, headers, deliver_at AT TIME ZONE 'UTC' AS deliver_at, count(*)
FROM outbox_log WHERE position > :before AND topic <> 'bulk'
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2;
SELECT count(*), count(DISTINCT position), count(DISTINCT xid)
FROM outbox_log WHERE position > :before AND topic = 'bulk';

-- A transaction that has enqueued cannot be prepared.
\set SHOW_CONTEXT never
BEGIN;
SELECT outbox_enqueue('t', '{}') > 0 AS position;
PREPARE TRANSACTION 'idempotency test';

-- Bad arguments.
SELECT outbox_enqueue(NULL, '{}');
SELECT outbox_enqueue('t', NULL);
SELECT outbox_enqueue('', '{}');
SELECT outbox_enqueue('t', '{}', headers => '{"webhook-id": "1"}');
SELECT outbox_enqueue('t', '{}', deliver_at => 'infinity');
SELECT outbox_enqueue('t', to_jsonb(repeat('y', 17000000)));
SELECT outbox_enqueue('t', ('[' || repeat('1e131071,', 200) || '1]')::jsonb);
\set VERBOSITY sqlstate
SELECT outbox_enqueue(repeat('x', 256), '{}');
SELECT outbox_enqueue('t', '{}', key => '');
SELECT outbox_enqueue('t', '{}', key => repeat('x', 256));
SELECT outbox_enqueue('t', '{}', type => '');
SELECT outbox_enqueue('t', '{}', type => repeat('x', 256));
SELECT outbox_enqueue('t', '{}', headers => '[]');
SELECT outbox_enqueue('t', '{}', headers => '{"X": 1}');
SELECT outbox_enqueue('t', '{}', headers => '{"X": "a\r\nY: b"}');
SELECT outbox_enqueue('t', '{}', headers => '{"X Y": "a"}');
SELECT outbox_enqueue('t', '{}', deliver_at => '-infinity');
BEGIN READ ONLY;
SELECT outbox_enqueue('t', '{}');
ROLLBACK;
INSERT INTO outbox_log (topic, payload) VALUES ('', '{}');
INSERT INTO outbox_log (topic, payload) VALUES (NULL, '{}');
INSERT INTO outbox_log (topic, payload, headers) VALUES ('t', '{}', '[1]');
INSERT INTO outbox_log (topic, payload, headers) VALUES ('t', '{}', '{"X": null}');
INSERT INTO outbox_log (topic, payload, deliver_at) VALUES ('t', '{}', 'infinity');
INSERT INTO outbox_log (topic, payload) VALUES ('t', to_jsonb(repeat('y', 17000000)));
SELECT outbox_enqueue('t', to_jsonb(repeat('y', 17000000)));
SELECT count(*) FROM outbox_log WHERE position > :before AND topic IN ('t', '');

-- The longest names, and a large payload.
SELECT outbox_enqueue(repeat('x', 255), to_jsonb(repeat('y', 1000000)),
	key => repeat('k', 255), type => repeat('z', 255)) > 0 AS position;

-- Few bytes of jsonb can be many of text.
\set short '(''['' || repeat(''1e131071,'', 61) || ''1]'')::jsonb'
SET idempotency.outbox_payload_max = '1MB';
SELECT outbox_enqueue('t', :short);
INSERT INTO outbox_log (topic, payload) VALUES ('t', :short);
INSERT INTO outbox_log_0 (position, xid, created_at, topic, payload) VALUES (0, '3', now(), 't', :short);
RESET idempotency.outbox_payload_max;
BEGIN;
SELECT outbox_enqueue('t', :short) > 0 AS position;
ROLLBACK;

-- The limit of payloads is a setting.
SET idempotency.outbox_payload_max = '32MB';
SELECT outbox_enqueue('t', to_jsonb(repeat('y', 17000000))) > 0 AS position;
SET idempotency.outbox_payload_max = '1GB';
