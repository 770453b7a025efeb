/*
 * Last part of the install and upgrade scripts: makes the launcher look into
 * this database when the transaction has committed.
 */
CREATE FUNCTION idempotency_internal.idempotency_announce()
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME';
SELECT idempotency_internal.idempotency_announce();
DROP FUNCTION idempotency_internal.idempotency_announce();
