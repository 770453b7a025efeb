-- Subscriptions are made, altered, paused, resumed and ended by name; every bad
-- argument is refused.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
\set url 'http://127.0.0.1:1/hook'

SELECT outbox_subscribe('s1', :'url', topics => '{nothing.*}') ~ '^whsec_[A-Za-z0-9+/]{43}=$' AS secret;
SELECT outbox_subscribe('s2', :'url', '{nothing.*,none}', 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
	headers => '{"Authorization": "Bearer x"}', format => 'cloudevents', ordered => false,
	max_in_flight => 1, timeout => '1 s', retry_schedule => '{0 s,1 s}',
	start => 'earliest', batch => 1000);
SELECT name, topics, format, ordered, max_in_flight, timeout, retry_schedule,
	batch, state, reason
FROM outbox_subscription ORDER BY name;

SELECT outbox_pause('s1', 'their maintenance');
SELECT name, state, reason FROM outbox_subscriptions ORDER BY name;
SELECT outbox_resume('s1');
SELECT name, state, reason FROM outbox_subscriptions ORDER BY name;
SELECT outbox_redrive('s1');
SELECT outbox_redrive('s1', '{1,2}');

-- A subscription can be altered without losing its position.
SELECT outbox_alter('s2', url => 'http://127.0.0.1:2/', headers => '{}',
	max_in_flight => 7, timeout => '2 s');
SELECT outbox_alter('s2', batch => 2);
SELECT outbox_alter('s2');
SELECT format, batch FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', topics => '{none}', format => 'standard',
	retry_schedule => '{0 s,2 s}', batch => 1);
SELECT outbox_alter('s2', topics => '[0:0]={none}', retry_schedule => '[0:1]={0 s,2 s}');
SELECT url, topics, headers, format, ordered, max_in_flight, timeout,
	retry_schedule, batch, secret, state
FROM outbox_subscription WHERE name = 's2';

-- Headers may be credentials: for another host they are dropped unless given
-- again.
BEGIN;
SELECT outbox_alter('s2', headers => '{"Authorization": "Bearer x"}');
SELECT outbox_alter('s2', url => 'http://127.0.0.1:2/other?path', topics => '{none}');
SELECT url, headers FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', url => 'http://127.0.0.1:3/', headers => '{"Authorization": "Bearer y"}');
SELECT url, headers FROM outbox_subscription WHERE name = 's2';
SET client_min_messages = notice;
SELECT outbox_alter('s2', url => 'https://127.0.0.1:3/');
SELECT url, headers, secret FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', url => 'https://127.0.0.1:4/');
-- A session that wants no notices gets none, but a function that wants some
-- does.
SET client_min_messages = warning;
SELECT outbox_alter('s2', headers => '{"X-Shop": "a"}');
SELECT outbox_alter('s2', url => 'https://127.0.0.1:5/');
SHOW client_min_messages;
CREATE FUNCTION pg_temp.noisy() RETURNS void LANGUAGE plpgsql
SET client_min_messages = notice AS $$
BEGIN
	PERFORM outbox_alter('s2', headers => '{"X-Shop": "a"}');
	PERFORM outbox_alter('s2', url => 'https://127.0.0.1:6/');
	PERFORM idempotency_grant_reader('pg_monitor');
	RAISE NOTICE 'it is %', current_setting('client_min_messages');
END
$$;
SELECT pg_temp.noisy();
SHOW client_min_messages;
RESET client_min_messages;
ROLLBACK;

-- The limit of the rate; infinity means none.
SELECT rate_limit FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', rate_limit => 2.5);
SELECT outbox_alter('s2', timeout => '2 s');
SELECT rate_limit FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', rate_limit => 'infinity');
SELECT rate_limit FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', rate_limit => 'infinity');
BEGIN;
SELECT count(outbox_subscribe('limit ' || rate_limit, :'url', topics => '{none}', rate_limit => rate_limit::numeric))
FROM unnest('{0.00001,1000000,1e-5,7,infinity}'::text[]) rate_limit;
SELECT name, rate_limit FROM outbox_subscription WHERE name LIKE 'limit %' ORDER BY name;
SELECT name, rate_limited FROM outbox_subscriptions ORDER BY name COLLATE "C";
UPDATE outbox_subscription SET rate_limit = 3 WHERE name = 'limit 7';
UPDATE outbox_subscription SET rate_limit = NULL WHERE name = 'limit 7';
ROLLBACK;

-- A filter; true means none.
SELECT outbox_alter('s2', filter => '$.amount > 100');
SELECT outbox_alter('s2', timeout => '2 s');
SELECT filter FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', filter => 'exists ($.items[*] ? (@.amount > 100))');
SELECT filter FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', filter => 'true');
SELECT filter FROM outbox_subscription WHERE name = 's2';
BEGIN;
SELECT count(outbox_subscribe('filter ' || n, :'url', topics => '{none}', filter => filter::jsonpath))
FROM unnest(ARRAY['$.n == 1', '$.vip', 'strict $.a starts with "b"', ' true ',
	'exists($ ? (@.x like_regex "^[" flag "q"))', '!($.a == null)']) WITH ORDINALITY AS f(filter, n);
SELECT name, filter FROM outbox_subscription WHERE name LIKE 'filter %' ORDER BY name;
SELECT name, filtered, filter_errors FROM outbox_subscriptions WHERE name LIKE 'filter %' ORDER BY name;
ROLLBACK;

-- The priority.
SELECT priority FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', priority => 4);
SELECT outbox_alter('s2', timeout => '2 s');
SELECT priority FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', priority => 1);
BEGIN;
SELECT count(outbox_subscribe('priority ' || p, :'url', topics => '{none}', priority => p)) FROM unnest('{1,100}'::int[]) p;
SELECT name, priority FROM outbox_subscription WHERE name LIKE 'priority %' ORDER BY name;
SELECT name, share FROM outbox_subscriptions WHERE share IS NOT NULL;
ROLLBACK;

-- The history of deliveries; 0 means none.
SELECT keep_deliveries FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', keep_deliveries => '7 days');
SELECT outbox_alter('s2', timeout => '2 s');
SELECT keep_deliveries FROM outbox_subscription WHERE name = 's2';
SELECT outbox_alter('s2', keep_deliveries => '0');
SELECT keep_deliveries FROM outbox_subscription WHERE name = 's2';
BEGIN;
SELECT count(outbox_subscribe('keep ' || keep, :'url', topics => '{none}', keep_deliveries => keep)) FROM unnest('{1 min,366 days,0}'::interval[]) keep;
SELECT name, keep_deliveries FROM outbox_subscription WHERE name LIKE 'keep %' ORDER BY name;
ROLLBACK;

-- Errors.
\set SHOW_CONTEXT never
SELECT outbox_subscribe('s3', :'url', keep_deliveries => '1 s');
SELECT outbox_subscribe('s3', NULL, keep_deliveries => '1 day');
SELECT outbox_subscribe('s3', :'url', priority => 0);
SELECT outbox_subscribe('s3', NULL, priority => 2);
SELECT outbox_subscribe('s3', :'url', rate_limit => 0);
SELECT outbox_subscribe('s1', :'url');
SELECT outbox_subscribe('s3', 'ftp://example.com/');
SELECT outbox_subscribe('s3', :'url', secret => 'open sesame');
SELECT outbox_subscribe(NULL, :'url');
SELECT outbox_subscribe('s3', :'url', format => 'cloudevents', batch => 1001);
SELECT outbox_subscribe('s3', :'url', batch => 2);
SELECT outbox_alter('s2', batch => 2);
SELECT outbox_subscribe('s3', :'url', filter => '$.items[*] ? (@.amount > 100)');
SELECT outbox_alter('s2', filter => '$ ? (@.amount > 100)');
SELECT outbox_pause('nobody');
\set VERBOSITY sqlstate
SELECT outbox_subscribe('', :'url');
SELECT outbox_subscribe(repeat('x', 256), :'url');
SELECT outbox_subscribe('s3', NULL, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
SELECT outbox_subscribe('s3', '');
SELECT outbox_subscribe('s3', 'http://user:password@example.com/');
SELECT outbox_subscribe('s3', :'url', topics => NULL);
SELECT outbox_subscribe('s3', :'url', topics => '{}');
SELECT outbox_subscribe('s3', :'url', topics => '{NULL}');
SELECT outbox_subscribe('s3', :'url', topics => array_fill('t'::text, '{101}'));
SELECT outbox_subscribe('s3', :'url', headers => '"x"');
SELECT outbox_subscribe('s3', :'url', format => 'xml');
SELECT outbox_subscribe('s3', :'url', format => NULL);
SELECT outbox_subscribe('s3', :'url', ordered => NULL);
SELECT outbox_subscribe('s3', :'url', max_in_flight => 0);
SELECT outbox_subscribe('s3', :'url', max_in_flight => -1);
SELECT outbox_subscribe('s3', :'url', max_in_flight => 257);
SELECT outbox_subscribe('s3', :'url', max_in_flight => NULL);
SELECT outbox_subscribe('s3', :'url', timeout => '0');
SELECT outbox_subscribe('s3', :'url', timeout => '-1 s');
SELECT outbox_subscribe('s3', :'url', timeout => '2 h');
SELECT outbox_subscribe('s3', :'url', timeout => NULL);
SELECT outbox_subscribe('s3', :'url', retry_schedule => NULL);
SELECT outbox_subscribe('s3', :'url', retry_schedule => '{}');
SELECT outbox_subscribe('s3', :'url', retry_schedule => '{-1 s}');
SELECT outbox_subscribe('s3', :'url', retry_schedule => '{10 years}');
SELECT outbox_subscribe('s3', :'url', retry_schedule => '{NULL}');
SELECT outbox_subscribe('s3', :'url', retry_schedule => '{1 s}');
SELECT outbox_subscribe('s3', :'url', retry_schedule => '{{5 s,1 s}}');
SELECT outbox_subscribe('s3', :'url', retry_schedule => '{{0 s,1 s}}');
SELECT outbox_subscribe('s3', :'url', retry_schedule => '[0:1]={1 s,0 s}');
SELECT outbox_subscribe('s3', :'url',
	retry_schedule => array_fill('0'::interval, '{101}'));
SELECT outbox_subscribe('s3', :'url', topics => '{{a,b}}');
SELECT outbox_subscribe('s3', :'url', topics => ARRAY['']);
SELECT outbox_subscribe('s3', :'url', topics => ARRAY[repeat('x', 256)]);
SELECT outbox_subscribe('s3', :'url', start => 'yesterday');
SELECT outbox_subscribe('s3', :'url', start => NULL);
SELECT outbox_subscribe('s3', :'url', partitions => 0);
SELECT outbox_subscribe('s3', :'url', partitions => 65);
SELECT outbox_subscribe('s3', :'url', partitions => NULL);
SELECT outbox_subscribe('s3', :'url', rate_limit => -1);
SELECT outbox_subscribe('s3', :'url', rate_limit => 'NaN');
SELECT outbox_subscribe('s3', :'url', rate_limit => '-infinity');
SELECT outbox_subscribe('s3', :'url', rate_limit => 0.0000099);
SELECT outbox_subscribe('s3', :'url', rate_limit => 1e-400);
SELECT outbox_subscribe('s3', :'url', rate_limit => 1000000.1);
SELECT outbox_subscribe('s3', :'url', rate_limit => 1e400);
SELECT outbox_alter('s2', rate_limit => 0);
SELECT outbox_alter('s2', rate_limit => -20);
SELECT outbox_alter('s2', rate_limit => 'NaN');
SELECT outbox_alter('s2', rate_limit => '-infinity');
SELECT outbox_alter('s2', rate_limit => 1e400);
UPDATE outbox_subscription SET rate_limit = 0 WHERE name = 's2';
SELECT outbox_subscribe('s3', :'url', priority => 101);
SELECT outbox_subscribe('s3', :'url', priority => -1);
SELECT outbox_subscribe('s3', :'url', priority => NULL);
SELECT outbox_alter('s2', priority => 0);
SELECT outbox_alter('s2', priority => 2147483647);
UPDATE outbox_subscription SET priority = 0 WHERE name = 's2';
SELECT outbox_subscribe('s3', :'url', keep_deliveries => '367 days');
SELECT outbox_subscribe('s3', :'url', keep_deliveries => '-1 day');
SELECT outbox_alter('s2', keep_deliveries => '59 s');
UPDATE outbox_subscription SET keep_deliveries = '0' WHERE name = 's2';
UPDATE outbox_subscription SET rate_limit = 'NaN' WHERE name = 's2';
UPDATE outbox_subscription SET rate_limit = 'infinity' WHERE name = 's2';
UPDATE outbox_subscription SET rate_limit = 1e400 WHERE name = 's2';
SELECT outbox_subscribe('s3', :'url', format => 'cloudevents', batch => 0);
SELECT outbox_subscribe('s3', :'url', format => 'cloudevents', batch => -1);
SELECT outbox_subscribe('s3', :'url', format => 'cloudevents', batch => NULL);
SELECT outbox_alter(NULL, url => :'url');
SELECT outbox_alter('nobody');
SELECT outbox_alter('s2', url => 'ftp://example.com/');
SELECT outbox_alter('s2', topics => '{}');
SELECT outbox_alter('s2', headers => '{"Host": "x"}');
SELECT outbox_alter('s2', format => 'xml');
SELECT outbox_alter('s2', max_in_flight => 0);
SELECT outbox_alter('s2', timeout => '-1 s');
SELECT outbox_alter('s2', batch => 0);
SELECT outbox_alter('s2', format => 'cloudevents', batch => 1001);
SELECT outbox_alter('s2', retry_schedule => '{1 s}');
SELECT outbox_alter('s2', retry_schedule => '{{5 s,1 s}}');
SELECT url, topics, format, max_in_flight, batch FROM outbox_subscription
WHERE name = 's2';
SELECT outbox_subscribe('s3', :'url', filter => '$.amount >');
SELECT outbox_subscribe('s3', :'url', filter => '$.a like_regex "("');
SELECT outbox_alter('s2', filter => '');
SELECT outbox_alter('s2', filter => ('$.a == "' || repeat('x', 9000) || '"')::jsonpath);
-- The same for the owner who changes the row.
UPDATE outbox_subscription SET filter = '$ ? (@.amount > 100)' WHERE name = 's2';
UPDATE outbox_subscription SET batch = 2 WHERE name = 's2';
UPDATE outbox_subscription SET format = 'cloudevents', batch = 1001 WHERE name = 's2';
BEGIN;
UPDATE outbox_subscription SET format = 'cloudevents', batch = 1000 WHERE name = 's2';
UPDATE outbox_subscription SET format = 'standard' WHERE name = 's2';
ROLLBACK;
SELECT outbox_unsubscribe(NULL);
SELECT outbox_unsubscribe('nobody');
-- A name that no index can have.
SELECT string_agg(md5(i::text), '') AS long FROM generate_series(1, 400) i \gset
SELECT outbox_unsubscribe(:'long');
SELECT outbox_pause(:'long');
SELECT outbox_resume(:'long');
SELECT outbox_pause(NULL);
SELECT outbox_pause('s1', repeat('ab', 500) || 'c');
SELECT outbox_pause('s1', repeat('ab', 500));
SELECT outbox_resume('s1');
SELECT outbox_resume(NULL);
SELECT outbox_resume('nobody');
SELECT outbox_redrive(NULL);
SELECT outbox_redrive('nobody');
SELECT outbox_redrive('s1', '{{1,2}}');
SELECT outbox_redrive('s1', '{1,NULL}');
SELECT outbox_discard('s1', '{{1,2}}');
SELECT outbox_discard('s1', '{1,NULL}');
SELECT name FROM outbox_subscription ORDER BY name;

SELECT outbox_unsubscribe('s1');
SELECT outbox_unsubscribe('s2');
SELECT count(*) FROM outbox_subscription;

-- An event that this transaction has enqueued before is still delivered.
BEGIN;
SELECT outbox_enqueue('nothing', '{}') AS position \gset
SELECT outbox_subscribe('s3', :'url', topics => '{none}') IS NOT NULL AS subscribed;
SELECT stragglers = ARRAY[pg_current_xact_id()] AS own,
	straggler_froms[1] <= :position AS before
FROM outbox_partition;
ROLLBACK;

-- Topic patterns.
SELECT pattern, topic, outbox_topic_matches(ARRAY[pattern], topic) AS matches
FROM (VALUES ('*', 'order.placed'), ('order.*', 'order.placed'), ('order.*', 'orders'),
	('*.placed', 'order.placed'), ('o*d', 'order.placed'), ('order', 'order.placed'),
	('a_c', 'abc'), ('a%', 'abc'), ('a\b', 'a\b'), ('A', 'a'),
	('*ab*ab', 'aabab'), ('a**b', 'ab'), ('ab*ba', 'aba'), ('a*aba*a', 'aaba'),
	('a*aba*a', 'aababa'), ('*', ''), ('', ''), ('', 'a'), ('é*', 'éa'),
	('*b', 'abc')) AS v (pattern, topic);
SELECT outbox_topic_matches('{a,NULL,b*}', 'bc') AS second,
	outbox_topic_matches('{}', 'a') AS none,
	outbox_topic_matches(NULL, 'a') AS null;

-- Matching takes time that grows with the sum of the lengths, not with their
-- product.
SELECT clock_timestamp() AS began \gset
SELECT outbox_topic_matches(ARRAY[
	'*' || repeat('a', 100000) || 'b*', '*' || repeat('a', 100000) || 'b'],
	repeat('a', 200000)) AS matches;
SELECT clock_timestamp() - :'began' < '2 s' AS soon;

-- All rows of a subscription are deleted with it, also by TRUNCATE.
BEGIN;
SELECT count(outbox_subscribe('t' || i, :'url')) FROM generate_series(1, 2) i;
INSERT INTO outbox_delivery (subscription, position, partition, state, blocks_key,
	attempts, created_at, topic, payload)
SELECT id, 1, 0, 'dead', false, 1, now(), 't', '{}' FROM outbox_subscription;
TRUNCATE outbox_subscription;
SELECT (SELECT count(*) FROM outbox_partition),
	(SELECT count(*) FROM outbox_delivery);
ROLLBACK;
