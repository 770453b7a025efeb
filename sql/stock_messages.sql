-- Messages about bad arguments.  stock_errors has their SQLSTATEs.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

\set SHOW_CONTEXT never
SELECT stock_receive(NULL, 1);
SELECT stock_receive('', 1);
SELECT stock_receive(repeat('x', 256), 1);
SELECT stock_receive('tea', 0);
SELECT stock_receive('tea', NULL);
SELECT stock_reserve_many('{}', 'order 1');
SELECT stock_reserve_many((SELECT jsonb_object_agg(i, 1)
	FROM generate_series(1, 10001) i), 'order 1');
SELECT stock_reserve('tea', 1, 'order 1', ttl => '0');
SELECT stock_reserve('tea', 1, 'order 1', ttl => '300000 years');
SELECT stock_reserve_many('"tea"', 'order 1');
SELECT stock_reserve_many('["tea"]', 'order 1');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": 1}, {"sku": "cup"}]', 'order 1');
SELECT stock_reserve_many('[{"sku": 7, "quantity": 1}]', 'order 1');
SELECT stock_reserve_many('{"tea": 0.5}', 'order 1');
SELECT stock_reserve_many('{"tea": "2"}', 'order 1');
SELECT stock_reserve_many('{"tea": 9223372036854775808}', 'order 1');
SELECT stock_reserve_many('{"tea": 1e400}', 'order 1');
SELECT stock_reserve_many('{"tea": 1e-100}', 'order 1');
SELECT stock_reserve_many('{"sku": "tea", "quantity": 1}', 'order 1');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": 9223372036854775807}, {"sku": "tea", "quantity": 1}]', 'order 1');
SELECT stock_transfer('jug', 'tea', 1);
SELECT stock_transfer('jug', 'jug', 1);
SELECT stock_transfer('tea', NULL, 1);
SELECT stock_adjust('jug', 1, 'count');
SELECT stock_confirm('order 1', '{}');

-- Lengths are counted in bytes.
SELECT stock_level(repeat('ä', 128));
SELECT * FROM stock_level(repeat('ä', 127));

SELECT stock_receive('tea', 1);
SELECT stock_adjust('tea', -2, 'count');
SELECT stock_transfer('tea', 'cup', 2);
BEGIN;
SELECT stock_receive('tea', 9223372036854775800);
ROLLBACK;
BEGIN;
UPDATE stock_item SET adjusted = 1 WHERE sku = 'tea';
SELECT outcome FROM stock_reserve('tea', 1, 'order 1');
ROLLBACK;
-- In a function that is wrongly marked as parallel safe, an error is raised.
CREATE TABLE many AS SELECT i FROM generate_series(1, 1000) i;
CREATE FUNCTION reserve(i integer)
RETURNS text
LANGUAGE plpgsql PARALLEL SAFE AS
	$$ BEGIN RETURN (stock_reserve('tea', 1, 'order ' || i)).outcome; END $$;
BEGIN;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SET LOCAL parallel_leader_participation = off;
SELECT count(reserve(i)) FROM many;
ROLLBACK;
DROP TABLE many;
DROP FUNCTION reserve;
TRUNCATE stock_log, stock_hold, stock_item;
