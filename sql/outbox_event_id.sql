-- The id under which receivers get an event, before it is sent.  If this
-- fails, a producer records an id that no receiver ever sees.  replay.pl tests
-- that it is the webhook-id.
\getenv dir PG_ABS_SRCDIR
\set db regress_event_id
\i :dir/sql/include/ring.sql
\set VERBOSITY terse
\pset null -
-- msg_<identity>_<position>_<microseconds>; the first is the same for all.
CREATE FUNCTION parts(id text)
RETURNS TABLE (form boolean, identity text, "position" bigint, at timestamptz)
LANGUAGE sql AS $$
	SELECT id ~ '^msg_[0-9a-f]{32}_[0-9]+_[0-9]+$', p[2], p[3]::bigint,
		to_timestamp(0) + p[4]::bigint * interval '1 us'
	FROM string_to_array(id, '_') p
$$;

SELECT outbox_event_id(NULL);
SELECT outbox_event_id(0), outbox_event_id(-1),
	outbox_event_id(9223372036854775807), outbox_event_id(1);

-- The id is the same in the statement that enqueues, in its transaction, and
-- after it, although there is no subscription yet.
BEGIN;
SELECT outbox_enqueue('t', '{"n": 1}') AS p \gset
SELECT outbox_event_id(:p) AS told \gset
SELECT form, position = :p AS of_it,
	at = (SELECT created_at FROM outbox_log WHERE position = :p) AS by_time
FROM parts(:'told');
SAVEPOINT a;
SELECT outbox_event_id(:p) = :'told' AS same;
ROLLBACK TO a;
SELECT outbox_event_id(:p) = :'told' AS same;
COMMIT;
SELECT outbox_event_id(:p) = :'told' AS same;
SELECT count(*) FROM outbox_home;
BEGIN;
SELECT outbox_event_id(:p) = :'told' AS same;
ROLLBACK;
\c
SELECT outbox_event_id(:p) = :'told' AS same;
BEGIN READ ONLY;
SELECT outbox_event_id(:p) = :'told' AS same;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox_event_id(:p) = :'told' AS same;
COMMIT;
SELECT (parts(outbox_event_id(outbox_enqueue('t', '{"n": 2}')))).form;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM outbox_log;
SELECT outbox_event_id(outbox_enqueue('t', '{"n": 3}')) IS NOT NULL AS told;
COMMIT;
SELECT count(DISTINCT identity) AS identities,
	count(DISTINCT p.position) AS positions, count(*)
FROM outbox_log, parts(outbox_event_id(outbox_log.position)) p;

-- An event that was rolled back has no id.
BEGIN;
SAVEPOINT a;
SELECT outbox_enqueue('t', '{}') AS gone \gset
SELECT outbox_event_id(:gone) IS NOT NULL AS told;
ROLLBACK TO a;
SELECT outbox_event_id(:gone);
COMMIT;
SELECT outbox_event_id(:gone);

-- The first subscription makes this database the home, with the same identity.
BEGIN;
SELECT outbox_subscribe('s', 'https://example.com/',
	secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw') IS NOT NULL AS subscribed;
ROLLBACK;
SELECT outbox_event_id(:p) = :'told' AS same;
SELECT outbox_subscribe('s', 'https://example.com/') IS NOT NULL AS subscribed;
SELECT outbox_event_id(:p) = :'told' AS same;
SELECT outbox_unsubscribe('s');
SELECT outbox_event_id(:p) = :'told' AS same;

-- A copy that is adopted gets another identity, or keeps it on request.
BEGIN;
SELECT outbox_adopt(keep_identity => true);
SELECT outbox_event_id(:p) = :'told' AS same;
SELECT outbox_adopt();
SELECT outbox_event_id(:p) = :'told' AS same;
ROLLBACK;

-- After another CREATE EXTENSION it is another outbox.
DROP EXTENSION idempotency CASCADE;
CREATE EXTENSION idempotency;
SELECT (parts(outbox_event_id(outbox_enqueue('t', '{}')))).identity =
	(parts(:'told')).identity AS same;

-- An application may ask for ids, other roles may not.
CREATE ROLE regress_producer;
CREATE ROLE regress_stranger;
SELECT idempotency_grant('regress_producer');
SET ROLE regress_producer;
SELECT outbox_event_id(outbox_enqueue('t', '{}')) IS NOT NULL AS told;
SET ROLE regress_stranger;
SELECT public.outbox_event_id(1);
RESET ROLE;
DROP OWNED BY regress_producer, regress_stranger;
DROP ROLE regress_producer, regress_stranger;
\i :dir/sql/include/ring_end.sql
