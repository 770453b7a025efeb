-- While idempotency.writes is off, no function writes, and all others work.
-- If this fails, a node without data of its own takes a claim that the node
-- with the data takes as well.

CREATE FUNCTION refuses(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
BEGIN
	EXECUTE 'SELECT ' || call;
	RETURN 'no: ' || call;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
	RETURN concat(CASE WHEN SQLSTATE <> '55000' THEN SQLSTATE || ' ' || call || ': ' END, message);
END
$$;

SELECT outcome FROM idem_claim('k', lease => '1 h');
SELECT stock_receive('hat', 3);
SELECT outbox_subscribe('s', NULL) IS NULL AS subscribed;

SET idempotency.writes = off;
\pset format unaligned
\pset tuples_only on
SELECT refuses(call) FROM unnest(ARRAY[
	$$idem_claim('k')$$, $$idem_claim_many('{k}')$$, $$idem_complete('k', 1)$$, $$idem_fail('k', 1)$$,
	$$idem_renew('k', 1)$$, $$idem_forget('k')$$, $$idem_erase('k')$$,
	$$idem_fence('s')$$, $$idem_unfence('s')$$, $$idem_import('{}')$$,
	$$outbox_enqueue('t', '{}')$$, $$outbox_cancel(1)$$, $$outbox_fetch('s')$$, $$outbox_ack('s', 1)$$,
	$$outbox_subscribe('other', NULL)$$, $$outbox_alter('s', max_in_flight => 2)$$, $$outbox_pause('s')$$, $$outbox_resume('s')$$,
	$$outbox_unsubscribe('s')$$, $$outbox_replay('s', 1)$$, $$outbox_redrive('s')$$, $$outbox_retry('s')$$, $$outbox_discard('s')$$, $$outbox_erase('k')$$,
	$$outbox_ping('s')$$, $$outbox_acknowledge_lost('s')$$, $$outbox_adopt()$$,
	$$outbox_topic('t')$$, $$outbox_drop_topic('t')$$,
	$$stock_receive('hat', 1)$$, $$stock_adjust('hat', 1, 'count')$$, $$stock_transfer('hat', 'cap', 1)$$, $$stock_backorder('hat', 1)$$,
	$$stock_reserve('hat', 1, 'r')$$, $$stock_reserve_many('{"hat": 1}', 'r')$$, $$stock_change_many('r', '{"hat": 1}')$$,
	$$stock_confirm('r')$$, $$stock_cancel('r')$$, $$stock_extend('r', '1 h')$$, $$stock_reinstate('r')$$
]) call;
\pset format aligned
\pset tuples_only off
SELECT * FROM stock_level('hat');
SELECT key, state FROM idem_keys WHERE key = 'k';
SELECT count(*) > 0 AS works FROM idempotency_status();

-- A role without privileges cannot switch it on.
CREATE ROLE writes_role;
SET ROLE writes_role;
SET idempotency.writes = on;
RESET ROLE;
DROP ROLE writes_role;

RESET idempotency.writes;
SELECT outcome FROM idem_claim('k');
SELECT outbox_unsubscribe('s');
SELECT idem_forget('k');
DROP FUNCTION refuses;
TRUNCATE stock_log, stock_hold, stock_item;
