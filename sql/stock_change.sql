-- stock_change_many, and reservations that are made anew.  If this fails, a cart
-- that is changed holds other quantities than it says, or a line that was left
-- out comes back.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
SELECT stock_receive('cup', 10), stock_receive('pot', 5), stock_receive('tea', 3);
CREATE FUNCTION change(name text, lines jsonb, OUT outcome stock_settlement, OUT shortages jsonb)
LANGUAGE sql AS 'SELECT outcome, shortages FROM stock_change_many(name, lines)';
CREATE VIEW cart AS SELECT sku, available, reserved FROM stock_levels ORDER BY sku;

-- Other quantities and other lines, all of them or none.
SELECT outcome FROM stock_reserve_many('{"cup": 2, "pot": 1}', 'order 1');
SELECT * FROM change('order 1', '{"cup": 3, "tea": 1}');
SELECT * FROM cart;
SELECT lines FROM stock_reservation_status('order 1');
SELECT * FROM change('order 1', '{"cup": 11, "pot": 1, "tea": 3}');
SELECT * FROM change('order 1', '{"cup": 1, "gone": 1}');
SELECT * FROM cart;
SELECT * FROM change('order 1', '{"cup": 10}');
SELECT * FROM cart;

-- A repetition changes nothing, neither does a reservation with these lines.
SELECT count(*) AS rows FROM stock_log \gset
SELECT * FROM change('order 1', '[{"sku": "cup", "quantity": 4}, {"sku": "cup", "quantity": 6}]');
SELECT outcome FROM stock_reserve_many('{"cup": 10}', 'order 1');
SELECT count(*) - :rows AS rows FROM stock_log;
\set VERBOSITY sqlstate
SELECT outcome FROM stock_reserve_many('{"cup": 2, "pot": 1}', 'order 1');
\set VERBOSITY default
SELECT * FROM stock_verify();

-- The expiry becomes later, never earlier.
SELECT expires_at AS before FROM stock_reservation_status('order 1') \gset
SELECT expires_at = :'before' FROM stock_change_many('order 1', '{"cup": 9}', ttl => '1 s');
SELECT expires_at > now() + interval '59 min' FROM stock_change_many('order 1', '{"cup": 9}', ttl => '1 h');
SELECT expires_at > now() + interval '119 min' FROM stock_change_many('order 1', '{"cup": 8}', ttl => '2 h');

-- What was left out does not come back.
SELECT * FROM change('order 1', '{"cup": 1, "pot": 2, "tea": 1}');
SELECT * FROM change('order 1', '{"pot": 3}');
SELECT stock_cancel('order 1', '{cup}'), stock_cancel('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT lines FROM stock_reservation_status('order 1');
SELECT * FROM cart;
SELECT stock_confirm('order 1');
SELECT * FROM change('order 1', '{"pot": 1}');
SELECT state, lines FROM stock_reservation_status('order 1');
SELECT id > 0 AS id, change, quantity, line, sku, lines, actor = session_user AS mine
FROM stock_history WHERE reservation = 'order 1' ORDER BY stock_history.id;

-- Lines that are settled stay settled.
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1, "tea": 1}', 'order 2');
SELECT stock_confirm('order 2', '{cup}'), stock_cancel('order 2', '{tea}');
SELECT * FROM change('order 2', '{"cup": 2, "pot": 2}');
SELECT lines FROM stock_reservation_status('order 2');
SELECT * FROM change('order 2', '{"pot": 2}');
SELECT lines FROM stock_reservation_status('order 2');
SELECT * FROM change('order 2', '{"cup": 2, "pot": 2}');
SELECT stock_confirm('order 2', '{tea}'), stock_confirm('order 2', '{cup}'), stock_confirm('order 2');
SELECT lines FROM stock_reservation_status('order 2');
SELECT line, change, quantity FROM stock_history WHERE reservation = 'order 2' AND sku = 'cup' ORDER BY id;
SELECT * FROM stock_verify();

-- Reservations that are not open.
SELECT * FROM change('order 3', '{"cup": 1}');
SELECT outcome FROM stock_reserve('cup', 1, 'order 3', ttl => '1 us');
SELECT * FROM change('order 3', '{"cup": 2}');
SELECT stock_cancel('order 3');
SELECT outcome FROM stock_reserve('cup', 1, 'order 4');
SELECT stock_cancel('order 4');
SELECT * FROM change('order 4', '{"cup": 2}');

-- Wrong arguments.
\set VERBOSITY sqlstate
SELECT stock_change_many('order 4', '{}');
SELECT stock_change_many('order 4', NULL);
SELECT stock_change_many(NULL, '{"cup": 1}');
SELECT stock_change_many('', '{"cup": 1}');
SELECT stock_change_many('order 4', '{"cup": 0}');
SELECT stock_change_many('order 4', '{"cup": 1}', ttl => '-1 s');
SELECT stock_change_many('order 4', '{"cup": 1}', actor => '');
SELECT stock_reserve('cup', 1, 'order 4', anew => NULL);
SELECT stock_reserve_many('{"cup": 1}', 'order 4', anew => NULL);
SELECT stock_reserve_many('{"cup": 1}', 'order 4', partial => NULL);
\set VERBOSITY default

-- Anew: after a cancellation or an expiry, if the caller says so.
SELECT stock_receive('pot', 3);
\set VERBOSITY terse
SELECT outcome FROM stock_reserve('cup', 2, 'order 4');
\set VERBOSITY default
SELECT outcome FROM stock_reserve('cup', 2, 'order 4', anew => true);
SELECT outcome FROM stock_reserve('cup', 2, 'order 4', anew => true);
SELECT outcome FROM stock_reserve('cup', 2, 'order 4');
SELECT outcome FROM stock_reserve('tea', 1, 'order 3', anew => true);
SELECT lines FROM stock_reservation_status('order 3');
SELECT outcome FROM stock_reserve('cup', 1, 'order 5', ttl => '1 us', anew => true);
SELECT outcome FROM stock_reserve('cup', 2, 'order 5', anew => true);
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 6', anew => true);
SELECT stock_cancel('order 6', '{cup}'), stock_confirm('order 6');
\set VERBOSITY terse
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 6', anew => true);
SELECT outcome FROM stock_reserve('tea', 2, 'order 4', anew => true);
\set VERBOSITY default
SELECT outcome, shortages FROM stock_reserve('tea', 3, 'order 7', anew => true);
SELECT outcome FROM stock_reserve_many('{"cup": 1, "tea": 1}', 'order 8');
SELECT stock_cancel('order 8');
SELECT outcome, shortages FROM stock_reserve_many('{"tea": 9}', 'order 8', anew => true);
SELECT outcome FROM stock_reserve('tea', 1, 'order 8', anew => true);
SELECT outcome FROM stock_reserve('tea', 1, 'order 8', anew => true);
SELECT stock_cancel('order 8'), stock_confirm('order 8');
SELECT state, lines FROM stock_reservation_status('order 8');
SELECT * FROM stock_verify();

-- Partial: what there is.
SELECT * FROM cart;
SELECT outcome, shortages FROM stock_reserve_many('{"cup": 100, "gone": 1, "tea": 1}', 'order 9', partial => true);
SELECT outcome, shortages FROM stock_reserve_many('{"cup": 100, "gone": 1, "tea": 1}', 'order 9', partial => true);
\set VERBOSITY sqlstate
SELECT stock_reserve_many('{"cup": 100, "gone": 1, "tea": 1}', 'order 9');
SELECT stock_reserve_many('{"cup": 1, "tea": 1}', 'order 9', partial => true);
\set VERBOSITY default
SELECT outcome, shortages FROM stock_reserve_many('{"cup": 1, "gone": 1}', 'order 10', partial => true);
SELECT outcome, shortages FROM stock_reserve_many('{"cup": 1}', 'order 10', partial => true);
SELECT outcome, shortages FROM stock_reserve_many('{"pot": 1}', 'order 10', partial => true);
SELECT lines FROM stock_reservation_status('order 9');
SELECT * FROM cart;
SELECT * FROM stock_verify();

-- Lapsed reservations make way for a change and for a partial order.
SELECT outcome FROM stock_reserve('pot', 1, 'order 11', ttl => '1 us');
SELECT outcome, shortages FROM stock_reserve_many('{"pot": 100}', 'order 12', partial => true);
SELECT stock_receive('jug', 2);
SELECT outcome FROM stock_reserve('jug', 1, 'order 13');
SELECT outcome FROM stock_reserve('jug', 1, 'order 14', ttl => '1 us');
SELECT * FROM change('order 13', '{"jug": 2}');

-- All of it in a savepoint that is rolled back.
BEGIN;
SAVEPOINT a;
SELECT * FROM change('order 13', '{"jug": 1}');
SELECT outcome FROM stock_reserve('jug', 1, 'order 14', anew => true);
ROLLBACK TO a;
SELECT available FROM stock_level('jug');
COMMIT;
SELECT * FROM stock_verify();
DROP VIEW cart;
DROP FUNCTION change;
TRUNCATE stock_log, stock_hold, stock_item;
