-- Pre-orders: stock_backorder lets an item be promised before it comes in, up to
-- a limit.  If this fails, more is promised than the limit, or less.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
CREATE VIEW shelf AS
	SELECT sku, available, reserved, received, adjusted, confirmed, backorder FROM stock_levels ORDER BY sku;

-- A new item, of which nothing is on hand.
SELECT stock_backorder('album', 10, note => 'until May', actor => 'ann');
SELECT outcome FROM stock_reserve('album', 4, 'pre-order 1');
SELECT outcome, shortages FROM stock_reserve('album', 7, 'pre-order 2');
SELECT outcome FROM stock_reserve('album', 6, 'pre-order 2');
SELECT * FROM stock_level('album');

-- Orders can be confirmed before anything comes in.
SELECT stock_confirm('pre-order 1');
SELECT * FROM shelf;
SELECT * FROM stock_verify();

-- It is a limit, not a change: a repetition changes nothing.
SELECT stock_backorder('album', 10);
SELECT stock_backorder('album', 12);
SELECT stock_backorder('album', 11);
SELECT * FROM shelf;
\set VERBOSITY sqlstate
SELECT stock_backorder('album', 9);
\set VERBOSITY default
SELECT stock_backorder('album', 9);

-- What comes in is available beyond that.
SELECT stock_receive('album', 5);
SELECT stock_cancel('pre-order 2');
SELECT * FROM shelf;
SELECT stock_backorder('album', 0);
SELECT * FROM shelf;
SELECT * FROM stock_verify();

-- In the log, and when that is compacted.
SELECT change, quantity, note, actor = 'ann' AS ann FROM stock_history WHERE change = 'backorder' ORDER BY id;
SELECT stock_backorder('album', 3);
SELECT stock_compact_item('album', 100) > 0 AS compacted;
SELECT * FROM shelf;
SELECT * FROM stock_verify();
SELECT stock_backorder('album', 2);
SELECT * FROM shelf;

-- Savepoints.
BEGIN;
SAVEPOINT one;
SELECT stock_backorder('album', 20);
SELECT outcome FROM stock_reserve('album', 15, 'pre-order 3');
ROLLBACK TO one;
SELECT outcome FROM stock_reserve('album', 15, 'pre-order 3');
COMMIT;
SELECT * FROM shelf;

-- Bad arguments.
SELECT stock_backorder('album', -1);
SELECT stock_backorder('album', NULL);
SELECT stock_backorder(NULL, 1);
SELECT stock_backorder('', 1);
SELECT stock_backorder('album', 9223372036854775807);
SELECT stock_backorder('album', 1, actor => '');
BEGIN READ ONLY;
SELECT stock_backorder('album', 1);
ROLLBACK;
SELECT * FROM shelf;

-- An item of which there is nothing.
SELECT stock_backorder('scarf', 0);
SELECT outcome FROM stock_reserve('scarf', 1, 'pre-order 4');
SELECT * FROM stock_verify();

DROP VIEW shelf;
TRUNCATE stock_log, stock_item, stock_hold;
