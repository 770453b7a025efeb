-- Events that are cancelled or that expire, for readers, in one session; times
-- are moved by hand.  If this fails, a cancelled event is sent, or one that
-- was not is lost.
\getenv dir PG_ABS_SRCDIR
\set db regress_outbox_cancel
\i :dir/sql/include/ring.sql
\pset null -
\set VERBOSITY terse
CREATE FUNCTION event(what text, deliver_in interval DEFAULT NULL, expires_in interval DEFAULT NULL, key text DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS $$
	SELECT outbox_enqueue('t', to_jsonb(what), key, deliver_at => now() + deliver_in, expires_at => now() + expires_in)
$$;
CREATE FUNCTION at(what text) RETURNS bigint LANGUAGE sql AS 'SELECT position FROM outbox_log WHERE payload = to_jsonb(what)';
CREATE FUNCTION cancel(what text) RETURNS boolean LANGUAGE sql AS 'SELECT outbox_cancel(at(what))';
-- Reads everything, and acknowledges it.
CREATE FUNCTION got(name text DEFAULT 'r') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	batch record;
	events text := '';
BEGIN
	LOOP
		SELECT string_agg(payload #>> '{}', ' ') AS events, min(token) AS token INTO batch FROM outbox_fetch(name, 2);
		EXIT WHEN batch.token IS NULL;
		PERFORM outbox_ack(name, batch.token);
		events := concat_ws(' ', events, batch.events);
	END LOOP;
	RETURN events;
END
$$;
-- An hour passes for what waits.
CREATE FUNCTION hour() RETURNS void LANGUAGE sql AS $$
	UPDATE outbox_delivery SET due_at = due_at - interval '1 hour' WHERE due_at IS NOT NULL;
	UPDATE outbox_delivery SET expires_at = expires_at - interval '1 hour';
	UPDATE outbox_log_0 SET deliver_at = deliver_at - interval '1 hour', expires_at = expires_at - interval '1 hour';
	UPDATE outbox_log_1 SET deliver_at = deliver_at - interval '1 hour', expires_at = expires_at - interval '1 hour';
$$;
CREATE VIEW deferred AS SELECT payload #>> '{}' AS event, state, attempts, last_error, expires_at > now() AS fresh FROM outbox_delivery ORDER BY subscription, position;
SELECT outbox_subscribe('r', NULL, ARRAY['t'], retry_schedule => '{0 s, 1 h}'), outbox_subscribe('late', NULL, ARRAY['t']);

-- Before anybody has read it, after it was copied, and after its time.
SELECT event('unread', '30 min') IS NOT NULL, event('copied', '30 min') IS NOT NULL, event('kept', '30 min') IS NOT NULL, event('now') IS NOT NULL;
SELECT cancel('unread'), cancel('now');
SELECT got();
TABLE deferred;
SELECT cancel('copied'), cancel('copied'), cancel('unread');
TABLE deferred;
SELECT hour();
SELECT got();
-- Now all of them have been sent, or were cancelled; so it is for a reader that comes late.
SELECT cancel('kept'), cancel('copied'), cancel('unread'), cancel('now');
SELECT got('late');
TABLE deferred;
-- A replay leaves out what was cancelled.
SELECT outbox_replay('r', from_position => 1) = at('unread') AS first;
SELECT got();
TABLE deferred;

-- A rollback takes the cancellation back.
SELECT event('spared', '30 min') IS NOT NULL AS enqueued;
SELECT got();
BEGIN;
SELECT cancel('spared');
TABLE deferred;
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT cancel('spared');
ROLLBACK TO s;
COMMIT;
TABLE deferred;
SELECT hour();
SELECT got(), got('late');

-- What the same transaction has enqueued, whether it has a time or not.
BEGIN;
SELECT outbox_cancel(event('own', '30 min')), outbox_cancel(event('own now'));
SAVEPOINT s;
SELECT event('own of a savepoint') IS NOT NULL AS enqueued;
RELEASE s;
SELECT cancel('own of a savepoint');
SELECT event('own, spared') IS NOT NULL AS enqueued;
SAVEPOINT s;
SELECT cancel('own, spared');
ROLLBACK TO s;
COMMIT;
SELECT payload FROM outbox_log WHERE payload::text LIKE '"own%';
SELECT got();
-- One that was rolled back, one that there never was, and bad arguments.
BEGIN;
SELECT event('ghost', '30 min') AS ghost \gset
ROLLBACK;
SELECT outbox_cancel(:ghost), outbox_cancel(9223372036854775807), outbox_cancel(0), outbox_cancel(-1);
SELECT outbox_cancel(NULL);
BEGIN READ ONLY;
SELECT cancel('kept');
ROLLBACK;
BEGIN READ ONLY;
SELECT event('waits', '30 min');
ROLLBACK;

-- expires_at: dead instead of too late, alone or before others of its key.
SELECT event('fresh', NULL, '2 hours') IS NOT NULL, event('stale', NULL, '30 min', 'k') IS NOT NULL,
	event('after', NULL, NULL, 'k') IS NOT NULL, event('soon', '30 min', '45 min') IS NOT NULL, event('past', NULL, '-1 s') IS NOT NULL;
SELECT got();
TABLE deferred;
SELECT hour();
SELECT got(), got('late');
TABLE deferred;
SELECT name, dead, delivered FROM outbox_subscriptions ORDER BY name;
SELECT count(*) AS attempts FROM outbox_attempts;
-- Somebody wants it sent all the same.
SELECT outbox_redrive('r', ARRAY[at('soon')]);
SELECT got();
-- After a failure, before the retry.
SELECT event('fails', NULL, '30 min') IS NOT NULL AS enqueued;
SELECT outbox_ack('r', token, ARRAY[position], 'try later') FROM outbox_fetch('r');
SELECT * FROM deferred WHERE event = 'fails';
SELECT hour(), hour();
SELECT got();
SELECT * FROM deferred WHERE event = 'fails';
-- A replay does not send what has expired.
SELECT outbox_discard('r') > 0 AS discarded, outbox_replay('r', from_position => at('fails')) = at('fails') AS first;
SELECT got();
SELECT * FROM deferred WHERE event = 'fails';

-- The log has forgotten an event that waits; then, what was cancelled.
SELECT event('old', '2 hours') IS NOT NULL, event('older', '2 hours') IS NOT NULL;
SELECT got(), got('late');
SELECT at('old') AS old, at('older') AS older \gset
SELECT until('outbox_switch()'), until('outbox_retire()');
CALL old_snapshots_end('outbox_ring');
SELECT until('outbox_truncate()');
SELECT at('old'), count(*) FROM outbox_delivery WHERE position = :old;
SELECT outbox_cancel(:old), outbox_cancel(:old);
SELECT event, state FROM deferred WHERE event LIKE 'old%';
SELECT count(*) AS remembered FROM outbox_cancelled;
SELECT until('NOT outbox_expire() AND NOT EXISTS (SELECT FROM outbox_cancelled)');
SELECT outbox_cancel(:old), outbox_cancel(:older);
SELECT hour(), hour();
SELECT got();
-- A copy that a relay was making for long is not sent, and keeps the row.
INSERT INTO outbox_cancelled (position, swept) VALUES (4, true);
INSERT INTO outbox_delivery (subscription, position, partition, state, blocks_key, attempts, due_at, created_at, topic, payload)
	SELECT id, 4, 0, 'waiting', false, 0, now() + interval '1 min', now(), 't', '"copied late"' FROM outbox_subscription WHERE name = 'r';
SELECT outbox_expire();
SELECT count(*) AS remembered FROM outbox_cancelled;
SELECT hour();
SELECT got();
SELECT until('NOT outbox_expire() AND NOT EXISTS (SELECT FROM outbox_cancelled)');
SELECT event, state FROM deferred WHERE event = 'copied late';
-- The sweeper deletes one that is not older than the cancellation.
INSERT INTO outbox_cancelled (position, cancelled_at) VALUES (5, now()), (6, now() - interval '2 s');
INSERT INTO outbox_delivery (subscription, position, partition, state, blocks_key, attempts, due_at, created_at, topic, payload)
	SELECT id, n, 0, 'waiting', false, 0, now() + interval '1 day', now(), 't', to_jsonb('copied beside ' || n) FROM outbox_subscription, generate_series(5, 7) n;
SELECT outbox_expire();
SELECT event FROM deferred WHERE event LIKE 'copied beside%';

\i :dir/sql/include/ring_end.sql
