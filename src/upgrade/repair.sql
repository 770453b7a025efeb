
/*
 * The part of an upgrade script before the last: repairs the effects of
 * triggers that were disabled under the previous version.
 */
SELECT @extschema@.idempotency_repair();
