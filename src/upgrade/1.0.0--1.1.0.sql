/*
 * From 1.0.0 to 1.1.0.  lock.sql has the rules.
 *
 * The library of 1.1 serves the objects of 1.0.0 until this has committed.
 */

DROP VIEW IF EXISTS idempotency_internal.stock_incomplete;
