-- Bad arguments: every parameter of every function raises a clear error with
-- its SQLSTATE, and nothing is changed.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('tea', 10);
SELECT outcome FROM stock_reserve('tea', 1, 'order 1');
\set VERBOSITY sqlstate
\set long 'repeat(''x'', 256)'

-- stock_receive
SELECT stock_receive(NULL, 1);
SELECT stock_receive('', 1);
SELECT stock_receive(:long, 1);
SELECT stock_receive('tea', NULL);
SELECT stock_receive('tea', 0);
SELECT stock_receive('tea', -1);
SELECT stock_receive('tea', 9223372036854775807);
SELECT stock_receive('tea', 1, repeat('x', 1001));
SELECT stock_receive('tea', 1, actor => '');
SELECT stock_receive('tea', 1, actor => :long);

-- stock_reserve, one sku
SELECT stock_reserve(NULL, 1, 'order 2');
SELECT stock_reserve('', 1, 'order 2');
SELECT stock_reserve(:long, 1, 'order 2');
SELECT stock_reserve('tea', NULL::bigint, 'order 2');
SELECT stock_reserve('tea', 0, 'order 2');
SELECT stock_reserve('tea', -1, 'order 2');
SELECT stock_reserve('tea', 1, NULL);
SELECT stock_reserve('tea', 1, '');
SELECT stock_reserve('tea', 1, :long);
SELECT stock_reserve('tea', 1, 'order 2', ttl => '0');
SELECT stock_reserve('tea', 1, 'order 2', ttl => '-1 s');
SELECT stock_reserve('tea', 1, 'order 2', ttl => '1 month -31 days');
SELECT stock_reserve('tea', 1, 'order 2', ttl => '300000 years');
SELECT stock_reserve('tea', 1, 'order 2', actor => '');
SELECT stock_reserve('tea', 1, 'order 2', actor => :long);

-- stock_reserve_many
SELECT stock_reserve_many(NULL, 'order 2');
SELECT stock_reserve_many('{}', 'order 2');
SELECT stock_reserve_many('[]', 'order 2');
SELECT stock_reserve_many('null', 'order 2');
SELECT stock_reserve_many('"tea"', 'order 2');
SELECT stock_reserve_many('1', 'order 2');
SELECT stock_reserve_many('{"tea": "1"}', 'order 2');
SELECT stock_reserve_many('{"tea": null}', 'order 2');
SELECT stock_reserve_many('{"tea": true}', 'order 2');
SELECT stock_reserve_many('{"tea": [1]}', 'order 2');
SELECT stock_reserve_many('{"tea": {"quantity": 1}}', 'order 2');
SELECT stock_reserve_many('{"tea": 0.5}', 'order 2');
SELECT stock_reserve_many('{"tea": 1e-9999}', 'order 2');
SELECT stock_reserve_many('{"tea": 0}', 'order 2');
SELECT stock_reserve_many('{"tea": -1}', 'order 2');
SELECT stock_reserve_many('{"tea": 9223372036854775808}', 'order 2');
SELECT stock_reserve_many('{"tea": 1e99}', 'order 2');
SELECT stock_reserve_many('{"": 1}', 'order 2');
SELECT stock_reserve_many(jsonb_build_object(:long, 1), 'order 2');
SELECT stock_reserve_many('[["tea", 1]]', 'order 2');
SELECT stock_reserve_many('["tea"]', 'order 2');
SELECT stock_reserve_many('[null]', 'order 2');
SELECT stock_reserve_many('[{}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "tea"}]', 'order 2');
SELECT stock_reserve_many('[{"quantity": 1}]', 'order 2');
SELECT stock_reserve_many('[{"sku": null, "quantity": 1}]', 'order 2');
SELECT stock_reserve_many('[{"sku": 7, "quantity": 1}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "", "quantity": 1}]', 'order 2');
SELECT stock_reserve_many(
	jsonb_build_array(jsonb_build_object('sku', :long, 'quantity', 1)), 'order 2');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": null}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": "1"}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": 0.5}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": 1}, {"sku": "tea", "quantity": 0}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": 1}, {"sku": "tea", "quantity": -1}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": 9223372036854775807}, {"sku": "tea", "quantity": 1}]', 'order 2');
SELECT stock_reserve_many('[{"sku": "tea", "quantity": 1}, ["cup"]]', 'order 2');
SELECT stock_reserve_many((SELECT jsonb_object_agg(i, 1)
	FROM generate_series(1, 10001) i), 'order 2');
SELECT stock_reserve_many((
	SELECT jsonb_agg('{"sku": "tea", "quantity": 1}'::jsonb)
	FROM generate_series(1, 10001)), 'order 2');
SELECT stock_reserve_many('{"tea": 1}', NULL);
SELECT stock_reserve_many('{"tea": 1}', '');
SELECT stock_reserve_many('{"tea": 1}', :long);
SELECT stock_reserve_many('{"tea": 1}', 'order 2', ttl => '0');
SELECT stock_reserve_many('{"tea": 1}', 'order 2', actor => '');
SELECT stock_reserve_many('{"tea": 1}', 'order 2', actor => :long);

-- stock_confirm, stock_cancel
SELECT stock_confirm(NULL);
SELECT stock_confirm('');
SELECT stock_confirm(:long);
SELECT stock_confirm('order 1', '{}');
SELECT stock_confirm('order 1', '{tea,NULL}');
SELECT stock_confirm('order 1', '{{tea}}');
SELECT stock_confirm('order 1', '{""}');
SELECT stock_confirm('order 1', array_fill('tea'::text, ARRAY[10001]));
SELECT stock_confirm('order 1', '{tea,cup}');
SELECT stock_confirm('order 1', actor => '');
SELECT stock_confirm('order 1', actor => :long);
SELECT stock_cancel(NULL);
SELECT stock_cancel('');
SELECT stock_cancel(:long);
SELECT stock_cancel('order 1', '{}');
SELECT stock_cancel('order 1', '{tea,NULL}');
SELECT stock_cancel('order 1', '{{tea}}');
SELECT stock_cancel('order 1', '{tea,cup}');
SELECT stock_cancel('order 1', actor => '');
SELECT stock_cancel('order 1', actor => :long);

-- stock_adjust
SELECT stock_adjust(NULL, 1, 'count');
SELECT stock_adjust('', 1, 'count');
SELECT stock_adjust('tea', NULL, 'count');
SELECT stock_adjust('tea', 0, 'count');
SELECT stock_adjust('tea', -9223372036854775808, 'count');
SELECT stock_adjust('tea', 9223372036854775807, 'count');
SELECT stock_adjust('tea', -10, 'count');
SELECT stock_adjust('tea', 1, repeat('x', 1001));
SELECT stock_adjust('jug', 1, 'count');
SELECT stock_adjust('tea', 1, 'count', actor => '');
SELECT stock_adjust('tea', 1, 'count', actor => :long);

-- stock_extend, stock_reinstate
SELECT stock_extend(NULL);
SELECT stock_extend('');
SELECT stock_extend('order 1', '0');
SELECT stock_extend('order 1', '-1 s');
SELECT stock_extend('order 1', '300000 years');
SELECT stock_reinstate(NULL);
SELECT stock_reinstate('');
SELECT stock_reinstate('order 1', '0');
SELECT stock_reinstate('order 1', actor => '');
SELECT stock_reinstate('order 1', actor => :long);

-- stock_transfer
SELECT stock_transfer(NULL, 'cup', 1);
SELECT stock_transfer('', 'cup', 1);
SELECT stock_transfer(:long, 'cup', 1);
SELECT stock_transfer('tea', NULL, 1);
SELECT stock_transfer('tea', '', 1);
SELECT stock_transfer('tea', :long, 1);
SELECT stock_transfer('tea', 'tea', 1);
SELECT stock_transfer('tea', 'cup', NULL);
SELECT stock_transfer('tea', 'cup', 0);
SELECT stock_transfer('tea', 'cup', -1);
SELECT stock_transfer('tea', 'cup', 10);
SELECT stock_transfer('tea', 'cup', 9223372036854775807);
SELECT stock_transfer('jug', 'tea', 1);
SELECT stock_transfer('tea', 'cup', 1, repeat('x', 1001));
SELECT stock_transfer('tea', 'cup', 1, actor => '');
SELECT stock_transfer('tea', 'cup', 1, actor => :long);

-- stock_level, stock_reservation_status, stock_verify, stock_expire
SELECT stock_level(NULL);
SELECT stock_level('');
SELECT stock_level(:long);
SELECT stock_reservation_status(NULL);
SELECT stock_reservation_status('');
SELECT stock_reservation_status(:long);
SELECT stock_verify('');
SELECT stock_verify(:long);
SELECT stock_expire(NULL);
SELECT stock_expire(0);

SELECT * FROM stock_levels;
SELECT count(*) FROM stock_log;

TRUNCATE stock_log, stock_hold, stock_item;
