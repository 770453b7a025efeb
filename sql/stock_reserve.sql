-- Reserving one item: reserved once however often it is called, never more
-- than is available.  If this fails, a retry reserves twice or the shop
-- oversells.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('tea', 10);
SELECT outcome, shortages,
	   expires_at - clock_timestamp()
		BETWEEN interval '14 min' AND interval '15 min' AS by_setting
FROM stock_reserve('tea', 6, 'order 1');
SELECT outcome, shortages,
	   expires_at - clock_timestamp()
		BETWEEN interval '1 day' AND interval '2 days' AS by_ttl
FROM stock_reserve(sku => 'tea', quantity => 1, reservation => 'order 2',
				   ttl => '2 days', actor => 'anna');
SELECT * FROM stock_level('tea');
SELECT reservation, line, sku, quantity FROM stock_hold ORDER BY 1;

-- Named arguments, literals and untyped parameters find the function.
SELECT outcome
FROM stock_reserve(sku => 'tea', quantity => '1', reservation => 'order 2');

-- Repeated: the same answer with the first one's expiry, and no new row.
SELECT r.outcome, r.expires_at = h.expires_at AS same_expiry, r.shortages
FROM stock_reserve('tea', 6, 'order 1', ttl => '5 days') r, stock_hold h
WHERE h.reservation = 'order 1';
BEGIN;
SELECT outcome FROM stock_reserve('tea', 6, 'order 1');
SELECT pg_current_xact_id_if_assigned() IS NULL AS nothing_written;
ROLLBACK;
SELECT * FROM stock_level('tea');

-- A shortage: nothing is reserved, and the name is still free.
SELECT * FROM stock_reserve('tea', 4, 'order 3');
SELECT outcome FROM stock_reserve('tea', 3, 'order 3');
SELECT * FROM stock_reserve('tea', 1, 'order 4');
SELECT * FROM stock_reserve('coffee', 1, 'order 4');

-- The same name with another quantity or another sku is not the same order.
\set SHOW_CONTEXT never
SELECT outcome FROM stock_reserve('tea', 5, 'order 1');
SELECT outcome FROM stock_reserve('coffee', 6, 'order 1');
\set VERBOSITY sqlstate
SELECT outcome FROM stock_reserve('tea', 5, 'order 1');

SELECT change, quantity, reservation, line, actor = session_user AS by_us
FROM stock_log ORDER BY id;
SELECT * FROM stock_verify();

TRUNCATE stock_log, stock_hold, stock_item;
