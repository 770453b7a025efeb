-- Moving stock from one item to another: both or none, and never more than is
-- available.  If this fails, units are lost or created between two places, or
-- are taken from a reservation.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
\pset null -
SELECT stock_receive('hat@north', 10);
SELECT outcome FROM stock_reserve('hat@north', 4, 'order 1');

-- The other item is created if necessary.
SELECT stock_transfer('hat@north', 'hat@south', 2, 'van 7', 'ann');
SELECT stock_transfer(from_sku => 'hat@north', to_sku => 'hat@south', quantity => 1);
SELECT sku, change, quantity, reservation, line, note,
	actor = session_user AS by_me, actor
FROM stock_log WHERE change = 'transfer' AND note IS NOT NULL ORDER BY id;
SELECT sku, change, quantity, reservation, line, note,
	actor = session_user AS by_me
FROM stock_log WHERE change = 'transfer' AND note IS NULL ORDER BY id;
SELECT sku, count(*), sum(quantity) FROM stock_history WHERE change = 'transfer'
GROUP BY 1 ORDER BY 1;
SELECT * FROM stock_levels ORDER BY sku;
SELECT * FROM stock_verify();

-- Reserved stock is never moved; lapsed reservations expire for it.
\set VERBOSITY terse
SELECT stock_transfer('hat@north', 'hat@south', 4);
SELECT stock_transfer('hat@north', 'hat@west', 4);
SELECT count(*) FROM stock_item WHERE sku = 'hat@west';
SELECT outcome FROM stock_reserve('hat@south', 3, 'order 2', ttl => '1 us');
SELECT stock_transfer('hat@south', 'hat@north', 3);
SELECT stock_confirm('order 2');
SELECT stock_transfer('hat@north', 'hat@south', 6);
SELECT available, reserved FROM stock_level('hat@north');
SELECT stock_transfer('hat@north', 'hat@south', 1);
SELECT * FROM stock_verify();

-- In one transaction with reserve, confirm and cancel: units that have just
-- arrived can be reserved, and cancelled ones can be moved.
BEGIN;
SELECT stock_transfer('hat@south', 'hat@east', 6);
SELECT outcome FROM stock_reserve('hat@east', 6, 'order 3');
SELECT stock_transfer('hat@east', 'hat@north', 1);
ROLLBACK;
BEGIN;
SELECT stock_transfer('hat@south', 'hat@east', 6);
SELECT outcome FROM stock_reserve('hat@east', 5, 'order 3');
SELECT stock_transfer('hat@east', 'hat@north', 1);
SELECT stock_confirm('order 3'), stock_cancel('order 1');
SELECT stock_transfer('hat@north', 'hat@east', 5);
SELECT outcome FROM stock_reserve('hat@north', 1, 'order 4');
SELECT * FROM stock_verify();
COMMIT;
SELECT * FROM stock_levels ORDER BY sku;
SELECT * FROM stock_verify();

-- There and back, and around in a circle.
BEGIN;
SELECT stock_transfer('hat@east', 'hat@north', 5),
	stock_transfer('hat@north', 'hat@south', 5),
	stock_transfer('hat@south', 'hat@east', 5);
COMMIT;
SELECT available FROM stock_level('hat@east');
SELECT * FROM stock_verify();

-- A rollback, also one to a savepoint, undoes both sides.
BEGIN;
SELECT stock_transfer('hat@east', 'hat@north', 1);
SAVEPOINT a;
SELECT stock_transfer('hat@east', 'hat@new', 2);
SELECT outcome FROM stock_reserve('hat@new', 1, 'order 5');
ROLLBACK TO a;
SELECT outcome FROM stock_reserve('hat@new', 1, 'order 5');
SELECT outcome, shortages FROM stock_reserve('hat@east', 5, 'order 5');
COMMIT;
BEGIN;
SELECT stock_transfer('hat@north', 'hat@east', 1);
ROLLBACK;
SELECT * FROM stock_verify();

-- A failed transfer is undone as a whole.
BEGIN;
SELECT stock_receive('hat@full', 9223372036854775807);
SAVEPOINT a;
SELECT stock_transfer('hat@east', 'hat@full', 1);
ROLLBACK TO a;
SELECT outcome, shortages FROM stock_reserve('hat@east', 5, 'order 5');
SELECT stock_transfer('hat@full', 'hat@huge', 9223372036854775807);
SELECT available FROM stock_level('hat@huge');
SELECT available FROM stock_level('hat@full');
SELECT stock_transfer('hat@huge', 'hat@full', 9223372036854775807);
SELECT sku, available, ok FROM stock_verify() ORDER BY 1;
ROLLBACK;

-- Before and after compaction.
SELECT sku, available, reserved, adjusted FROM stock_levels ORDER BY sku;
SELECT count(stock_compact_item(sku, 1)) FROM stock_item;
SELECT * FROM stock_verify();
SELECT count(stock_compact_item(sku, 1000)) FROM stock_item;
SELECT count(*) FROM stock_log;
SELECT sku, available, reserved, adjusted FROM stock_levels ORDER BY sku;
SELECT sku, received, adjusted, confirmed FROM stock_item
ORDER BY sku;
SELECT * FROM stock_verify();
SELECT stock_transfer('hat@east', 'hat@south', 4);
SELECT stock_transfer('hat@east', 'hat@south', 1);
SELECT * FROM stock_verify();
SELECT sku, count(*), sum(quantity) FROM stock_history WHERE change = 'transfer'
GROUP BY 1 ORDER BY 1;

-- An item that was sold out is announced.
BEGIN;
SET LOCAL idempotency.stock_events = on;
SELECT stock_transfer('hat@south', 'hat@east', 2),
	stock_transfer('hat@south', 'hat@east', 1), stock_transfer('hat@south', 'hat@new', 1);
SELECT key, topic, payload FROM outbox_log WHERE topic LIKE 'stock.%' ORDER BY position;
ROLLBACK;

BEGIN READ ONLY;
SELECT stock_transfer('hat@south', 'hat@east', 1);
ROLLBACK;
-- The log refuses a transfer with a reservation.
\set VERBOSITY sqlstate
INSERT INTO stock_log (sku, change, quantity, reservation)
VALUES ('hat@south', 'transfer', 1, 'order 1');
INSERT INTO stock_log (sku, change, quantity, line) VALUES ('hat@south', 'transfer', 1, 0);
INSERT INTO stock_log (sku, change, quantity) VALUES ('hat@south', 'transfer', 0);
TRUNCATE stock_log, stock_hold, stock_item, stock_history_0, stock_history_1,
	stock_history_2;
