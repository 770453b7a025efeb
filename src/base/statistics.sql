/*
 * base: the numbers that monitoring systems collect, of all modules.  Counts
 * are in shared memory, and begin with the server or the last reset.
 */

CREATE VIEW idempotency_workers AS
SELECT w.kind, w.number, w.pid, w.started_at, w.starts, w.last_success_at,
	w.errors, w.last_error_at, w.last_error
FROM idempotency_internal.idempotency_workers() w;
COMMENT ON VIEW idempotency_workers IS
	'The sweeper and the relays of this database: when each has started and worked, and the errors and warnings that they have logged.';

CREATE FUNCTION idempotency_internal.outbox_traffic(
	OUT subscription bigint, OUT answered_2xx bigint, OUT answered_4xx bigint,
	OUT answered_410 bigint, OUT answered_429 bigint, OUT answered_5xx bigint,
	OUT answered_other bigint, OUT timeouts bigint,
	OUT connection_errors bigint, OUT request_seconds double precision,
	OUT delivery_seconds double precision)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_traffic() IS
	'Internal: what relays have sent to each subscription.';

CREATE FUNCTION idempotency_internal.outbox_latencies(
	OUT subscription bigint, OUT measure text, OUT le double precision,
	OUT count bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_latencies() IS
	'Internal: how many requests and deliveries of each subscription took at most so many seconds.';

CREATE FUNCTION idempotency_internal.idempotency_counted_since()
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_counted_since() IS
	'Internal: when the counters of this database were set to 0; null: nothing is counted.';

CREATE VIEW outbox_stats WITH (security_barrier) AS
SELECT s.name, c.since,
	coalesce(t.answered_2xx, 0) AS answered_2xx,
	coalesce(t.answered_4xx, 0) AS answered_4xx,
	coalesce(t.answered_410, 0) AS answered_410,
	coalesce(t.answered_429, 0) AS answered_429,
	coalesce(t.answered_5xx, 0) AS answered_5xx,
	coalesce(t.answered_other, 0) AS answered_other,
	coalesce(t.timeouts, 0) AS timeouts,
	coalesce(t.connection_errors, 0) AS connection_errors,
	coalesce(t.request_seconds, 0) AS request_seconds,
	coalesce(t.delivery_seconds, 0) AS delivery_seconds
FROM idempotency_internal.outbox_subscription s
LEFT JOIN idempotency_internal.outbox_traffic() t ON t.subscription = s.id
CROSS JOIN idempotency_internal.idempotency_counted_since() c(since)
WHERE s.url IS NOT NULL;
COMMENT ON VIEW outbox_stats IS
	'The requests that relays have sent for each subscription, by the kind of answer, and how long requests and deliveries have taken in all.';

CREATE VIEW outbox_latency WITH (security_barrier) AS
SELECT s.name, l.measure, l.le, l.count
FROM idempotency_internal.outbox_subscription s
JOIN idempotency_internal.outbox_latencies() l ON l.subscription = s.id;
COMMENT ON VIEW outbox_latency IS
	'Histograms for each subscription: how many requests, and how many deliveries of events, took at most le seconds.';

CREATE FUNCTION idempotency_internal.stock_counts(
	OUT since timestamptz, OUT reserved bigint, OUT insufficient bigint,
	OUT queued bigint, OUT confirmed bigint, OUT cancelled bigint,
	OUT expired bigint)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.stock_counts() IS
	'Internal: the counters that stock_stats shows.';

CREATE VIEW stock_stats WITH (security_barrier) AS
SELECT c.*, n.waiting, n.overdue, n.counters_used, n.counters_in_use,
	n.counters_max
FROM idempotency_internal.stock_counts() c,
	idempotency_internal.stock_numbers() n;
COMMENT ON VIEW stock_stats IS
	'Stock statistics: what reservations were answered and how they ended, what waits, and the counters in shared memory.';

CREATE FUNCTION idempotency_internal.idempotency_reset_counters()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idempotency_reset_counters() IS
	'Internal: sets the counters of claims, stock and workers to 0.';

CREATE FUNCTION idempotency_stats_reset()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_enter();
	PERFORM idempotency_internal.idempotency_reset_counters();
	PERFORM idempotency_internal.outbox_forget_traffic(ARRAY(
		SELECT t.subscription FROM idempotency_internal.outbox_traffic() t));
	PERFORM idempotency_internal.idempotency_record('idempotency_stats_reset');
END
$$;
COMMENT ON FUNCTION idempotency_stats_reset() IS
	'Sets all counters of this database to 0, at once and even if the transaction is rolled back.';
