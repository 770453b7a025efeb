/*
 * From 1.0.0 to 1.1.0.  lock.sql has the rules.
 *
 * The library of 1.1 serves the objects of 1.0.0 until this has committed.
 */

DROP VIEW IF EXISTS idempotency_internal.stock_incomplete;

/* ---- audit ---- */

CREATE TABLE idempotency_internal.idempotency_audit_record (
	at           timestamptz NOT NULL DEFAULT clock_timestamp(),
	role         text NOT NULL,
	session_role text NOT NULL,
	action       text NOT NULL,
	object       text COLLATE "C",
	details      jsonb,
	alters       boolean NOT NULL,
	xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
	CONSTRAINT idempotency_audit_record_at_check
		CHECK (pg_catalog.isfinite(at))
);
CREATE INDEX idempotency_audit_record_at_idx
	ON idempotency_internal.idempotency_audit_record (at);
CREATE INDEX idempotency_audit_record_altered_idx
	ON idempotency_internal.idempotency_audit_record
		(object, at DESC NULLS LAST) WHERE alters;
ALTER TABLE idempotency_internal.idempotency_audit_record
	REPLICA IDENTITY FULL;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.idempotency_audit_record', '');

/* They get their bodies and other columns below. */
CREATE FUNCTION idempotency_internal.outbox_subscription_audited()
RETURNS trigger
LANGUAGE plpgsql
AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER outbox_subscription_audited
	AFTER INSERT OR UPDATE OR DELETE
	ON idempotency_internal.outbox_subscription FOR EACH ROW
	EXECUTE FUNCTION idempotency_internal.outbox_subscription_audited();
CREATE TRIGGER outbox_subscription_truncate_audited
	AFTER TRUNCATE ON idempotency_internal.outbox_subscription
	FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.outbox_subscription_audited();
CREATE VIEW idempotency_audit AS SELECT pg_catalog.now() AS at;
DO $$
DECLARE
	owner pg_catalog.regrole;
BEGIN
	SELECT extowner INTO STRICT owner FROM pg_catalog.pg_extension
	WHERE extname = 'idempotency';
	EXECUTE pg_catalog.format('ALTER VIEW idempotency_audit OWNER TO %s', owner);
END
$$;
GRANT SELECT ON idempotency_audit TO pg_monitor;

/* Each read of deferred deliveries has an index in its order. */
DROP INDEX IF EXISTS idempotency_internal.outbox_delivery_due_at_idx;
CREATE INDEX outbox_delivery_due_at_idx
	ON idempotency_internal.outbox_delivery
		(subscription, partition, due_at, position)
	WHERE state = 'waiting';
CREATE INDEX outbox_delivery_other_key_idx
	ON idempotency_internal.outbox_delivery (subscription, key, position)
	WHERE key IS NOT NULL AND NOT blocks_key;
CREATE INDEX outbox_delivery_dead_position_idx
	ON idempotency_internal.outbox_delivery (subscription, position)
	WHERE state = 'dead';
CREATE INDEX outbox_subscription_old_idx
	ON idempotency_internal.outbox_subscription
		(least(old_until, old_key_until));
CREATE INDEX outbox_subscription_keep_idx
	ON idempotency_internal.outbox_subscription (keep_deliveries)
	WHERE keep_deliveries IS NOT NULL;

/* stock_history searches for rows without a line, too, by reservation. */
DROP INDEX IF EXISTS idempotency_internal.stock_log_settled;
CREATE INDEX stock_log_settled ON idempotency_internal.stock_log (reservation)
	WHERE reservation IS NOT NULL;

/*
 * Each is made by one read of its table, and stays empty but for rows of 0.2.0.
 */
CREATE INDEX IF NOT EXISTS stock_history_0_reserved
	ON idempotency_internal.stock_history_0 (reservation)
	WHERE change = 'reserve';
CREATE INDEX IF NOT EXISTS stock_history_1_reservation_idx1
	ON idempotency_internal.stock_history_1 (reservation)
	WHERE change = 'reserve';
CREATE INDEX IF NOT EXISTS stock_history_2_reservation_idx1
	ON idempotency_internal.stock_history_2 (reservation)
	WHERE change = 'reserve';
