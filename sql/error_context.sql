-- What a caller has done wrong is told without the stack of our own functions:
-- psql prints no CONTEXT, which would be several lines of internal SQL.  If this
-- fails, an operator has to find the message among them, or does not see which
-- of his own functions has made the call.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
\set SHOW_CONTEXT errors

SELECT outbox_subscribe('known', 'https://example.com/', topics => '{none}') LIKE 'whsec_%';

-- By each public function that is in PL/pgSQL.
SELECT outbox_subscribe(NULL, 'https://example.com/');
SELECT outbox_subscribe('', 'https://example.com/');
SELECT outbox_subscribe('new', 'ftp://example.com/');
SELECT outbox_subscribe('new', NULL, headers => '{}');
SELECT outbox_subscribe('new', 'https://example.com/', secret => 'short');
SELECT outbox_subscribe('new', 'https://example.com/', headers => '{"a b": "1"}');
SELECT outbox_subscribe('new', 'https://example.com/', format => 'xml');
SELECT outbox_subscribe('known', 'https://example.com/');
SELECT outbox_alter('none');
SELECT outbox_alter('known', url => 'ftp://example.com/');
SELECT outbox_alter('known', headers => '[]');
SELECT outbox_alter('known', max_in_flight => 0);
SELECT outbox_unsubscribe('none');
SELECT outbox_pause('none');
SELECT outbox_resume(NULL);
SELECT outbox_redrive('none');
SELECT outbox_redrive('known', '{NULL}');
SELECT outbox_ping('none');
SELECT outbox_retry('none');
SELECT outbox_retry('known', '{{1}}');
SELECT outbox_discard('none');
SELECT outbox_discard('known', '{{1}}');
SELECT outbox_replay('none', 1);
SELECT outbox_replay('known');
SELECT outbox_rotate_secret('none');
SELECT outbox_rotate_secret('known', NULL);
SELECT outbox_rotate_secret('known', '-1 s');
SELECT outbox_rotate_secret('known', secret => 'short');
SELECT outbox_adopt(NULL);
SELECT outbox_event_id(NULL);
SELECT stock_level('');
SELECT stock_verify('');
SELECT stock_reservation_status('');
SELECT idempotency_grant(NULL);
SELECT idempotency_grant_operator(NULL);
SELECT idempotency_grant_admin(0);
CREATE ROLE context_operator;
GRANT EXECUTE ON FUNCTION idempotency_grant(regrole) TO context_operator;
GRANT USAGE ON SCHEMA idempotency_internal TO context_operator;
GRANT EXECUTE ON FUNCTION idempotency_internal.idempotency_enter(),
	idempotency_internal.idempotency_raise(text, text, text),
	idempotency_internal.idempotency_grant_names(regrole, text[], text[], text[], boolean)
	TO context_operator;
SET ROLE context_operator;
SELECT idempotency_grant('context_operator');
RESET ROLE;
DROP OWNED BY context_operator;
DROP ROLE context_operator;
BEGIN ISOLATION LEVEL REPEATABLE READ;
ALTER TABLE idempotency_internal.stock_log DISABLE TRIGGER stock_guard;
SELECT idempotency_repair();
ROLLBACK;

-- The caller's own functions are named, the innermost first, also after an error
-- that they have caught.
CREATE FUNCTION pause_all(VARIADIC names text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..cardinality(names) LOOP
		BEGIN
			PERFORM outbox_pause(names[i]);
		EXCEPTION WHEN undefined_object THEN NULL;
		END;
	END LOOP;
	PERFORM outbox_pause(names[1]);
END
$$;
SELECT pause_all('none', 'known', 'nor this');
DO $$
BEGIN
	PERFORM stock_level('');
END
$$;
PREPARE pause(text) AS SELECT outbox_pause($1);
EXECUTE pause('none');

-- An error that is not the caller's says where it comes from.
CREATE FUNCTION context_of(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	context text;
BEGIN
	EXECUTE statement;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
	RETURN context;
END
$$;
BEGIN;
ALTER TABLE idempotency_internal.outbox_subscription
	ADD CONSTRAINT that_is_broken CHECK (state <> 'paused');
SELECT context_of($$ SELECT outbox_pause('known') $$) ~ 'outbox_pause.* at SQL statement';
ROLLBACK;

-- What raises them refuses what it cannot raise.
SELECT idempotency_internal.idempotency_raise(NULL, 'no state');
SELECT idempotency_internal.idempotency_raise('22023', NULL);
SELECT idempotency_internal.idempotency_raise('2202', 'too short');
SELECT idempotency_internal.idempotency_raise('2202x', 'no such character');
SELECT idempotency_internal.idempotency_raise('22023', 'as is: %s', 'a hint');

SELECT outbox_unsubscribe('known');
DROP FUNCTION pause_all, context_of;
