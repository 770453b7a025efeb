
/*
 * Last part but one of an upgrade script: triggers that were disabled under the
 * version before, and what has come in meanwhile.
 */
SELECT @extschema@.idempotency_repair();
