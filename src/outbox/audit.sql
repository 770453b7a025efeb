/*
 * outbox: what the audit says of changes of subscriptions (base/audit.sql).
 */

/*
 * A column that is not in the list is left out.  The end of an overlap is set
 * to null by the sweeper.
 */
CREATE FUNCTION idempotency_internal.outbox_changes(
	before idempotency_internal.outbox_subscription,
	after idempotency_internal.outbox_subscription)
RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_object_agg(c.key, CASE
		WHEN c.key = 'url' THEN
			to_jsonb(regexp_replace(c.value #>> '{}', '^([a-zA-Z]+://)([^/?#]*@)?([^/?#]*).*$', '\1\3'))
		WHEN c.key = 'headers' AND jsonb_typeof(c.value) = 'object' THEN
			(SELECT coalesce(jsonb_agg(h ORDER BY h), '[]')
			FROM jsonb_object_keys(c.value) h)
		WHEN c.value = 'null' THEN '"none"'
		WHEN c.value #>> '{}' LIKE 'file:%' THEN c.value
		WHEN c.key = ANY ('{headers, secret, signing_key, filter}') THEN
			'"changed"'
		ELSE c.value END)
	FROM jsonb_each(to_jsonb(after)) c
	WHERE c.key = ANY ('{name, url, topics, secret, headers, format, ordered,
			max_in_flight, timeout, retry_schedule, partitions, state, reason,
			rate_limit, batch, filter, signing_key, authorization_file,
			client_certificate, priority, keep_deliveries, old_until,
			old_key_until}')
		AND coalesce(to_jsonb(before) -> c.key, 'null') <> c.value
		AND (c.value <> 'null' OR c.key <> ALL ('{old_until, old_key_until}'))
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_changes(
	idempotency_internal.outbox_subscription,
	idempotency_internal.outbox_subscription) IS
	'Internal: the settings of a subscription that a change has changed, as the audit may show them; null: none.';

/*
 * A function that changes a subscription first adds its record, and this adds
 * the details: what is changed, or what was there if it is deleted.  All other
 * changes are external DML, or those of a relay, which disables a subscription
 * whose receiver answers 410.  A restore inserts rows, and a restored audit is
 * to be that of the original.
 */
CREATE FUNCTION idempotency_internal.outbox_subscription_audited()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription text;
	changes      jsonb;
BEGIN
	IF TG_WHEN <> 'AFTER' OR TG_RELID <> 'idempotency_internal.outbox_subscription'::regclass
		OR (TG_LEVEL = 'STATEMENT') <> (TG_OP = 'TRUNCATE') THEN
		PERFORM idempotency_internal.idempotency_refuse_trigger('outbox_subscription_audited');
	END IF;
	IF TG_OP = 'INSERT' THEN
		subscription := NEW.name;
		changes := idempotency_internal.outbox_changes(NULL, NEW);
	ELSIF TG_OP = 'UPDATE' THEN
		subscription := OLD.name;
		changes := idempotency_internal.outbox_changes(OLD, NEW);
		IF changes IS NULL THEN
			RETURN NULL;
		END IF;
	ELSIF TG_OP = 'DELETE' THEN
		subscription := OLD.name;
		changes := idempotency_internal.outbox_changes(NULL, OLD);
	END IF;
	UPDATE idempotency_internal.idempotency_audit_record r
	SET details = changes
	WHERE r.details IS NULL AND r.ctid = (
		SELECT a.ctid FROM idempotency_internal.idempotency_audit_record a
		WHERE a.object = subscription AND a.alters AND a.at >= now()
			AND a.xid = pg_current_xact_id()
		ORDER BY a.at DESC NULLS LAST LIMIT 1);
	IF NOT FOUND AND TG_OP <> 'INSERT' THEN
		PERFORM idempotency_internal.idempotency_record(
			coalesce((SELECT s.backend_type
				FROM pg_stat_get_activity(pg_backend_pid()) s
				WHERE s.backend_type LIKE 'idempotency %'), TG_OP),
			subscription, changes, true);
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION idempotency_internal.outbox_subscription_audited() IS
	'Internal: adds to the audit how a subscription was changed.';
CREATE TRIGGER outbox_subscription_audited
	AFTER INSERT OR UPDATE OR DELETE
	ON idempotency_internal.outbox_subscription FOR EACH ROW
	EXECUTE FUNCTION idempotency_internal.outbox_subscription_audited();
CREATE TRIGGER outbox_subscription_truncate_audited
	AFTER TRUNCATE ON idempotency_internal.outbox_subscription
	FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.outbox_subscription_audited();
