/*
 * Everything that the C code relies on about rows is a constraint of their
 * table.  If this fails, a restore, a replica or an owner's UPDATE can write a
 * row that stops a subscription, or makes it lose events.
 */
\set ON_ERROR_STOP on
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE EXTENSION IF NOT EXISTS pgtap;

BEGIN;

SELECT outbox_subscribe('shop', 'https://example.com/',
	secret => 'whsec_' || encode(repeat('k', 24)::bytea, 'base64'))
	IS NOT NULL AS subscribed;
INSERT INTO outbox_delivery (subscription, position, partition, state, blocks_key,
	attempts, due_at, created_at, topic, key, payload)
SELECT id, 1, 0, 'waiting', true, 1, now(), now(), 't', 'k', '{}'
FROM outbox_subscription;
INSERT INTO outbox_attempt SELECT id, 1, 1, now(), 1 FROM outbox_subscription;
SELECT outcome FROM idem_claim('k', lease => '1 min');

-- Each of these is refused, as the assignment of an UPDATE.  Messages about a
-- subscription have another SQLSTATE, since they do not show the row.
CREATE TEMPORARY TABLE wrong (relation text, assignment text,
	code text DEFAULT '23514');
INSERT INTO wrong
SELECT 'outbox_subscription', a, '22023' FROM unnest(ARRAY[
	'name = ''''', 'name = repeat(''n'', 256)', 'url = ''ftp://example.com/''',
	'url = ''http://'' || repeat(''a'', 3000)',
	'topics = ''{}''', 'topics = ''{NULL}''', 'topics = ''{{a},{b}}''',
	'topics = ARRAY[repeat(''t'', 256)]',
	'secret = ''secret''', 'old_secret = ''whsec_''', 'headers = ''[1]''',
	'headers = ''{"a": 1}''',
	'signing_key = ''whsk_''', 'old_signing_key = secret',
	'authorization_file = ''../token''',
	'client_certificate = ''/etc/passwd''',
	'authorization_file = ''token'', headers = ''{"authorization": "x"}''',
	'url = ''http://example.com/'', client_certificate = ''c.pem''',
	'headers = ''{"a": "b\r\nc: d"}''', 'headers = ''{"webhook-id": "1"}''',
	'timeout = ''0''', 'timeout = ''-1 s''', 'timeout = ''170000000 years''',
	'retry_schedule = ''{}''', 'retry_schedule = ''{0,NULL}''',
	'retry_schedule = ''{5 s}''', 'retry_schedule = ''{0,-1 s}''',
	'retry_schedule = ''{{0},{1}}''', 'retry_schedule = ''{0,367 days}''',
	'retry_schedule = array_fill(interval ''0'', ''{101}'')']) a;
INSERT INTO wrong
SELECT 'outbox_partition', a FROM unnest(ARRAY[
	'number = -1', 'number = 64', 'subscription = 0', 'position = -1', 'lost = -1', 'delivered = -1',
	'rate = -1', 'rate = ''NaN''', 'rate = ''Infinity''',
	'moved_at = ''infinity''', 'moved_at = ''-infinity''',
	'stragglers = ''{7}''',
	'stragglers = ''{NULL}'', straggler_froms = ''{1}''',
	'stragglers = ''{7}'', straggler_froms = ''{NULL}''',
	'stragglers = ''{{7},{8}}'', straggler_froms = ''{{1},{2}}''']) a
UNION ALL
SELECT 'outbox_delivery', a FROM unnest(ARRAY[
	'partition = 64', 'position = 0', 'attempts = -1', 'key = NULL',
	'due_at = ''infinity''', 'due_at = NULL', 'last_at = ''-infinity''',
	'created_at = ''infinity''', 'state = ''lost''']) a
UNION ALL
SELECT 'outbox_attempt', a
FROM unnest(ARRAY['attempt = 0', 'duration_ms = -1', 'at = ''infinity''']) a
UNION ALL
SELECT ring, a
FROM unnest(ARRAY['idem_ring', 'outbox_ring', 'outbox_history_ring', 'stock_ring']) ring, unnest(ARRAY[
	'slot = 3', 'state = ''open''', 'segment = NULL', 'segment = -1',
	'opened_at = ''infinity''', 'closed_at = ''infinity''',
	'rest_until = ''infinity''']) a
UNION ALL
SELECT 'outbox_ring', 'last_position = -1'
UNION ALL
SELECT 'idem_key_' || slot, a FROM idem_ring, unnest(ARRAY[
	'token = 0', 'attempt = 0', 'attempt = -2147483648',
	'expires_at = ''infinity''', 'lease_until = ''infinity''',
	'lease_until = NULL',
	'state = ''x''', 'key = ''''', 'key = repeat(''k'', 256)',
	'scope = repeat(''s'', 256)']) a WHERE state = 'current';
INSERT INTO wrong
SELECT 'outbox_delivery', a, '22023' FROM unnest(ARRAY[
	'topic = ''''', 'topic = repeat(''t'', 256)', 'key = repeat(''k'', 256)',
	'type = repeat(''t'', 256)', 'headers = ''[1]''',
	'headers = ''{"a": "b\r\nc: d"}''']) a;

SELECT plan((SELECT count(*) FROM wrong)::integer + 6);

SELECT throws_ok(format('UPDATE %I SET %s WHERE %s', relation, assignment,
		CASE WHEN relation LIKE '%ring' THEN 'state = ''current'''
			ELSE 'true' END), code::char(5), NULL::text,
	format('%s: %s is refused', relation, left(assignment, 60)))
FROM wrong;

SELECT throws_ok(
	$$INSERT INTO outbox_log_0 (position, xid, created_at, topic, payload)
		VALUES (0, '1', now(), 't', '{}')$$,
	'23514', NULL, 'a position of the log is positive');
SELECT throws_ok(
	$$INSERT INTO outbox_log_0 (position, xid, created_at, topic, payload)
		VALUES (1, '1', 'infinity', 't', '{}')$$,
	'23514', NULL, 'the time of an event is finite');
SELECT throws_ok(
	$$INSERT INTO outbox_log_0 (position, xid, created_at, topic, payload)
		VALUES (1, '1', now(), '', '{}')$$,
	'22023', NULL, 'and its topic is one');
SELECT lives_ok($$UPDATE outbox_delivery
	SET state = 'dead', due_at = NULL, headers = '[1]'$$,
	'what cannot be sent can be dead');
SELECT is(outbox_redrive('shop'), 0::bigint, 'and is not redriven');
SELECT throws_ok($$INSERT INTO idem_key_0
	VALUES (1, now() + '1 h', 1, 'c', '', NULL)$$, '23502', NULL,
	'a key is not null');

SELECT * FROM finish();
ROLLBACK;
