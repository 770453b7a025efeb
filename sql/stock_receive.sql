-- Receiving stock: the item is created, quantities add up, and the log has
-- actor and note.  If this fails, the available quantity is wrong from the
-- start.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('tea', 10, 'first delivery');
SELECT available FROM stock_receive(sku => 'tea', quantity => 5);
SELECT stock_receive('Tea', 1);
SELECT * FROM stock_level('tea');
SELECT * FROM stock_levels ORDER BY sku;
SELECT sku, change, quantity, reservation, actor = session_user AS by_us, note
FROM stock_log ORDER BY id;

-- An item that was never received has no level, which differs from a level of
-- zero.
SELECT * FROM stock_level('coffee');

-- Reserved stock is not available to the caller either.
SELECT outcome FROM stock_reserve('tea', 4, 'order 1');
SELECT stock_receive('tea', 1);
SELECT * FROM stock_level('tea');

-- A rollback leaves nothing behind, not even the item.
BEGIN;
SELECT stock_receive('coffee', 7);
ROLLBACK;
SELECT * FROM stock_level('coffee');

-- The counters hold a bigint.
SELECT stock_receive('sand', 9223372036854775807);
\set VERBOSITY sqlstate
SELECT stock_receive('sand', 1);
\set VERBOSITY default
SELECT * FROM stock_level('sand');
SELECT * FROM stock_verify();

TRUNCATE stock_log, stock_hold, stock_item;
