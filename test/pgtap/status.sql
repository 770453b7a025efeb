-- idempotency_status() is the one place to look.  If this fails, it does not
-- report a problem to operators, or reports one that does not exist.
BEGIN;
SELECT plan(27);

-- What a check reports; all rows if there are several.
CREATE FUNCTION says(name text)
RETURNS TABLE (state text, detail text, hint text)
LANGUAGE sql VOLATILE AS
	$$ SELECT s.state, s.detail, s.hint FROM idempotency_status() s
		WHERE s."check" = name $$;

SELECT set_eq($$ SELECT DISTINCT state FROM idempotency_status()
	WHERE "check" <> 'settings' $$, '{ok}'::text[], 'all is well');
SELECT results_eq($$ SELECT * FROM says('settings') $$, $$ VALUES
	('warning',
		'idempotency.databases names contrib_regression, which does not exist',
		'correct it and reload') $$,
	'but a setting of the test servers');
SELECT set_eq($$ SELECT "check" FROM idempotency_status() $$,
	ARRAY['library', 'workers', 'worker errors', 'settings', 'tables',
		'triggers', 'sequences', 'indexes', 'alterations', 'keys', 'subscriptions', 'log', 'open transactions',
		'prepared transactions', 'stock counters', 'stock log', 'reservations', 'reservation names', 'stock queues'], 'these are the checks');
SELECT is_empty($$ SELECT * FROM idempotency_status()
	WHERE "check" IS NULL OR state IS NULL OR detail IS NULL $$,
	'each says what it found');
SELECT is_empty($$ SELECT * FROM idempotency_status()
	WHERE state = 'ok' AND hint IS NOT NULL $$,
	'where all is well there is nothing to do');

-- Subscriptions.
SELECT count(outbox_subscribe(name, 'https://example.com/', topics => '{none}'))
FROM unnest('{well,paused,gone,failing,dead,lost}'::text[]) name;
SELECT outbox_pause('paused', 'for repair');
UPDATE outbox_subscription
SET state = 'disabled', reason = 'the endpoint answered 410 Gone'
WHERE name = 'gone';
UPDATE outbox_subscription SET failing_since = now() - interval '1 h'
WHERE name = 'failing';
INSERT INTO outbox_delivery (subscription, position, partition, state, blocks_key,
	attempts, due_at, last_at, last_status, last_error, created_at, topic,
	payload)
SELECT id, 1, 0, CASE name WHEN 'dead' THEN 'dead' ELSE 'waiting' END, false,
	1, CASE name WHEN 'failing' THEN now() + interval '1 h' END, now(), 503,
	'answered 503', now(), 't', '{}'
FROM outbox_subscription WHERE name IN ('dead', 'failing');
UPDATE outbox_partition SET lost = 7
WHERE subscription = (SELECT id FROM outbox_subscription WHERE name = 'lost');
SELECT results_eq($$ SELECT * FROM says('subscription paused') $$,
	$$ VALUES ('warning', 'paused: for repair', 'SELECT outbox_resume(''paused'')') $$,
	'one is paused');
SELECT results_eq($$ SELECT * FROM says('subscription gone') $$,
	$$ VALUES ('warning', 'disabled: the endpoint answered 410 Gone',
		'SELECT outbox_resume(''gone'')') $$, 'one is disabled');
SELECT results_eq(
	$$ SELECT state, detail ~ '^failing for [0-9:]+: 503$', hint
	FROM says('subscription failing') $$,
	$$ VALUES ('warning', true, 'when the endpoint works again: SELECT outbox_retry(''failing'')') $$,
	'one fails');
SELECT results_eq($$ SELECT state, hint FROM says('subscription dead') $$,
	$$ VALUES ('warning', 'see outbox_dead; SELECT outbox_redrive(''dead'')') $$,
	'one has dead letters');
SELECT results_eq($$ SELECT * FROM says('subscription lost') $$,
	$$ VALUES ('error', 'events lost: 7', 'idempotency.outbox_keep_size is too small; SELECT outbox_acknowledge_lost(''lost'')') $$,
	'one has lost events');
SELECT is_empty($$ SELECT * FROM says('subscription well') $$,
	'nothing is said of one that is well');
SELECT is((SELECT detail FROM says('subscriptions')), '3 active', 'but they are counted');
UPDATE outbox_home SET system_identifier = 1;
SELECT results_eq($$ SELECT state, hint FROM says('subscription well') $$,
	$$ VALUES ('error', 'see outbox_adopt()') $$, 'a restored copy is one');
SELECT outbox_unsubscribe(name) FROM outbox_subscription;
SELECT is((SELECT count(*) FROM idempotency_status()
	WHERE "check" LIKE 'subscription %'), 0::bigint, 'one that has ended is forgotten');

-- A name with a quote in it is quoted in the hint.
SELECT outbox_subscribe('o''r', 'https://example.com/', topics => '{none}'), outbox_adopt();
SELECT outbox_pause('o''r');
SELECT is((SELECT hint FROM says('subscription o''r')),
	$$SELECT outbox_resume('o''r')$$, 'what is proposed can be run');
SELECT outbox_unsubscribe('o''r');

-- Keys and reservations.
SELECT idem_claim('overdue', lease => '1 h');
UPDATE idem_key_0 SET lease_until = now() - interval '11 min' WHERE key = 'overdue';
SELECT results_eq($$ SELECT state, detail ~ ', a lease ran out 00:11:0. ago$'
	FROM says('keys') $$, $$ VALUES ('warning', true) $$,
	'a lease ran out long ago');
SELECT idem_forget('overdue');
SELECT stock_receive('hat', 1);
SELECT stock_reserve('hat', 1, 'late');
UPDATE stock_hold SET expires_at = clock_timestamp() - interval '59 s';
SELECT is((SELECT state FROM says('reservations')), 'ok', 'a reservation has lapsed just now');
UPDATE stock_hold SET expires_at = clock_timestamp() - interval '2 min';
SELECT results_eq($$ SELECT state, detail FROM says('reservations') $$,
	$$ VALUES ('warning', '1 should have expired more than 1 min ago') $$,
	'and long ago');
DELETE FROM stock_hold;

-- A table is retired, a day after the last row was inserted.
UPDATE idem_ring SET state = 'old', opened_at = now() - interval '2 days',
	closed_at = now() - interval '1 day', quiet_xid = '3',
	segment = (SELECT max(segment) + 1 FROM idem_ring)
WHERE slot = 1;
SELECT ok(idempotency_ring_retire('idem_ring', segment), 'a table is retired')
FROM idem_ring WHERE slot = 1;
SELECT is((SELECT state FROM says('tables')), 'ok', 'it was not retired long ago');
UPDATE idem_ring SET closed_at = closed_at - interval '11 min' WHERE slot = 1;
SELECT results_eq($$ SELECT state, detail ~ '^idem_key_1 could not be emptied for 00:11:0.$'
	FROM says('tables') $$, $$ VALUES ('warning', true) $$,
	'a snapshot keeps it for long');

-- Triggers.
ALTER TABLE stock_log DISABLE TRIGGER ALL;
SELECT results_eq($$ SELECT state, hint FROM says('triggers') $$,
	$$ VALUES ('error', 'after the restore: SELECT idempotency_repair()') $$,
	'disabled triggers');
ALTER TABLE idem_key_2 DISABLE TRIGGER ALL;
INSERT INTO idem_key_2 (key, scope, token, attempt, state, expires_at)
VALUES ('restored', '', 1, 1, 'c', now() + interval '1 h');
SELECT idempotency_repair();
SELECT is((SELECT closed_at > now() FROM idem_ring WHERE slot = 2 AND state = 'retired'),
	true, 'the repair retires a table');

-- Indexes.
CREATE INDEX ON outbox_log_0 USING gin (payload);
CREATE UNIQUE INDEX copy ON idem_key_0 (key, scope);
SELECT is((SELECT state FROM says('indexes')), 'ok', 'indexes that forbid nothing new');
CREATE UNIQUE INDEX once ON idem_key_0 (key);
CREATE UNIQUE INDEX one_of_topic ON outbox_delivery (subscription, topic);
ALTER TABLE stock_log ADD CONSTRAINT apart EXCLUDE (note WITH =);
SELECT results_eq($$ SELECT * FROM says('indexes') $$,
	$$ VALUES ('warning', 'unique or exclusion, so calls can fail: idempotency_internal.once of idem_key_0, idempotency_internal.one_of_topic of outbox_delivery, idempotency_internal.apart of stock_log',
		'drop it, or create it without UNIQUE') $$,
	'indexes that may refuse our rows');

-- It only reads, and works wherever it is called.
SELECT lives_ok($$ DO 'BEGIN SET TRANSACTION READ ONLY; PERFORM * FROM idempotency_status(); END' $$,
	'in a read-only transaction');
SELECT is((SELECT count(*) > 10 FROM idempotency_status()), true, 'again and again');
SELECT * FROM finish();
ROLLBACK;
