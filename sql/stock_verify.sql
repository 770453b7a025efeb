-- stock_verify finds what is wrong when the tables are changed behind its
-- back.  If this fails, it says ok to a stock that is not.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10), stock_receive('pot', 10);
SELECT outcome FROM stock_reserve(stock_lines('{"cup": 4, "pot": 3}'), 'order 1');
SELECT outcome FROM stock_reserve(stock_lines('{"cup": 2, "pot": 1}'), 'order 2');
SELECT stock_confirm('order 2', '{cup}'), stock_cancel('order 2', '{pot}');
SELECT * FROM stock_verify();
SELECT * FROM stock_verify('pot');
SELECT * FROM stock_verify(sku => 'jug');

-- An item's row, each counter; a counter that would oversell is refused.
BEGIN;
UPDATE stock_item SET received = 11, adjusted = -1, confirmed = 3, reserved = 2 WHERE sku = 'cup';
SELECT * FROM stock_verify();
SELECT ok FROM stock_verify('pot');
ROLLBACK;
\set VERBOSITY sqlstate
UPDATE stock_item SET reserved = 9 WHERE sku = 'cup';
UPDATE stock_item SET confirmed = -1 WHERE sku = 'cup';
\set VERBOSITY default

-- A hold that is gone, that has changed, that has no item.
BEGIN;
DELETE FROM stock_hold WHERE sku = 'cup';
UPDATE stock_hold SET quantity = 5;
INSERT INTO stock_hold VALUES ('order 9', 'jug', 1, 'nobody', now(), now() + interval '1 h');
SELECT * FROM stock_verify();
ROLLBACK;

-- The log: a row that is gone, an item that is gone.
BEGIN;
DELETE FROM stock_log WHERE sku = 'cup' AND change = 'confirm';
DELETE FROM stock_item WHERE sku = 'pot';
SELECT * FROM stock_verify();
ROLLBACK;
SELECT * FROM stock_verify();

TRUNCATE stock_hold, stock_item, stock_log;
