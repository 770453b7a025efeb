/*
 * base: the audit, which records every administrative call, in the transaction
 * of the call: who, when and what.  No record has a secret, the value of a
 * header, or more of a URL than scheme, host and port.
 */

/*
 * Records are only inserted, and deleted when idempotency.audit_retention is
 * over.  alters: the settings of the subscription named by object were changed.
 * The order of the second index is one that the first cannot have: a search for
 * the last change of a subscription must not walk through those of all others.
 */
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
COMMENT ON TABLE idempotency_internal.idempotency_audit_record IS
	'Administrative calls.  See the view idempotency_audit.';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.idempotency_audit_record', '');

CREATE VIEW idempotency_audit AS
SELECT at, role, session_role, action, object, details
FROM idempotency_internal.idempotency_audit_record;
COMMENT ON VIEW idempotency_audit IS
	'Administrative calls, and changes of subscriptions by external DML: when, by which role, and what was changed.';

/*
 * The caller is a SECURITY DEFINER function, in which current_user is the owner
 * of the extension.  The setting role still has what the session has set.  In
 * a read-only transaction there is nothing to record: only
 * idempotency_stats_reset and idempotency_repair come here, and the latter has
 * found nothing to change.
 */
CREATE FUNCTION idempotency_internal.idempotency_record(
	action text, object text DEFAULT NULL, details jsonb DEFAULT NULL,
	alters boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF current_setting('transaction_read_only')::boolean THEN
		RETURN;
	END IF;
	INSERT INTO idempotency_internal.idempotency_audit_record
		(role, session_role, action, object, details, alters)
	VALUES (
		coalesce(nullif(current_setting('role'), 'none'), session_user),
		session_user, action, object, nullif(jsonb_strip_nulls(details), '{}'),
		alters);
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_record(
	text, text, jsonb, boolean) IS
	'Internal: adds a record to the audit.';

/*
 * The functions that grant call this with the privileges of their caller, who
 * needs none on it (base/grant.c).
 */
CREATE FUNCTION idempotency_internal.idempotency_record_grant(
	action text, role regrole)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.idempotency_record(action,
		(SELECT r.rolname::text FROM pg_roles r WHERE r.oid = role));
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_record_grant(
	text, regrole) IS
	'Internal: adds to the audit that a role was granted privileges.';

/*
 * The sweeper calls this all the time, so it looks for a record before it
 * deletes any.  Its session may have planned this when the table was empty.
 */
CREATE FUNCTION idempotency_internal.idempotency_expire_audit(
	max_records integer)
RETURNS boolean
LANGUAGE plpgsql STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 10000
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
	retention text := current_setting('idempotency.audit_retention');
	expired   timestamptz;
	deleted   integer;
BEGIN
	IF retention = '-1' THEN
		RETURN false;
	END IF;
	SELECT max(r.at) INTO expired FROM (
		SELECT a.at FROM idempotency_internal.idempotency_audit_record a
		WHERE a.at <
			(SELECT clock_timestamp() - retention::interval)
		ORDER BY a.at LIMIT max_records) r;
	IF expired IS NULL THEN
		RETURN false;
	END IF;
	DELETE FROM idempotency_internal.idempotency_audit_record a
	WHERE a.at <= expired;
	GET DIAGNOSTICS deleted = ROW_COUNT;
	RETURN deleted >= max_records;
END
$$;
COMMENT ON FUNCTION idempotency_internal.idempotency_expire_audit(integer) IS
	'Internal: deletes records of the audit that are older than idempotency.audit_retention; true: call it again.';
