/*
 * relay: SQL functions that check and sign what a webhook consists of.  The
 * checks are called by outbox_subscribe().
 */

CREATE FUNCTION idempotency_internal.outbox_check_url(url text)
RETURNS void
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_url(text) IS
	'Internal: raises an error unless events can be sent to this URL.';

CREATE FUNCTION idempotency_internal.outbox_url_refused(url text)
RETURNS text
LANGUAGE C STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_url_refused(text) IS
	'Internal: which setting does not allow requests to a URL; null: they are allowed.';

CREATE FUNCTION idempotency_internal.outbox_same_origin(one text, other text)
RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_same_origin(text, text) IS
	'Internal: do two URLs have the same scheme, host and port?';

CREATE FUNCTION idempotency_internal.outbox_check_secret(secret text)
RETURNS void
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_check_secret(text) IS
	'Internal: raises an error unless this is a secret that can sign events.';

CREATE FUNCTION idempotency_internal.outbox_forget_traffic(
	subscriptions bigint[])
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_forget_traffic(bigint[]) IS
	'Internal: sets the counters of these subscriptions to 0.';

CREATE FUNCTION outbox_secret_generate()
RETURNS text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_secret_generate() IS
	'A new random secret for signing events, in the format of Standard Webhooks.';

CREATE FUNCTION outbox_signature(
	secret text, id text, "timestamp" bigint, body text)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_signature(text, text, bigint, text) IS
	'The Standard Webhooks signature of a body. A receiver can compare the header webhook-signature with it.';

CREATE FUNCTION idempotency_internal.outbox_derive_public_key(signing_key text)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_derive_public_key(text) IS
	'Internal: the public key of a signing key; raises an error unless it can sign events.';

CREATE FUNCTION idempotency_internal.outbox_read_public_key(
	url text, signing_key text)
RETURNS text
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.outbox_read_public_key(text, text) IS
	'Internal: the public key of a signing key that is in a file; null: it is not.';

CREATE FUNCTION outbox_key_generate()
RETURNS text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_key_generate() IS
	'A new random Ed25519 key for signing events, in the format of Standard Webhooks.';
