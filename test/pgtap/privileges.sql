-- Who may do what.  If this fails, somebody can do what was not given to him,
-- or an application cannot do its work.
BEGIN;
SELECT plan(17);

CREATE VIEW member AS
SELECT d.classid, d.objid FROM pg_depend d
JOIN pg_extension e ON e.oid = d.refobjid
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	AND e.extname = 'idempotency';
CREATE ROLE shop_app;
CREATE ROLE stranger;
CREATE ROLE watcher;
GRANT pg_monitor TO watcher;

-- Nothing for PUBLIC.
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE has_function_privilege('stranger', p.oid, 'EXECUTE')
$$, 'a stranger may call no function');
SELECT is_empty($$
	SELECT c.oid::regclass FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	WHERE c.relkind IN ('r', 'v')
		AND has_table_privilege('stranger', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
$$, 'a stranger may read and write no table');
SELECT is_empty($$
	SELECT c.oid::regclass FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	WHERE CASE WHEN c.relkind = 'S'
		THEN has_sequence_privilege('stranger', c.oid, 'SELECT, USAGE, UPDATE') END
$$, 'a stranger may use no sequence');

-- What an application gets, and no more.
SELECT idempotency_grant('shop_app');
SELECT set_eq($$
	SELECT p.proname::text FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE has_function_privilege('shop_app', p.oid, 'EXECUTE')
$$, ARRAY['idem_claim', 'idem_claim_many', 'idem_complete', 'idem_fail', 'idem_renew',
	'outbox_enqueue', 'stock_lines', 'stock_reserve', 'stock_confirm',
	'stock_cancel', 'stock_extend', 'stock_reinstate', 'stock_level'],
	'an application may claim, enqueue and reserve');
SELECT is_empty($$
	SELECT c.oid::regclass FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	WHERE c.relkind IN ('r', 'v')
		AND has_table_privilege('shop_app', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
$$, 'an application may read and write no table itself');

SET ROLE shop_app;
SELECT lives_ok($$ SELECT idem_complete('k', token, '1') FROM idem_claim('k') $$,
	'an application claims');
SELECT lives_ok($$ SELECT * FROM idem_claim_many('{k1,k2}') $$, 'an application claims a batch');
SELECT throws_ok($$ SELECT * FROM idem_stats $$, '42501', NULL, 'an application does not read the statistics');
SELECT lives_ok($$ SELECT outbox_enqueue('t', '{}') $$, 'an application enqueues');
SELECT lives_ok($$ SELECT stock_reserve(stock_lines('{"none": 1}'), 'r') $$,
	'an application reserves');
SELECT throws_ok($$ SELECT outbox_subscribe('x', 'http://example.com/') $$, '42501',
	NULL, 'an application does not subscribe');
SELECT throws_ok($$ SELECT secret FROM outbox_subscription $$, '42501',
	NULL, 'an application does not read secrets');
RESET ROLE;

-- Monitoring.
SET ROLE watcher;
SELECT lives_ok($$ SELECT * FROM idem_stats, outbox_subscriptions, outbox_dead, stock_levels $$,
	'pg_monitor reads the views');
SELECT throws_ok($$ SELECT * FROM outbox_subscription $$, '42501',
	NULL, 'pg_monitor does not read secrets');
SELECT throws_ok($$ SELECT * FROM idem_key $$, '42501',
	NULL, 'nor keys');
RESET ROLE;

-- What runs with the owner's rights looks up nothing by the caller's path.
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM member m
	JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE p.prosecdef
		AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
$$, 'every function with the owner''s rights has a fixed search_path');
SELECT is_empty($$
	SELECT a.attname FROM member m
	JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relkind = 'v' AND a.attname IN ('secret', 'old_secret', 'url', 'payload', 'headers', 'answer')
		AND has_table_privilege('pg_monitor', c.oid, 'SELECT')
$$, 'no view for pg_monitor shows secrets or payloads');

SELECT * FROM finish();
ROLLBACK;
