-- Privileges: internal objects are only for the owner; application, operator
-- and monitoring can do their work.  If this fails, a role can do what was not
-- granted to it, or one of these roles cannot do its work.  public_api.sql
-- lists the roles of each public object.
BEGIN;
SELECT plan(104);

CREATE VIEW member AS
SELECT d.classid, d.objid FROM pg_depend d
JOIN pg_extension e ON e.oid = d.refobjid
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	AND e.extname = 'idempotency';
CREATE ROLE application;
CREATE ROLE operator;
CREATE ROLE reader;
CREATE ROLE stranger;
CREATE ROLE watcher;
GRANT pg_monitor TO watcher;
SELECT idempotency_grant('application');
SELECT idempotency_grant_operator('operator');
SELECT idempotency_grant_reader('reader');

-- Each internal object, each role, and each privilege that the role has on it;
-- public_api.sql has the public objects.
CREATE VIEW privilege AS
WITH role (role) AS (VALUES ('application'), ('operator'), ('reader'), ('stranger'), ('watcher')),
relation_privilege (privilege) AS (VALUES ('SELECT'), ('INSERT'), ('UPDATE'),
	('DELETE'), ('TRUNCATE'), ('REFERENCES'), ('TRIGGER')),
column_privilege (privilege) AS (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('REFERENCES')),
sequence_privilege (privilege) AS (VALUES ('SELECT'), ('UPDATE'), ('USAGE'))
SELECT 'function ' || p.oid::regprocedure AS object, role,
	CASE
		WHEN has_function_privilege(role, p.oid, 'EXECUTE WITH GRANT OPTION')
			THEN 'EXECUTE WITH GRANT OPTION'
		WHEN has_function_privilege(role, p.oid, 'EXECUTE') THEN 'EXECUTE'
	END AS privilege
FROM member m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass, role
WHERE p.pronamespace = 'idempotency_internal'::regnamespace
UNION ALL
SELECT CASE c.relkind WHEN 'r' THEN 'table ' WHEN 'v' THEN 'view '
	ELSE c.relkind::text || ' ' END || c.relname, role,
	CASE
		WHEN has_table_privilege(role, c.oid, privilege || ' WITH GRANT OPTION')
			THEN privilege || ' WITH GRANT OPTION'
		WHEN has_table_privilege(role, c.oid, privilege) THEN privilege
		WHEN privilege IN (TABLE column_privilege)
			AND has_any_column_privilege(role, c.oid, privilege)
			THEN privilege || ' of columns' END
FROM member m
JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	AND c.relkind <> 'S',
	role, relation_privilege
WHERE c.relnamespace = 'idempotency_internal'::regnamespace
UNION ALL
SELECT 'sequence ' || c.relname, role,
	CASE WHEN has_sequence_privilege(role, c.oid, privilege) THEN privilege END
FROM member m
JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	AND c.relkind = 'S',
	role, sequence_privilege
WHERE c.relnamespace = 'idempotency_internal'::regnamespace
UNION ALL
SELECT format('%s (class %s)', m.objid, m.classid::regclass), role,
	'to be decided' FROM member m, role
WHERE m.classid NOT IN ('pg_proc'::regclass, 'pg_class'::regclass,
	'pg_type'::regclass, 'pg_namespace'::regclass);

SELECT set_eq($$
	SELECT format('%s: %s', object,
		string_agg(role || ' ' || privilege, ', ' ORDER BY role, privilege))
	FROM privilege WHERE privilege IS NOT NULL GROUP BY object
$$, string_to_array($list$function idem_counters(): operator EXECUTE, watcher EXECUTE
function idem_evicted(): operator EXECUTE, watcher EXECUTE
function idem_sample(smallint,integer): operator EXECUTE, watcher EXECUTE
function idempotency_counted_since(): operator EXECUTE, watcher EXECUTE
function idempotency_workers(): operator EXECUTE, watcher EXECUTE
function outbox_flights(): operator EXECUTE, watcher EXECUTE
function outbox_latencies(): operator EXECUTE, watcher EXECUTE
function outbox_rate(double precision,timestamp with time zone,bigint): operator EXECUTE, watcher EXECUTE
function outbox_rate_limited(): operator EXECUTE, watcher EXECUTE
function outbox_shares(): operator EXECUTE, watcher EXECUTE
function outbox_traffic(): operator EXECUTE, watcher EXECUTE
function outbox_troubles(): operator EXECUTE, watcher EXECUTE
function stock_counts(): operator EXECUTE, watcher EXECUTE
function stock_numbers(): operator EXECUTE, watcher EXECUTE
sequence idem_token_seq: application SELECT
sequence outbox_position_seq: application SELECT
sequence outbox_subscription_id_seq: application SELECT
sequence stock_log_id_seq: application SELECT$list$, E'\n'),
	'of what is internal, nobody has anything but what views and pg_dump need');
SELECT cmp_ok((SELECT count(DISTINCT object) FROM privilege), '>', 100::bigint,
	'and all of it was asked about');
SELECT is_empty($$
	SELECT role, privilege
	FROM unnest('{public,application,reader,operator,pg_monitor}'::text[]) role, unnest('{USAGE,CREATE}'::text[]) privilege
	WHERE has_schema_privilege(role, 'idempotency_internal', privilege)
		AND (role, privilege) <> ('application', 'USAGE')
$$, 'and only the application may name it, and nobody may put anything beside it');
SELECT is_empty($$
	SELECT p.oid::regprocedure::text FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE p.proowner <> (SELECT extowner FROM pg_extension WHERE extname = 'idempotency')
	UNION ALL
	SELECT c.relname FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	WHERE c.relowner <> (SELECT extowner FROM pg_extension WHERE extname = 'idempotency')
$$, 'the owner of the extension owns all of it');

-- The application can do its work, and nothing else.
SET ROLE application;
SELECT lives_ok(
	$$ SELECT idem_complete('k', token, '1') FROM idem_claim('k') $$,
	'an application claims');
SELECT lives_ok($$ SELECT * FROM idem_claim_many('{k1,k2}') $$,
	'an application claims a batch');
SELECT lives_ok($$ SELECT idem_fail('l', token)
	FROM idem_claim('l', lease => '1 min') $$,
	'an application gives a claim up');
SELECT lives_ok($$ SELECT outbox_enqueue('t', '{}') $$,
	'an application enqueues');
SELECT lives_ok($$ SELECT stock_reserve('none', 1, 'r'),
	stock_reserve_many('{"none": 1}', 'r'), stock_reservation_status('r'),
	stock_confirm('r'), stock_cancel('r'), stock_extend('r'),
	stock_change_many('r', '{"none": 1}'), stock_reinstate('r'),
	stock_level('none'), stock_position('r') $$, 'an application reserves');
SELECT lives_ok($$ SELECT outbox_cancel(outbox_enqueue('t', '{}',
		dedup_key => 'd', replace => n > 0, deliver_at => now() + interval '1 h'))
	FROM generate_series(0, 1) n $$, 'an application replaces and cancels');
SELECT lives_ok($$ SELECT outbox_event_id(1) $$,
	'an application asks for the id of an event');
SELECT lives_ok($$ SELECT * FROM stock_levels $$,
	'an application sees what is available');
SELECT lives_ok($$ SELECT * FROM outbox_topics $$, 'and what is announced');
SELECT throws_ok($$ SELECT outbox_topic('t') $$, '42501', NULL, 'but announces nothing');
SELECT throws_ok($$ SELECT outbox_drop_topic('t') $$, '42501', NULL, 'or takes it back');
SELECT throws_ok($$ SELECT * FROM idem_stats $$, '42501', NULL,
	'an application does not read the statistics');
SELECT throws_ok($$ SELECT outbox_subscribe('x', 'http://example.com/') $$,
	'42501', NULL, 'an application does not subscribe');
SELECT throws_ok($$ SELECT outbox_retry('x') $$, '42501', NULL, 'or hurry');
SELECT throws_ok($$ SELECT outbox_ping('x') $$, '42501', NULL, 'or ping');
SELECT throws_ok($$ SELECT stock_transfer('a', 'b', 1) $$, '42501', NULL,
	'an application moves no stock');
SELECT throws_ok($$ SELECT * FROM idempotency_status() $$, '42501', NULL,
	'an application does not read the status');
SELECT throws_ok($$ SELECT idempotency_repair() $$, '42501', NULL,
	'an application repairs nothing');
SELECT throws_ok($$ SELECT * FROM outbox_fetch('x') $$, '42501', NULL,
	'an application reads no events');
RESET ROLE;
SELECT outbox_subscribe('read', NULL);
SET ROLE reader;
SELECT lives_ok($$ SELECT outbox_ack('read', token) FROM outbox_fetch('read') $$,
	'a reader reads events');
SELECT throws_ok($$ SELECT outbox_enqueue('t', '{}') $$, '42501', NULL,
	'and enqueues none');
SELECT throws_ok($$ SELECT outbox_replay('read', 1) $$, '42501', NULL,
	'or reads them again');
SET ROLE application;
SELECT throws_ok($$ SELECT idempotency_grant('stranger') $$, '42501', NULL,
	'an application gives nothing away');
SELECT throws_ok($$ SELECT idempotency_grant_admin('application') $$, '42501',
	NULL, 'and does not raise itself');
SELECT throws_ok(
	$$ SELECT secret FROM idempotency_internal.outbox_subscription $$, '42501',
	NULL, 'an application does not read secrets');
RESET ROLE;


-- It may read our sequences, for pg_dump, and no more.
SET ROLE application;
SELECT lives_ok($$ SELECT last_value FROM idempotency_internal.outbox_position_seq $$,
	'an application reads a sequence, as pg_dump does');
SELECT throws_ok($$ SELECT nextval('idempotency_internal.outbox_position_seq') $$, '42501', NULL,
	'but takes no number');
SELECT throws_ok($$ SELECT setval('idempotency_internal.idem_token_seq', 1) $$, '42501', NULL,
	'sets none');
SELECT throws_ok($$ LOCK TABLE idempotency_internal.outbox_position_seq IN ACCESS SHARE MODE $$, '42809', NULL,
	'and locks none');
SELECT throws_ok($$ LOCK TABLE idempotency_internal.outbox_log_0 IN ACCESS SHARE MODE $$, '42501', NULL,
	'or a table');
RESET ROLE;

-- Nor does it get to internal objects on which it had privileges by accident,
-- such as default privileges when 1.0.0 was created.
CREATE ROLE accident_table;
CREATE ROLE accident_function;
CREATE ROLE accident_sequence;
GRANT SELECT (secret) ON idempotency_internal.outbox_subscription TO accident_table;
GRANT EXECUTE ON FUNCTION idempotency_internal.outbox_retire() TO accident_function;
GRANT UPDATE ON SEQUENCE idempotency_internal.idem_token_seq TO accident_sequence;
SELECT idempotency_grant(r::regrole)
FROM unnest('{accident_table,accident_function,accident_sequence}'::text[]) r;
SELECT ok(NOT has_schema_privilege(r, 'idempotency_internal', 'USAGE')
	AND has_table_privilege(r, 'stock_levels', 'SELECT'),
	r || ': a role with privileges on internal objects does not get to them')
FROM unnest('{accident_table,accident_function,accident_sequence}'::text[]) r;

-- One that monitors as well has some, which harm nobody.
GRANT pg_monitor TO accident_table;
REVOKE SELECT (secret) ON idempotency_internal.outbox_subscription FROM accident_table;
SELECT idempotency_grant('accident_table');
SELECT ok(has_schema_privilege('accident_table', 'idempotency_internal', 'USAGE'),
	'a member of pg_monitor can dump');

-- The operator likewise.
SET ROLE operator;
SELECT lives_ok(
	$$ SELECT outbox_subscribe('s', 'http://example.com/',
		topics => '{none}') $$, 'an operator subscribes');
SELECT lives_ok($$ SELECT outbox_alter('s', timeout => '1 s'),
	outbox_rotate_secret('s'), outbox_rotate_key('s'), outbox_public_key('s'),
	outbox_redrive('s'), outbox_retry('s'),
	outbox_discard('s'), outbox_dead_page('s'), outbox_acknowledge_lost('s'),
	outbox_replay('s', 1), outbox_pause('s'), outbox_resume('s'),
	outbox_ping('s') $$,
	'an operator looks after a subscription');
SELECT lives_ok($$ SELECT outbox_adopt() $$, 'an operator adopts');
SELECT lives_ok($$ SELECT outbox_topic('t', description => 'd'), outbox_drop_topic('t') $$,
	'an operator registers topics');
SELECT lives_ok($$ SELECT outbox_unsubscribe('s') $$,
	'an operator ends a subscription');
SELECT lives_ok(
	$$ SELECT outbox_signature(outbox_secret_generate(), 'm', 1, '{}'),
	outbox_topic_matches('{*}', 't') $$,
	'an operator tries signatures and topics');
SELECT lives_ok($$ SELECT idem_forget('k') $$, 'an operator forgets a key');
SELECT lives_ok($$ SELECT stock_receive('hat', 2),
	stock_adjust('hat', -1, 'lost'), stock_transfer('hat', 'cap', 1),
	stock_level('hat'), stock_verify() $$,
	'an operator keeps the stock');
SELECT lives_ok($$ SELECT *
	FROM idem_stats, idem_keys, outbox_subscriptions, outbox_deliveries,
		outbox_dead, outbox_topics, stock_levels, stock_holds, stock_history,
		idempotency_segments, idempotency_workers, outbox_stats, outbox_latency,
		stock_stats $$,
	'an operator reads the views');
SELECT throws_ok(
	$$ SELECT secret FROM idempotency_internal.outbox_subscription $$, '42501',
	NULL, 'an operator does not read secrets');
SELECT throws_ok($$ SELECT payload FROM outbox_log $$, '42501', NULL,
	'nor payloads');
SELECT throws_ok($$ SELECT idem_claim('k') $$, '42501', NULL,
	'and does not do the work of applications');
SELECT lives_ok($$ SELECT * FROM idempotency_status() $$,
	'an operator reads the status');
SELECT lives_ok($$ SELECT idempotency_stats_reset() $$,
	'an operator resets the statistics');
SELECT throws_ok($$ SELECT idempotency_repair() $$, '42501', NULL,
	'an operator repairs nothing');
SELECT throws_ok($$ SELECT idempotency_grant_admin('operator') $$, '42501',
	NULL, 'and does not raise itself');
RESET ROLE;

-- Monitoring.
SET ROLE watcher;
SELECT lives_ok($$ SELECT *
	FROM idem_stats, idem_keys, outbox_subscriptions, outbox_deliveries,
		outbox_dead, outbox_topics, stock_levels, stock_holds, idempotency_segments,
		idempotency_workers, outbox_stats, outbox_latency, stock_stats $$,
	'pg_monitor reads the views');
SELECT lives_ok($$ SELECT * FROM idempotency_status() $$, 'and the status');
SELECT throws_ok($$ SELECT * FROM idempotency_internal.outbox_subscription $$,
	'42501', NULL, 'pg_monitor does not read secrets');
SELECT throws_ok($$ SELECT * FROM idem_key $$, '42501', NULL,
	'nor saved answers');
SELECT throws_ok($$ SELECT * FROM stock_history $$, '42501', NULL, 'nor notes');
RESET ROLE;

-- A condition that records the rows that it is evaluated on, and is so cheap
-- that it is evaluated before the view's own.
SELECT outbox_subscribe('seen', 'http://example.com/', topics => '{none}');
INSERT INTO outbox_delivery (subscription, position, partition, state, blocks_key,
	attempts, due_at, created_at, topic, key, payload)
SELECT s.id, v.position, 0, v.state, false, 1,
	CASE v.state WHEN 'waiting' THEN now() END, now(), v.topic, v.topic, '{}'
FROM outbox_subscription s,
	(VALUES (1, 'dead', 'dead'), (2, 'waiting', 'hidden'),
		(3, 'parked', 'hidden')) v (position, state, topic)
WHERE s.name = 'seen';
CREATE FUNCTION leak(value anyelement) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE COST 0.0001
AS $$
BEGIN
	PERFORM set_config('leak.seen', current_setting('leak.seen') || ' ' || value, true);
	RETURN true;
END
$$;
GRANT EXECUTE ON FUNCTION leak(anyelement) TO watcher;
SET leak.seen = '';
SET LOCAL enable_indexscan = off;
SET LOCAL enable_bitmapscan = off;
SET ROLE watcher;
SELECT is((SELECT count(*) FROM outbox_dead
	WHERE leak(topic) AND leak(position)), 1::bigint, 'pg_monitor asks about dead letters');
SELECT is(current_setting('leak.seen'), ' dead 1', 'and what it asks with sees no others');
RESET ROLE;
RESET enable_indexscan;
RESET enable_bitmapscan;

SELECT idem_claim('forgotten'), idem_claim('known');
UPDATE idempotency_internal.idem_key_0
SET expires_at = '-infinity' WHERE key = 'forgotten';
SET leak.seen = '';
SET ROLE watcher;
SELECT is((SELECT count(*) FROM idem_keys WHERE leak(key)),
	(SELECT count(*) FROM idem_keys), 'pg_monitor asks about keys');
RESET ROLE;
SELECT ok(current_setting('leak.seen') ~ ' known'
	AND current_setting('leak.seen') !~ 'forgotten',
	'and the condition sees no expired ones');

-- Conditions on name or position pass the barrier, down to an index.
CREATE FUNCTION plan_of(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
	plan text := '';
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS off) ' || query LOOP
		plan := plan || line || E'\n';
	END LOOP;
	RETURN plan;
END
$$;
SET LOCAL enable_seqscan = off;
SELECT matches(
	plan_of($$ SELECT * FROM outbox_dead
		WHERE subscription = 'seen' AND position = 1 $$),
	'"position" = 1.*Index Cond: \(name = ', 'dead letters are looked up by subscription and position');
SELECT matches(
	plan_of($$ SELECT * FROM idem_keys WHERE key = 'k' AND scope = '' $$),
	'(Index Cond: \(\(key = .*){3}', 'a key by its name');
SELECT matches(plan_of($$ SELECT * FROM outbox_subscriptions WHERE name = 'seen' $$),
	'Index Cond: \(name = ', 'and a subscription by its name');
RESET enable_seqscan;

-- Granting privileges.
SELECT throws_ok($$ SELECT idempotency_grant(NULL) $$, '22004', 'role must not be null', 'no role');
SELECT throws_ok($$ SELECT idempotency_grant_operator(NULL) $$, '22004',
	'role must not be null', 'no operator');
SELECT throws_ok($$ SELECT idempotency_grant_admin(NULL) $$, '22004',
	'role must not be null', 'no admin');
SELECT throws_ok($$ SELECT idempotency_grant('nobody') $$, '42704',
	'role "nobody" does not exist', 'an unknown role');
SELECT throws_ok($$ SELECT idempotency_grant(0) $$, '42704',
	'role - does not exist', 'what is no role');
SELECT throws_ok($$ SELECT idempotency_grant('public') $$, '42704',
	'role "public" does not exist', 'nothing is given to all at once');
CREATE ROLE "Ro'le "" x";
CREATE ROLE "current_user";
CREATE ROLE crew;
CREATE ROLE hand IN ROLE crew;
SELECT idempotency_grant('"Ro''le "" x"'), idempotency_grant('"current_user"'),
	idempotency_grant('crew'), idempotency_grant('crew');
SELECT ok(
	has_function_privilege('Ro''le " x',
		'idem_claim(text,text,interval,text,interval,boolean)', 'EXECUTE'), 'a role with an odd name');
SELECT ok(has_function_privilege('"current_user"'::regrole, 'idem_claim(text,text,interval,text,interval,boolean)', 'EXECUTE')
	AND NOT has_function_privilege('stranger', 'idem_claim(text,text,interval,text,interval,boolean)', 'EXECUTE'),
	'one that is called like a keyword');
SET ROLE hand;
SELECT lives_ok($$ SELECT idem_claim('of a hand') $$,
	'what a group was given, a member can do');
SELECT throws_ok($$ SELECT idempotency_grant('stranger') $$, '42501', NULL,
	'but not give away');
RESET ROLE;
GRANT EXECUTE ON FUNCTION idempotency_grant(regrole),
	idempotency_enter(), idempotency_raise(text, text, text),
	idempotency_grant_names(regrole, text[], text[], text[], boolean) TO crew;
GRANT USAGE ON SCHEMA idempotency_internal TO crew WITH GRANT OPTION;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA idempotency_internal TO crew WITH GRANT OPTION;
SET ROLE hand;
SELECT throws_ok($$ SELECT idempotency_grant('stranger') $$, '42501',
	'permission denied to grant EXECUTE ON ROUTINE public.idem_claim(text,text,interval,text,interval,boolean)',
	'nor if it may call the function that gives');
RESET ROLE;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO crew WITH GRANT OPTION;
GRANT SELECT ON outbox_topics TO crew WITH GRANT OPTION;
SET ROLE crew;
SELECT throws_ok($$ SELECT idempotency_grant('stranger') $$, '42501', 'permission denied to grant SELECT ON public.stock_levels',
	'nor if a view is all that is missing');
RESET ROLE;
GRANT SELECT ON stock_levels TO crew WITH GRANT OPTION;
SET ROLE crew;
SELECT lives_ok($$ SELECT idempotency_grant('stranger') $$,
	'who may give what he was given, may do it by the function');
RESET ROLE;
SELECT ok(
	has_function_privilege('stranger',
		'outbox_enqueue(text,jsonb,text,text,jsonb,timestamptz,timestamptz,text,interval,boolean)', 'EXECUTE'), 'and that is what happens');

-- The admin has everything public and nothing else, even if other objects have
-- names of internal ones; and can grant it to others.
CREATE TABLE public.outbox_subscription (secret text);
CREATE FUNCTION public.stock_expire() RETURNS void LANGUAGE sql AS '';
CREATE ROLE admin;
CREATE ROLE admin_2;
CREATE ROLE application_2;
CREATE ROLE operator_2;
SELECT idempotency_grant_admin('admin');
SELECT is_empty($$
	SELECT m.objid::regprocedure::text FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE p.pronamespace = 'public'::regnamespace
		AND NOT has_function_privilege('admin', p.oid, 'EXECUTE WITH GRANT OPTION')
	UNION ALL
	SELECT c.relname FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	WHERE c.relnamespace = 'public'::regnamespace
		AND NOT has_table_privilege('admin', c.oid, 'SELECT WITH GRANT OPTION')
$$, 'an admin has all that is public');
SELECT set_eq($$
	SELECT p.proname::text FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE p.pronamespace = 'idempotency_internal'::regnamespace
		AND has_function_privilege('admin', p.oid, 'EXECUTE')
	UNION ALL
	SELECT c.relname FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	WHERE c.relnamespace = 'idempotency_internal'::regnamespace AND c.relkind <> 'S'
		AND (has_any_column_privilege('admin', c.oid, 'SELECT, INSERT, UPDATE')
		OR has_table_privilege('admin', c.oid, 'DELETE, TRUNCATE, TRIGGER'))
$$, '{idem_counters,idem_evicted,idem_sample,idempotency_counted_since,idempotency_enter,
	idempotency_grant_names,idempotency_raise,idempotency_workers,outbox_flights,outbox_latencies,
	outbox_rate,outbox_rate_limited,outbox_shares,outbox_traffic,outbox_troubles,
	stock_counts,stock_numbers}'::text[],
	'and of what is internal only what that calls');
DROP TABLE public.outbox_subscription;
DROP FUNCTION public.stock_expire();
SET ROLE admin;
SELECT lives_ok(
	$$ SELECT idem_complete('a', token, '1') FROM idem_claim('a') $$,
	'an admin claims');
SELECT lives_ok($$ SELECT idem_forget('a'), outbox_enqueue('t', '{}'),
	outbox_subscribe('a', 'https://example.com/', topics => '{none}') $$,
	'subscribes');
SELECT lives_ok($$ SELECT outbox_alter('a', timeout => '1 s'),
	outbox_retry('a'), outbox_unsubscribe('a') $$, 'looks after subscriptions');
SELECT lives_ok($$ SELECT stock_receive('hat', 2),
	stock_transfer('hat', 'cap', 1), stock_reserve('cap', 1, 'a'),
	stock_confirm('a') $$, 'keeps the stock');
SELECT lives_ok($$ SELECT (SELECT count(*) FROM idem_key),
	(SELECT count(*) FROM idem_stats), (SELECT count(*) FROM outbox_log),
	(SELECT count(*) FROM outbox_dead), (SELECT count(*) FROM outbox_attempts),
	(SELECT count(*) FROM outbox_subscriptions),
	(SELECT count(*) FROM stock_levels), (SELECT count(*) FROM stock_history),
	(SELECT count(*) FROM idempotency_workers),
	(SELECT count(*) FROM outbox_stats), (SELECT count(*) FROM outbox_latency),
	(SELECT count(*) FROM stock_stats),
	(SELECT count(*) FROM idempotency_status()) $$, 'reads all views');
SELECT lives_ok($$ SELECT idempotency_repair() $$, 'repairs');
SELECT throws_ok(
	$$ SELECT secret FROM idempotency_internal.outbox_subscription $$, '42501',
	NULL, 'but does not read secrets');
SELECT throws_ok($$ UPDATE idempotency_internal.stock_item SET received = 9 $$,
	'42501', NULL, 'or write tables');
SELECT throws_ok($$ SELECT idempotency_internal.stock_expire() $$, '42501',
	NULL, 'or do the work of workers');
SELECT lives_ok($$ SELECT idempotency_grant('application_2'),
	idempotency_grant_operator('operator_2'),
	idempotency_grant_admin('admin_2') $$, 'he gives it to others');
SET ROLE application_2;
SELECT lives_ok($$ SELECT idem_claim('b'), stock_reserve('cap', 1, 'b')
	FROM stock_levels $$, 'who can do their work');
SELECT throws_ok($$ SELECT idem_forget('b') $$, '42501', NULL, 'and no other');
SELECT throws_ok($$ SELECT idempotency_grant('stranger') $$, '42501', NULL,
	'nor give it away');
SET ROLE operator_2;
SELECT lives_ok($$ SELECT idem_forget('b'), stock_adjust('hat', 1, 'found')
	FROM outbox_subscriptions, idempotency_status() $$, 'likewise');
SET ROLE admin_2;
SELECT lives_ok($$ SELECT idempotency_grant_admin('stranger'),
	idempotency_grant('stranger'), idempotency_grant_operator('stranger') $$,
	'as an admin made by an admin does');
SET ROLE stranger;
SELECT lives_ok($$ SELECT idem_claim('c'), outbox_adopt() FROM idem_key $$,
	'and one made by that one');
RESET ROLE;
SELECT lives_ok($$ REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public
	FROM admin CASCADE $$, 'what was given can be taken back');
SET ROLE stranger;
SELECT throws_ok($$ SELECT outbox_adopt() $$, '42501', NULL,
	'from all who had it of him');
RESET ROLE;

-- Functions that run with the owner's privileges do not use the caller's
-- search_path.
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE p.prosecdef
		AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
$$, 'every function with the owner''s rights has a fixed search_path');
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	JOIN pg_language l ON l.oid = p.prolang
	WHERE l.lanname = 'plpgsql' AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
$$, 'and so has every other one in PL/pgSQL, since one of those may call it');
SELECT is_empty($$
	SELECT p.oid::regprocedure, wanted FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass,
	(SELECT name || '=off' FROM pg_settings WHERE name LIKE 'debug\_print\_%'
		UNION ALL VALUES ('client_min_messages=notice')) w (wanted)
	WHERE p.prosecdef AND wanted <> ALL (p.proconfig)
$$, 'every function with the owner''s rights sends and logs no plans');
SELECT is_empty($$
	SELECT a.attname FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relkind = 'v'
		AND a.attname IN ('secret', 'old_secret', 'signing_key', 'old_signing_key', 'url', 'payload', 'headers', 'answer',
			'request', 'response')
		AND (has_table_privilege('pg_monitor', c.oid, 'SELECT')
			OR has_table_privilege('operator', c.oid, 'SELECT'))
$$, 'no view for pg_monitor or for operators shows secrets or payloads');

SELECT * FROM finish();
ROLLBACK;
