-- Every administrative call leaves a record: the role, the function, and what it
-- has changed, without secrets.  If this fails, nobody can tell who has changed
-- a subscription, or the audit itself gives secrets away.
SELECT idem_fence('moved');
BEGIN;
-- In the order of the sweeper, which could otherwise wait for what is called
-- below, while that waits for it.
LOCK TABLE outbox_subscription;
SELECT plan(65);

CREATE ROLE operator;
CREATE ROLE admin;
CREATE ROLE somebody;
SELECT idempotency_grant_operator('operator');
SELECT idempotency_grant_admin('admin');

-- What a statement adds to the audit; {} is no record.
CREATE FUNCTION recorded(statement text, role text DEFAULT 'operator')
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	PERFORM set_config('role', role, true);
	EXECUTE statement;
	RESET ROLE;
	RETURN ARRAY(SELECT concat_ws(' ', a.role, a.action, a.object, a.details)
		FROM idempotency_audit a WHERE a.at >= began ORDER BY a.at);
END
$$;

SELECT is(recorded($$SELECT outbox_subscribe('s', 'https://example.com:8443/hook?token=planted-url', '{a,b}',
		headers => '{"Authorization": "planted-header", "X-Shop": "planted-header"}', max_in_flight => 7,
		secret => 'whsec_cGxhbnRlZC1zZWNyZXQtcGxhbnRlZC1zZWNyZXQtcGxhbnRlZA==', filter => '$.amount > 100',
		signing_key => outbox_key_generate(), authorization_file => NULL)$$),
	ARRAY['operator outbox_subscribe s ' || '{"url": "https://example.com:8443", "name": "s", "batch": 1, "state": "active", "filter": "changed", "format": "standard", "secret": "changed", "topics": ["a", "b"], "headers": ["Authorization", "X-Shop"], "ordered": true, "timeout": "00:00:15", "priority": 1, "partitions": 1, "signing_key": "changed", "max_in_flight": 7, "retry_schedule": ["00:00:00", "00:00:05", "00:05:00", "00:30:00", "02:00:00", "05:00:00", "10:00:00", "14:00:00", "20:00:00", "24:00:00"]}'],
	'outbox_subscribe, with its settings and without secrets');
SELECT is(recorded($$SELECT outbox_alter('s', max_in_flight => 8, timeout => '15 s')$$),
	'{"operator outbox_alter s {\"max_in_flight\": 8}"}', 'outbox_alter, with what it has changed');
SELECT is(recorded($$SELECT outbox_alter('s', 'http://a.example/b', headers => '{"X-Shop": "planted-header"}', filter => 'true')$$),
	'{"operator outbox_alter s {\"url\": \"http://a.example\", \"filter\": \"none\", \"headers\": [\"X-Shop\"]}"}', 'also if it removes');
SELECT is(recorded($$SELECT outbox_alter('s', 'http://c.example')$$),
	'{"operator outbox_alter s {\"url\": \"http://c.example\", \"headers\": \"none\"}"}', 'also headers');
SELECT is(recorded($$SELECT outbox_alter('s', max_in_flight => 8)$$), '{operator outbox_alter s}', 'or changes nothing');
SELECT is(recorded($$SELECT outbox_pause('s', 'a test')$$),
	'{"operator outbox_pause s {\"state\": \"paused\", \"reason\": \"a test\"}"}', 'outbox_pause');
SELECT is(recorded($$SELECT outbox_resume('s')$$),
	'{"operator outbox_resume s {\"state\": \"active\", \"reason\": \"none\"}"}', 'outbox_resume');
SELECT matches(recorded($$SELECT outbox_rotate_secret('s')$$)::text,
	'^{"operator outbox_rotate_secret s {\\"secret\\": \\"changed\\", \\"old_until\\": \\"[-0-9]+T[^"]*\\"}"}$', 'outbox_rotate_secret');
SELECT matches(recorded($$SELECT outbox_rotate_key('s', '0')$$)::text,
	'^{"operator outbox_rotate_key s {\\"signing_key\\": \\"changed\\", \\"old_key_until\\": \\"[-0-9]+T[^"]*\\"}"}$', 'outbox_rotate_key');
SELECT matches(recorded($$SELECT outbox_ping('s')$$)::text, '^{"operator outbox_ping s {\\"position\\": [0-9]+}"}$', 'outbox_ping');
UPDATE outbox_delivery SET state = 'dead', due_at = NULL, last_at = now();
SELECT is(recorded($$SELECT outbox_redrive('s', '{}')$$),
	'{"operator outbox_redrive s {\"events\": 0, \"positions\": []}"}', 'outbox_redrive');
SELECT is(recorded($$SELECT outbox_redrive('s')$$), '{"operator outbox_redrive s {\"events\": 1}"}', 'also of all');
SELECT is(recorded($$SELECT outbox_retry('s')$$), '{"operator outbox_retry s {\"events\": 1}"}', 'outbox_retry');
SELECT is(recorded($$SELECT outbox_discard('s', ARRAY(SELECT generate_series(1, 1000)))$$),
	ARRAY(SELECT format('operator outbox_discard s {"events": 0, "positions": [%s]}', string_agg(n::text, ', ' ORDER BY n)) FROM generate_series(1, 100) n),
	'outbox_discard, with the first positions of many');
SELECT is(recorded($$SELECT outbox_acknowledge_lost('s')$$), '{operator outbox_acknowledge_lost s}', 'outbox_acknowledge_lost');
SELECT is(recorded($$SELECT outbox_replay('s', 1000000)$$),
	'{"operator outbox_replay s {\"from_position\": 1000000}"}', 'outbox_replay');
SELECT is(recorded($$SELECT outbox_adopt()$$), '{"operator outbox_adopt {\"keep_identity\": false}"}', 'outbox_adopt');
SELECT is(recorded($$SELECT outbox_pause('s', 'a test'), outbox_pause('s', 'a test'), outbox_resume('s')$$),
	'{"operator outbox_pause s {\"state\": \"paused\", \"reason\": \"a test\"}", operator outbox_pause s,
	"operator outbox_resume s {\"state\": \"active\", \"reason\": \"none\"}"}', 'each record has the changes of its own call');
SELECT matches(recorded($$SELECT outbox_unsubscribe('s')$$)::text, '^{"operator outbox_unsubscribe s {\\"url\\": \\"http://c.example\\",',
	'outbox_unsubscribe, with what there was');
SELECT is(recorded($$SELECT outbox_topic('t', description => 'd')$$),
	'{"operator outbox_topic t {\"schema\": false, \"description\": \"d\"}"}', 'outbox_topic');
SELECT is(recorded($$SELECT outbox_topic('t', description => 'd')$$), '{}', 'unless it is registered again as it is');
SELECT is(recorded($$SELECT outbox_drop_topic('t')$$), '{operator outbox_drop_topic t}', 'outbox_drop_topic');
SELECT is(recorded($$SELECT outbox_drop_topic('t')$$), '{}', 'unless it is not there');
SELECT is(recorded($$SELECT idem_erase('k', 'sc'), outbox_erase('k')$$, 'admin'),
	'{"admin idem_erase k {\"known\": false, \"scope\": \"sc\"}","admin outbox_erase k {\"events\": 0, \"topics\": [\"*\"]}"}', 'idem_erase and outbox_erase');
SELECT idem_claim('k' || i, scope => 'sc') FROM generate_series(1, 1200) i;
SELECT is(recorded($$SELECT idem_forget('k1', 'sc')$$),
	'{"operator idem_forget k1 {\"known\": true, \"scope\": \"sc\"}"}', 'idem_forget');
SELECT is(recorded($$SELECT idem_forget('k1', 'sc')$$), '{}', 'unless the key is not known');
SAVEPOINT before_many;
SELECT is((recorded($$SELECT idem_forget('k' || i, 'sc') FROM generate_series(2, 1100) i$$))[99:],
	'{"operator idem_forget k100 {\"known\": true, \"scope\": \"sc\"}",
	"operator idem_forget k101 {\"known\": true, \"scope\": \"sc\"}",
	"operator idem_forget k1001 {\"calls\": 1000, \"known\": true, \"scope\": \"sc\"}"}', 'of many keys, the first 100, and then some with their numbers');
ROLLBACK TO before_many;
SELECT is(recorded($$SELECT idem_forget('k9', 'sc')$$),
	'{"operator idem_forget k9 {\"known\": true, \"scope\": \"sc\"}"}', 'what was rolled back does not count');
SELECT is(recorded($$SELECT idem_fence('sc')$$), '{operator idem_fence sc}', 'idem_fence');
SELECT is(recorded($$SELECT idem_import('{"scope": "moved", "last_token": 1}')$$, 'admin'), '{admin idem_import moved}', 'idem_import, once for each scope');
SELECT is(recorded($$SELECT idem_import('{"scope": "moved", "key": "k", "token": 1, "attempt": 1, "state": "completed", "expires_at": "2999-01-01"}')$$, 'admin'), '{}',
	'and not for each key');
SELECT is(recorded($$SELECT idem_unfence('sc')$$), '{operator idem_unfence sc}', 'idem_unfence');
SELECT is(recorded('SELECT idempotency_stats_reset()'), '{operator idempotency_stats_reset}', 'idempotency_stats_reset');
SELECT is(recorded('SELECT idempotency_repair()', 'admin'), '{admin idempotency_repair}', 'idempotency_repair');
SELECT is(recorded('SELECT idempotency_grant(''somebody'')', 'admin'), '{admin idempotency_grant somebody}', 'idempotency_grant');
SELECT is(recorded('SELECT idempotency_grant_reader(''somebody'')', 'admin'), '{admin idempotency_grant_reader somebody}', 'idempotency_grant_reader');
SELECT is(recorded('SELECT idempotency_grant_operator(''somebody'')', 'admin'), '{admin idempotency_grant_operator somebody}', 'idempotency_grant_operator');
SELECT is(recorded('SELECT idempotency_grant_admin(''somebody'')', 'admin'), '{admin idempotency_grant_admin somebody}', 'idempotency_grant_admin');

-- All functions but those that read, and those of applications and readers, of
-- which stock has its own log.
SELECT set_eq($$
	SELECT DISTINCT p.proname::text FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE e.extname = 'idempotency' AND p.pronamespace = 'public'::regnamespace
		AND p.proname NOT IN (SELECT action FROM idempotency_audit)
$$, '{idem_claim,idem_claim_many,idem_complete,idem_fail,idem_renew,idem_wait,idem_export,
	outbox_enqueue,outbox_cancel,outbox_event_id,outbox_fetch,outbox_ack,outbox_wait,
	outbox_dead_page,outbox_topic_matches,outbox_secret_generate,outbox_signature,outbox_key_generate,outbox_public_key,
	stock_reserve,stock_reserve_many,stock_change_many,stock_confirm,stock_cancel,stock_extend,
	stock_reinstate,stock_reservation_status,stock_position,stock_level,stock_receive,stock_adjust,stock_transfer,
	stock_backorder,stock_verify,idempotency_status}'::text[], 'no other function changes how something is run');

-- External DML.  Each has the whole diff, and not only the first of a transaction.
SELECT outbox_subscribe('x', NULL);
SELECT is(recorded($$UPDATE outbox_subscription SET topics = '{c}', version = version + 1 WHERE name = 'x'$$, 'none'),
	ARRAY[session_user || ' UPDATE x {"topics": ["c"]}'], 'UPDATE by the owner');
SELECT is(recorded($$UPDATE outbox_subscription SET max_in_flight = 2 WHERE name = 'x'$$, 'none'),
	ARRAY[session_user || ' UPDATE x {"max_in_flight": 2}'], 'again');
SELECT is(recorded($$SELECT outbox_pause('x', 'r'); UPDATE outbox_subscription SET max_in_flight = 3 WHERE name = 'x'$$, 'none'),
	ARRAY[session_user || ' outbox_pause x {"state": "paused", "reason": "r"}', session_user || ' UPDATE x {"max_in_flight": 3}'],
	'also after a function in the same transaction');
SELECT is(recorded($$UPDATE outbox_subscription SET failing_since = now(), recovered_at = now(), version = 0 WHERE name = 'x'$$, 'none'), '{}',
	'but not of what relays record');
SELECT is(recorded($$DELETE FROM outbox_subscription WHERE name = 'x'$$, 'none'),
	ARRAY[session_user || ' DELETE x {"name": "x", "batch": 1, "state": "paused", "format": "standard", "reason": "r", "topics": ["c"], "ordered": true, "timeout": "00:00:15", "priority": 1, "partitions": 1, "max_in_flight": 3, "retry_schedule": ["00:00:00", "00:00:05", "00:05:00", "00:30:00", "02:00:00", "05:00:00", "10:00:00", "14:00:00", "20:00:00", "24:00:00"]}'], 'DELETE');
SELECT is(recorded($$INSERT INTO outbox_subscription (name, topics, format, ordered, max_in_flight, timeout, retry_schedule, partitions)
	VALUES ('x', '{t}', 'standard', true, 1, '1 s', '{0 s}', 1)$$, 'none'),
	'{}', 'but not an INSERT, as a restore makes');
SELECT is(recorded('TRUNCATE outbox_subscription', 'none'), ARRAY[session_user || ' TRUNCATE'], 'TRUNCATE');

-- The view shows the last change of settings, not the last call.
SELECT outbox_subscribe('y', NULL);
SELECT recorded($$SELECT outbox_alter('y', max_in_flight => 9)$$);
SELECT recorded($$SELECT outbox_retry('y')$$, 'admin');
SELECT results_eq($$SELECT changed_by, changed_at FROM outbox_subscriptions WHERE name = 'y'$$,
	$$SELECT role, at FROM idempotency_audit WHERE action = 'outbox_alter' AND object = 'y'$$, 'outbox_subscriptions shows who has changed it, and when');

-- A rollback takes the record back.
SAVEPOINT before;
SELECT idem_fence('gone');
ROLLBACK TO before;
SELECT is_empty($$SELECT FROM idempotency_audit WHERE object = 'gone'$$, 'what is rolled back is not recorded');

-- The session user is recorded too.
SELECT is_empty($$SELECT FROM idempotency_audit WHERE session_role <> session_user$$, 'with the role that has logged in');

-- Secrets were planted above.
SELECT ok(bool_and(a::text !~ 'planted|cGxhbnRlZC1z|whs[ek]|amount'), 'no record has a secret, the value of a header, or a filter')
FROM idempotency_audit_record a;

-- Who may read, and write.
SET ROLE operator;
SELECT lives_ok('SELECT * FROM idempotency_audit', 'an operator reads it');
SELECT throws_ok($$INSERT INTO idempotency_audit (action) VALUES ('none')$$, '42501', NULL, 'and writes nothing');
SELECT throws_ok($$DELETE FROM idempotency_audit$$, '42501', NULL, 'and deletes nothing');
SET ROLE admin;
SELECT throws_ok($$DELETE FROM idempotency_audit$$, '42501', NULL, 'nor does an administrator');
SELECT throws_ok($$SELECT idempotency_internal.idempotency_record('none')$$, '42501', NULL, 'who adds no record');
SELECT throws_ok($$SELECT idempotency_internal.idempotency_record_grant('idempotency_grant', 'operator')$$, '42501', NULL, 'also not of a grant');
SELECT throws_ok($$SELECT idempotency_internal.idem_record('idem_forget', 'k', '', true, 0)$$, '42501', NULL, 'nor of a key');
RESET ROLE;

-- Old records are deleted, at most so many at a time, and found by an index.
DELETE FROM idempotency_audit_record;
INSERT INTO idempotency_audit_record (at, role, session_role, action, alters)
SELECT now() - interval '366 days' - n * interval '1 s', 'r', 'r', 'a', false
FROM generate_series(1, 10) n;
INSERT INTO idempotency_audit_record (at, role, session_role, action, alters)
VALUES (now() - interval '365 days', 'r', 'r', 'kept', false);
SELECT is(idempotency_expire_audit(4), true, 'a step deletes some');
SELECT is(count(*), 7::bigint, 'no more than it may') FROM idempotency_audit;
SELECT is(idempotency_expire_audit(7), false, 'another one deletes the others');
SELECT results_eq('SELECT action FROM idempotency_audit', '{kept}'::text[], 'that are old enough');
SELECT is(idempotency_expire_audit(4), false, 'then there is nothing to do');
SELECT throws_ok($$INSERT INTO idempotency_audit_record (at, role, session_role, action, alters)
	VALUES ('infinity', 'r', 'r', 'a', false)$$, '23514', NULL, 'a record has a time');
-- In a read-only transaction nothing is changed and nothing recorded.
SET TRANSACTION READ ONLY;
SELECT lives_ok('SELECT idempotency_stats_reset()', 'counters are reset in a read-only transaction');
SELECT lives_ok('SELECT idempotency_repair()', 'and nothing is repaired');
SELECT * FROM finish();
ROLLBACK;
SELECT idem_unfence('moved');
