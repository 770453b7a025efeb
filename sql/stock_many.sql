-- Reserving many items: all or none, with a list of all shortages.  If this
-- fails, an order is reserved in part, or learns of its shortages one by one.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 5), stock_receive('pot', 2), stock_receive('tea', 10);

SELECT outcome, shortages FROM stock_reserve_many('{"tea": 3, "cup": 2.0}', 'order 1');

-- One sku on two lines is added up.
SELECT outcome, shortages
FROM stock_reserve_many('[{"sku": "cup", "quantity": 2}, {"sku": "pot", "quantity": 1}, {"sku": "cup", "quantity": 2}]', 'order 2');
SELECT outcome, shortages
FROM stock_reserve_many('[{"sku": "cup", "quantity": 2}, {"sku": "pot", "quantity": 1}, {"sku": "cup", "quantity": 1}]', 'order 2');
SELECT reservation, sku, quantity FROM stock_hold ORDER BY 1, 2;

-- An object is the same order as an array; other members of a line are ignored.
SELECT outcome FROM stock_reserve_many('{"cup": 3, "pot": 1}', 'order 2');
SELECT outcome FROM stock_reserve_many('[{"sku": "cup", "quantity": 3.0, "price": 7}, {"sku": "pot", "quantity": 1e0, "sku ": {}}]', 'order 2');
\set VERBOSITY sqlstate
SELECT outcome FROM stock_reserve_many('{"cup": 3}', 'order 2');
SELECT outcome FROM stock_reserve('cup', 2, 'order 2');
\set VERBOSITY default
-- A duplicate key of an object has its last value, as always in jsonb.
BEGIN;
SELECT outcome FROM stock_reserve_many('{"tea": 5, "tea": 1}', 'order 7');
SELECT sku, quantity FROM stock_hold WHERE reservation = 'order 7';
-- A single line is the same order by either function.
SELECT outcome FROM stock_reserve('tea', 1, 'order 7');
ROLLBACK;

-- For drivers that know no types, the server finds the type of every parameter.
BEGIN;
PREPARE one AS SELECT outcome FROM stock_reserve($1, $2, $3);
EXECUTE one('tea', 1, 'order 7');
PREPARE many AS SELECT outcome, shortages FROM stock_reserve_many($1, $2);
EXECUTE many('{"tea": 1, "pot": 1}', 'order 8');
EXECUTE many('{"tea": 1, "pot": 9}', 'order 9');
PREPARE all_of_it AS SELECT outcome FROM stock_reserve_many($1, $2, $3, $4);
EXECUTE all_of_it('[{"sku": "tea", "quantity": 1}]', 'order 9', '1 h', 'clerk');
PREPARE settle AS SELECT stock_confirm($1), stock_cancel($2),
	(stock_reinstate($3)).outcome, (stock_extend($4)).outcome;
EXECUTE settle('order 7', 'order 8', 'order 8', 'order 9');
PREPARE move AS SELECT stock_transfer($1, $2, $3);
EXECUTE move('tea', 'jug', 1);
ROLLBACK;
DEALLOCATE ALL;

-- The order of the lines does not matter.
SELECT outcome FROM stock_reserve_many('[{"sku": "pot", "quantity": 1}, {"sku": "cup", "quantity": 3}]', 'order 2');

-- All lines that fall short are listed, and no others.
SELECT outcome FROM stock_reserve_many('{"cup": 4, "pot": 9, "tea": 1}', 'order 3');
SELECT s.* FROM stock_reserve_many('{"cup": 4, "pot": 9, "tea": 1}', 'order 3') r,
	jsonb_to_recordset(r.shortages) s (sku text, wanted bigint,
		available bigint, missing bigint);

-- An unknown sku is distinguished from a shortage, and does not hide it.
SELECT outcome FROM stock_reserve_many('{"jug": 1, "pot": 9, "tea": 1}', 'order 3');
SELECT s.* FROM stock_reserve_many('{"jug": 1, "pot": 9, "tea": 1}', 'order 3') r,
	jsonb_to_recordset(r.shortages) s (sku text, wanted bigint,
		available bigint, missing bigint);
SELECT * FROM stock_levels ORDER BY sku;

-- A rollback to a savepoint undoes all lines.
BEGIN;
SAVEPOINT s;
SELECT outcome FROM stock_reserve_many('{"pot": 1, "tea": 7}', 'order 4');
ROLLBACK TO s;
SELECT outcome FROM stock_reserve('tea', 7, 'order 5');
COMMIT;
SELECT * FROM stock_verify();

-- An order of many lines is settled as a whole, and in part.
SELECT count(stock_receive('item ' || i, 9)) FROM generate_series(1, 50) i;
SELECT outcome
FROM stock_reserve_many((SELECT jsonb_object_agg('item ' || i, 2)
	FROM generate_series(1, 50) i), 'order 6');
SELECT stock_cancel('order 6', '{item 7,item 50}');
SELECT count(*) FROM stock_hold WHERE reservation = 'order 6';
SELECT stock_confirm('order 6');
SELECT available, reserved, count(*), bool_and(ok) AS ok
FROM stock_verify() WHERE sku LIKE 'item %' GROUP BY available, reserved
ORDER BY available;


-- The largest number of lines, in both forms, and names that JSON has to
-- escape.
BEGIN;
SELECT outcome, jsonb_array_length(shortages)
FROM stock_reserve_many((SELECT jsonb_object_agg(i, 1)
	FROM generate_series(1, 10000) i), 'order 10');
SELECT outcome, shortages
FROM stock_reserve_many((
	SELECT jsonb_agg('{"sku": "tea", "quantity": 1}'::jsonb)
	FROM generate_series(1, 10000)), 'order 10');
SELECT stock_receive('tea', 3);
SELECT stock_receive(E'a "quoted"\n\\ sku', 1);
SELECT outcome, shortages
FROM stock_reserve_many(jsonb_build_object(E'a "quoted"\n\\ sku', 2), 'order 10');
SELECT outcome, shortages FROM stock_reserve_many('{"tea": 9223372036854775807}', 'order 10');
ROLLBACK;

BEGIN READ ONLY;
SELECT outcome FROM stock_reserve_many('{"tea": 1}', 'order 11');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*), count(stock_receive(sku, 3)) FROM unnest('{tea,pot}'::text[]) sku;
SELECT outcome FROM stock_reserve_many('{"tea": 1, "pot": 1}', 'order 11');
SELECT stock_confirm('order 11');
COMMIT;
SELECT stock_confirm('order 11');
SELECT available, ok FROM stock_verify('tea');
TRUNCATE stock_log, stock_hold, stock_item;
