/*
 * The first touches of a new server. An item without a log comes before: what a
 * session does for the first time is not measured. Prints the figures in
 * columns: after a restart, apart and mixed; with the pages in memory, apart
 * and mixed; in use.
 */

SELECT touch_ms('item-1') FROM generate_series(1, 10)
\g /dev/null

/* The first of the mixed ones has its pages read; those after it find them. */
SELECT first_touch_ms(array_agg('apart-' || n)) AS apart_cold
FROM generate_series(1, :items) n \gset
SELECT first_touch_ms('{mixed-1}') AS mixed_cold \gset
SELECT touch_ms('mixed-' || n) FROM generate_series(1, :items) n
\g /dev/null

/* Who changes a table by other means has all counters dropped. */
UPDATE idempotency_internal.stock_item SET adjusted = adjusted WHERE sku = 'item-1';
SELECT touch_ms('item-1')
\g /dev/null
SELECT first_touch_ms(array_agg('apart-' || n)) AS apart
FROM generate_series(1, :items) n \gset
SELECT first_touch_ms(array_agg('mixed-' || n)) AS mixed
FROM generate_series(1, :items) n \gset
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY touch_ms('mixed-' || n)) AS in_use
FROM generate_series(1, :items) n \gset

SELECT :apart_cold, :mixed_cold, :apart, :mixed, :in_use;
