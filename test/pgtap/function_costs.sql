-- Functions that write cost more than any condition.  If this fails, WHERE
-- is_due(id) AND (idem_claim(id)).outcome = 'claimed' claims keys of other
-- rows.
BEGIN;
SELECT plan(4);

CREATE TEMP VIEW function AS
	SELECT p.proname::text AS name, p.procost AS cost,
		p.pronamespace = 'idempotency_internal'::regnamespace AS internal
	FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE e.extname = 'idempotency' AND p.prorettype <> 'trigger'::regtype;

-- public_api.sql has the costs of the others.
SELECT set_eq($$ SELECT name FROM function WHERE internal AND cost < 10000 $$,
	ARRAY[
	'idem_counters', 'idem_evicted', 'idem_fence_check_scope', 'idem_next_to_empty', 'idem_sample', 'idem_size', 'idem_status',
	'idempotency_enter', 'idempotency_raise',
	'idempotency_horizon', 'idempotency_is_quiet', 'idempotency_is_served', 'idempotency_last_check',
	'idempotency_library_status', 'idempotency_may_repair', 'idempotency_next_xid',
	'idempotency_counted_since', 'idempotency_preloaded_version', 'idempotency_prevent_write', 'idempotency_refuse_trigger',
	'idempotency_require_preload', 'idempotency_restoring', 'idempotency_setting_status',
	'idempotency_table_status', 'idempotency_trigger_state',
	'idempotency_triggers', 'idempotency_worker_status', 'idempotency_workers',
	'outbox_changes', 'outbox_check_endpoint', 'outbox_check_event', 'outbox_check_headers',
	'outbox_check_positions', 'outbox_read_public_key', 'outbox_check_schema', 'outbox_check_secret', 'outbox_check_subscription',
	'outbox_check_subscription_row',
	'outbox_check_topic', 'outbox_check_url', 'outbox_dead_letters', 'outbox_is_at_home', 'outbox_check_without_url', 'outbox_check_credentials', 'outbox_derive_public_key', 'outbox_erase_check', 'outbox_require_directory', 'outbox_filter_is_predicate', 'outbox_flights', 'outbox_handled', 'outbox_has_drawn', 'outbox_identity',
	'outbox_is_announced', 'outbox_last_position', 'outbox_may_forget', 'outbox_is_cancelled', 'outbox_is_sendable', 'outbox_is_wanted', 'outbox_latencies', 'outbox_log_size', 'outbox_log_space', 'outbox_volume',
	'outbox_milliseconds', 'outbox_partition_number',
	'outbox_partitions_behind', 'outbox_rate', 'outbox_rate_limited', 'outbox_retired_to',
	'outbox_same_origin', 'outbox_schedule_valid', 'outbox_shares',
	'outbox_start_position', 'outbox_timeline', 'outbox_status', 'outbox_subscription_id',
	'outbox_turns', 'outbox_url_refused', 'outbox_subscription_status', 'outbox_topics_valid', 'outbox_traffic', 'outbox_troubles', 'outbox_unreplicated_since',
	'stock_check_reservation', 'stock_check_sku', 'stock_counter', 'stock_counter_marks', 'stock_counters_unchanged',
	'stock_counters', 'stock_counts', 'stock_crowded', 'stock_may_lapse', 'stock_missing', 'stock_names', 'stock_numbers',
	'stock_status'],
	'these internal functions read or check, and are cheap');
SELECT is_empty($$ SELECT name, cost FROM function
	WHERE cost > 100 AND cost <> 10000 $$,
	'all others write, and have one cost');

-- PL/pgSQL functions have a cost of 100 by default.
CREATE FUNCTION is_due(id integer) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN id = 3; END';
SELECT results_eq($$ SELECT id FROM generate_series(1, 5) id
	WHERE (idem_claim('due-' || id)).outcome = 'claimed'
		AND is_due(id) $$, '{3}'::integer[],
	'a claim in WHERE comes after the other condition');
SELECT is((SELECT array_agg(key) FROM idem_key WHERE key LIKE 'due-%'),
	'{due-3}'::text[],
	'and claims nothing that this one rejects');

SELECT * FROM finish();
ROLLBACK;
