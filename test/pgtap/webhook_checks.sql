/*
 * Which URLs and headers a webhook may have.  If this fails, a subscription
 * can be made that never delivers, shows credentials in messages, or forges a
 * request.
 */
\set ON_ERROR_STOP on
SET client_min_messages = warning;
SET client_encoding = 'UTF8';
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE EXTENSION IF NOT EXISTS pgtap;

BEGIN;

/* SQLSTATE, message and detail of the error that a statement raises. */
CREATE FUNCTION pg_temp.complaint(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(' | ', SQLSTATE, message, nullif(detail, ''));
END
$$;

CREATE FUNCTION pg_temp.url_complaint(url text) RETURNS text
LANGUAGE sql AS $$
	SELECT replace(pg_temp.complaint(format('SELECT outbox_check_url(%L)', url)),
				   '22023 | invalid webhook url | ', '')
$$;

CREATE FUNCTION pg_temp.header_complaint(headers jsonb) RETURNS text
LANGUAGE sql AS $$
	SELECT pg_temp.complaint(format('SELECT outbox_check_headers(%L)', headers))
$$;

SELECT plan(131);

/* URLs. */
SELECT is(pg_temp.url_complaint(url), 'none', left(url, 60) || ' is accepted')
FROM unnest(ARRAY[
	'http://example.com',
	'https://example.com/hooks/1?a=b&c=%20d',
	'HTTPS://EXAMPLE.COM:8443/',
	'http://127.0.0.1:8080/hook',
	'http://[::1]:8080/hook',
	'https://example.com/at@sign',
	'https://example.com/' || repeat('a', 2048 - 20)]) AS url;

SELECT is(pg_temp.url_complaint(url), 'It must begin with http:// or https://.',
		  format('"%s" is refused', url))
FROM unnest(ARRAY['', 'example.com', 'ftp://example.com/', 'file:///etc/passwd',
	'gopher://example.com/', '//example.com/', 'javascript:alert(1)',
	'http:/example.com', 'https:example.com']) AS url;

SELECT is(pg_temp.url_complaint(url), 'It must have a host.',
		  format('"%s" is refused', url))
FROM unnest(ARRAY['http://', 'http:///path', 'http://:80/', 'http://?q',
	'http://#f']) AS url;

SELECT is(pg_temp.url_complaint(url), 'It must have a valid host and port.',
		  format('"%s" is refused', url))
FROM unnest(ARRAY['http://example.com:99999/', 'http://example.com:http/',
	'http://[::1/', 'http://[zz]/', 'http://exa<mple/']) AS url;

SELECT is(pg_temp.url_complaint(url),
	'It must not have a user name or password; a header can carry credentials.',
	what || ' in a URL is refused, and not repeated')
FROM (VALUES (1, 'https://user:hunter2@example.com/', 'a password'),
			 (2, 'https://user@example.com/', 'a user name'),
			 (3, 'https://@example.com/', 'an empty user name')) AS bad(nr, url, what)
ORDER BY nr;

SELECT is(pg_temp.url_complaint(url),
	'It must consist of printable ASCII characters, without spaces and backslashes; others have to be percent-encoded.',
	what || ' in a URL is refused')
FROM (VALUES (1, E'https://example.com/\r\nX: y', 'a line break'),
			 (2, 'https://example.com/a b', 'a space'),
			 (3, E'https://example.com/\t', 'a tab'),
			 (4, E'https://example.com/\x7f', 'a control character'),
			 (5, E'https://example.com\\@evil.example/', 'a backslash'),
			 (6, 'https://' || chr(233) || 'xample.com/', 'a letter outside ASCII')
	) AS bad(nr, url, what)
ORDER BY nr;

SELECT is(pg_temp.url_complaint('https://example.com/#top'),
		  'It must not have a fragment.', 'a fragment is refused');
SELECT is(pg_temp.url_complaint('https://example.com/' || repeat('a', 2049 - 20)),
		  'It must not be longer than 2048 bytes.', 'a long URL is refused');
SELECT is(pg_temp.url_complaint(NULL), '22004 | url must not be null',
		  'a URL is needed');

/* Settings that allow fewer URLs.  A constraint does not ask them. */
SELECT outbox_subscribe('before', 'http://example.com:8080/', topics => '{none}');
SET LOCAL idempotency.webhook_require_https = on;
SELECT is(pg_temp.complaint(format('SELECT outbox_check_url(%L)', url)),
	'22023 | webhook url is not allowed | idempotency.webhook_require_https refuses http.', url || ' is refused without TLS')
FROM unnest('{http://example.com/,HTTP://example.com:443/,http://[::1]/}'::text[]) url;
SELECT is(pg_temp.complaint(format('SELECT outbox_check_url(%L)', url)), 'none', url || ' is allowed')
FROM unnest('{https://example.com/,HTTPS://EXAMPLE.COM:80/}'::text[]) url;
SELECT alike(pg_temp.complaint(call), '22023 | webhook url is not allowed | %', call || ' asks')
FROM unnest(ARRAY[$$SELECT outbox_subscribe('s', 'http://example.com/')$$,
	$$SELECT outbox_alter('before', url => 'http://example.com/')$$,
	$$SELECT outbox_alter('before', url => 'http://example.com:8080/')$$]) call;
SELECT lives_ok($$SELECT outbox_alter('before', headers => '{"X-Shop": "a"}', retry_schedule => '{0 s}', max_in_flight => 3)$$,
	'a stored URL is no obstacle to other changes');
SELECT lives_ok($$UPDATE outbox_subscription SET priority = 2 WHERE name = 'before'$$, 'the constraint does not');
SELECT lives_ok($$SELECT outbox_pause('before'), outbox_resume('before'), outbox_rotate_secret('before')$$, 'nor does what leaves the settings');
SELECT results_eq($$SELECT state, detail, hint FROM idempotency_status() WHERE detail LIKE 'idempotency.webhook%'$$,
	$$VALUES ('warning', 'idempotency.webhook_require_https refuses http, for subscription before',
		'give it another url: outbox_alter(); or change the setting and reload')$$, 'idempotency_status names the subscription');
SET LOCAL idempotency.webhook_require_https = off;
SET LOCAL idempotency.webhook_allowed_ports = ' 443,8443 ';
SELECT is(pg_temp.complaint(format('SELECT outbox_check_url(%L)', url)), 'none', url || ' is allowed')
FROM unnest('{https://example.com/,http://example.com:443/,https://[::1]:8443/x}'::text[]) url;
SELECT is(pg_temp.complaint(format('SELECT outbox_check_url(%L)', url)),
	format('22023 | webhook url is not allowed | idempotency.webhook_allowed_ports refuses port %s.', port), url || ' is refused')
FROM (VALUES ('http://example.com/', 80), ('https://example.com:44/', 44), ('http://h:0/', 0),
	('https://[::1]:22/', 22), ('http://example.com:8080/https://example.com:443/', 8080)) refused(url, port);
SELECT results_eq($$SELECT detail FROM idempotency_status() WHERE detail LIKE 'idempotency.webhook%'$$,
	$$VALUES ('idempotency.webhook_allowed_ports refuses port 8080, for subscription before')$$, 'also for a port');
SELECT is(pg_temp.complaint(format('SET LOCAL idempotency.webhook_allowed_ports = %L', list)),
	format('22023 | invalid value for parameter "idempotency.webhook_allowed_ports": "%s" | A port is a number from 1 to 65535.', list),
	format('"%s" is no list of ports', list))
FROM unnest(ARRAY['0', '65536', '443 8443', '443,x', ',443', '443,,8443', '-1', '00000443']) list;
SELECT is(pg_temp.complaint($$SET LOCAL idempotency.webhook_allowed_ports = '1, 65535'$$), 'none', 'the lowest and the highest are');
SET LOCAL idempotency.webhook_allowed_ports = '';
SELECT is(pg_temp.url_complaint('http://example.com:8080/'), 'none', 'an empty list allows all');
CREATE ROLE nobody;
SET LOCAL ROLE nobody;
SELECT is(left(pg_temp.complaint(format('SET %s = DEFAULT', setting)), 5), '42501', setting || ' is for superusers')
FROM unnest('{idempotency.webhook_require_https,idempotency.webhook_allowed_ports}'::text[]) setting;
RESET ROLE;

/* Where headers with credentials may be sent. */
SELECT ok(outbox_same_origin(one, other), format('"%s" and "%s" are the same place', one, other))
FROM (VALUES ('https://example.com/a', 'https://example.com/b?c'),
			 ('https://example.com', 'HTTPS://EXAMPLE.COM:443/'),
			 ('http://example.com:80/', 'http://example.com/'),
			 ('http://example.com:080/', 'http://user:word@Example.com/'),
			 ('http://[::1]:8080/hook', 'http://[::1]:8080/'),
			 ('http://[FE80::1%25eth0]/', 'http://[fe80::1%25eth0]:80/hook')) AS same(one, other);

SELECT ok(NOT outbox_same_origin('https://example.com:8443/', other), format('"%s" is another', other))
FROM unnest(ARRAY['http://example.com:8443/', 'https://example.com/', 'https://example.com:443/',
	'https://example.org:8443/', 'https://a.example.com:8443/', 'https://example.com.evil.example:8443/',
	'https://example.com.:8443/', 'https://example.com:84430/', 'nonsense', '']) AS other;

SELECT ok(NOT outbox_same_origin(one, other), format('"%s" and "%s" are different places', one, other))
FROM (VALUES ('http://[fe80::1%25eth0]/', 'http://[fe80::1%25eth1]/'),
			 ('http://[fe80::1%25eth0]/', 'http://[fe80::1%25ETH0]/'),
			 ('http://[fe80::1%25eth0]/', 'http://[fe80::1]/')) AS different(one, other);

/* Headers. */
SELECT is(pg_temp.header_complaint(headers), 'none',
		  coalesce(left(headers::text, 60), 'no headers') || ' is accepted')
FROM unnest(ARRAY[
	NULL,
	'{}',
	'{"Authorization": "Bearer abc", "X-Tenant": "7", "User-Agent": "shop"}',
	'{"X-Empty": ""}',
	jsonb_build_object(repeat('n', 127), repeat('v', 1024)),
	(SELECT jsonb_object_agg('x-' || i, 'v') FROM generate_series(1, 32) i)
	]::jsonb[]) AS headers;

SELECT is(pg_temp.header_complaint(headers),
	'22023 | headers must be a JSON object of names and strings',
	format('%s is refused', headers))
FROM unnest(ARRAY['[]', '"X: y"', '1', 'null', '[{"X": "y"}]']::jsonb[]) AS headers;

SELECT is(pg_temp.header_complaint(jsonb_build_object('X-A', value)),
	'22023 | value of header "X-A" must be a string',
	format('the value %s is refused', value))
FROM unnest(ARRAY['1', 'null', 'true', '{}', '["y"]']::jsonb[]) AS value;

SELECT is(pg_temp.header_complaint(jsonb_build_object('X-A', value)),
	'22023 | invalid value of header "X-A" | A header''s value consists of printable ASCII characters.',
	format('the value %s is refused', to_jsonb(value)))
FROM unnest(ARRAY[E'a\r\nX-B: c', E'a\nb', E'a\rb', E'a\tb', E'a\x01', chr(233)]) AS value;

SELECT is(pg_temp.header_complaint(jsonb_build_object(name, 'v')),
	format('22023 | invalid header name "%s" | A header''s name is a token as RFC 9110 has it: letters, digits, hyphens and the like.', name),
	format('the name %s is refused', to_jsonb(name)))
FROM unnest(ARRAY['', 'X A', 'X:', E'X\r\nY', E'X\n', 'X(1)', 'X' || chr(233)]) AS name;

SELECT is(pg_temp.header_complaint(jsonb_build_object(name, 'v')),
	format('22023 | header "%s" is reserved | Headers that describe the connection, the body or the event are set by the relay.', name),
	format('the name %s is reserved', name))
FROM unnest(ARRAY['Host', 'CONTENT-LENGTH', 'Content-Type', 'transfer-encoding',
	'Connection', 'Webhook-Id', 'ce-type', 'Idempotency-Key', 'Expect']) AS name;

SELECT is(pg_temp.header_complaint(jsonb_build_object(repeat('n', 128), 'v')),
	'22023 | header name is too long | It has 128 bytes; the limit is 127.',
	'a long name is refused');
SELECT is(pg_temp.header_complaint(jsonb_build_object('X-A', repeat('v', 1025))),
	'22023 | value of header "X-A" is too long | It has 1025 bytes; the limit is 1024.',
	'a long value is refused');
SELECT is(pg_temp.header_complaint((SELECT jsonb_object_agg('x-' || i, 'v')
									FROM generate_series(1, 33) i)),
	'22023 | too many headers | There are 33; the limit is 32.',
	'too many headers are refused');

SELECT * FROM finish();
ROLLBACK;
