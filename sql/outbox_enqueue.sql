-- Events are appended in the caller's transaction; bad ones are refused and
-- leave nothing behind.
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
SELECT topic, key, type, payload, headers,
	deliver_at AT TIME ZONE 'UTC' AS deliver_at, count(*)
FROM outbox_log WHERE position > :before AND topic <> 'bulk'
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2;
SELECT count(*), count(DISTINCT position), count(DISTINCT xid)
FROM outbox_log WHERE position > :before AND topic = 'bulk';

-- Bad arguments.
\set SHOW_CONTEXT never
SELECT outbox_enqueue(NULL, '{}');
SELECT outbox_enqueue('t', NULL);
SELECT outbox_enqueue('', '{}');
SELECT outbox_enqueue('t', '{}', headers => '{"webhook-id": "1"}');
SELECT outbox_enqueue('t', '{}', deliver_at => 'infinity');
SELECT outbox_enqueue('t', to_jsonb(repeat('y', 17000000)));
-- As text this would have more than 2 GB, which cannot exist.
SELECT outbox_enqueue('t', ('[' || repeat('1e131071,', 20000) || '1]')::jsonb);
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
INSERT INTO outbox_log (topic, payload)
VALUES ('t', to_jsonb(repeat('y', 17000000)));
SELECT outbox_enqueue('t', to_jsonb(repeat('y', 17000000)));
SELECT count(*) FROM outbox_log WHERE position > :before AND topic IN ('t', '');

-- The longest names, and a large payload.
SELECT outbox_enqueue(repeat('x', 255), to_jsonb(repeat('y', 1000000)),
	key => repeat('k', 255), type => repeat('z', 255)) > 0 AS position;

-- Few bytes of jsonb can be many bytes of text.
\set short '(''['' || repeat(''1e131071,'', 61) || ''1]'')::jsonb'
SET idempotency.outbox_payload_max = '1MB';
SELECT outbox_enqueue('t', :short);
INSERT INTO outbox_log (topic, payload) VALUES ('t', :short);
-- A row does not depend on the setting: it could be restored here.
BEGIN;
INSERT INTO outbox_log_0 (position, xid, created_at, topic, payload)
VALUES (1000000, '3', now(), 't', :short), (1000001, '3', now(), 't', to_jsonb(repeat('y', 17000000)));
ROLLBACK;
RESET idempotency.outbox_payload_max;
BEGIN;
SELECT outbox_enqueue('t', :short) > 0 AS position;
ROLLBACK;

-- The limit applies to the text, to the byte.  A payload is padded to the
-- limit, and to one byte more, with newlines, which are longer as text than as
-- jsonb.
SET idempotency.outbox_payload_max = '1MB';
CREATE FUNCTION pg_temp.padded(value jsonb, bytes int) RETURNS jsonb AS $$
	SELECT jsonb_build_array(value,
		repeat(E'\n', room / 2) || repeat('a', room % 2))
	FROM (SELECT bytes - octet_length(value::text) - octet_length('[, ""]')) AS r(room)
$$ LANGUAGE sql;
CREATE FUNCTION pg_temp.fits(payload jsonb) RETURNS boolean AS $$
BEGIN
	PERFORM outbox_enqueue('t', payload);
	RAISE division_by_zero;	-- takes it back
EXCEPTION WHEN program_limit_exceeded THEN
	RETURN false;
WHEN division_by_zero THEN
	RETURN true;
END $$ LANGUAGE plpgsql;
CREATE FUNCTION pg_temp.random_value(depth int) RETURNS jsonb AS $$
DECLARE
	kind int := floor(random() * CASE WHEN depth > 0 THEN 8 ELSE 5 END);
	size int := floor(random() * 4);
	n int := floor(random() * 100) - 50;
BEGIN
	RETURN CASE kind
		WHEN 0 THEN 'null'
		WHEN 1 THEN to_jsonb(random() < 0.5)
		WHEN 2 THEN format('%s.%se%s', n, repeat('0', size) || abs(n), n * 10)::jsonb
		WHEN 3 THEN to_jsonb(n::numeric / (size + 1))
		WHEN 4 THEN to_jsonb((
			SELECT coalesce(
				string_agg(chr(1 + floor(random() * 160)::int), ''), '')
			FROM generate_series(1, size * 20)))
		WHEN 5 THEN to_jsonb(repeat('\"/', size) || chr(8364) || chr(128512))
		WHEN 6 THEN (
			SELECT coalesce(jsonb_agg(pg_temp.random_value(depth - 1)), '[]')
			FROM generate_series(1, size))
		ELSE (
			SELECT coalesce(jsonb_object_agg(
				i || chr(i) || '"', pg_temp.random_value(depth - 1)), '{}')
			FROM generate_series(1, size) i)
	END;
END $$ LANGUAGE plpgsql;
SELECT value, pg_temp.fits(pg_temp.padded(value, 1048576)) AS fits,
	pg_temp.fits(pg_temp.padded(value, 1048577)) AS one_more_fits
FROM (VALUES ('null'), ('true'), ('false'), ('0'), ('-1.50'), ('1e-10'),
	('-12e20'), ('""'),
	('"\u0001\u001f\u007f\b\f\n\r\t\"\\/"'), ('[]'), ('{}'), ('[[], {}, [1, [2]]]'),
	('{"a": {"b\n": [1, "2", {}], "c": []}, "d": null}')) AS v(text), CAST(text AS jsonb) AS value;
SELECT CASE WHEN NOT fits OR one_more_fits THEN value END AS wrong, count(*)
FROM (SELECT value, pg_temp.fits(pg_temp.padded(value, 1048576)) AS fits,
		pg_temp.fits(pg_temp.padded(value, 1048577)) AS one_more_fits
	FROM (SELECT pg_temp.random_value(4) AS value
		FROM generate_series(1, 300) OFFSET 0) v) m
GROUP BY 1;
-- A scalar has no brackets.
SELECT pg_temp.fits(to_jsonb(repeat(E'\n', 524287))) AS fits,
	pg_temp.fits(to_jsonb(repeat(E'\n', 524287) || 'a')) AS one_more_fits;
SELECT outbox_enqueue('t', pg_temp.padded('1', 1048576)) > 0 AS position;
SELECT outbox_enqueue('t', pg_temp.padded('1', 1048577));
INSERT INTO outbox_log (topic, payload) VALUES ('t', pg_temp.padded('1', 1048576));
INSERT INTO outbox_log (topic, payload) VALUES ('t', pg_temp.padded('1', 1048577));
RESET idempotency.outbox_payload_max;

-- The limit of payloads is a setting.
SET idempotency.outbox_payload_max = '32MB';
SELECT outbox_enqueue('t', to_jsonb(repeat('y', 17000000))) > 0 AS position;
SET idempotency.outbox_payload_max = '1GB';
