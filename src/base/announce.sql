/*
 * Very last part of install and upgrade scripts: the launcher shall look at
 * what is here when this has committed.
 */
CREATE FUNCTION idempotency_internal.idempotency_announce()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
SELECT idempotency_internal.idempotency_announce();
DROP FUNCTION idempotency_internal.idempotency_announce();
