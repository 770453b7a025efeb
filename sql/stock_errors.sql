-- Bad arguments: every parameter of every function gets a clear error with
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
SELECT stock_reserve('tea', 1, 'order 2', actor => NULL);
SELECT stock_reserve('tea', 1, 'order 2', actor => '');
SELECT stock_reserve('tea', 1, 'order 2', actor => :long);

-- stock_reserve, many
SELECT stock_reserve(NULL::stock_line[], 'order 2');
SELECT stock_reserve('{}'::stock_line[], 'order 2');
SELECT stock_reserve(ARRAY[NULL::stock_line], 'order 2');
SELECT stock_reserve(ARRAY[ARRAY[('tea', 1)::stock_line]], 'order 2');
SELECT stock_reserve(ARRAY[('tea', 1), NULL]::stock_line[], 'order 2');
SELECT stock_reserve(ARRAY[('tea', 1), (NULL, 1)]::stock_line[], 'order 2');
SELECT stock_reserve(ARRAY[('tea', 1), ('cup', NULL)]::stock_line[], 'order 2');
SELECT stock_reserve(ARRAY[('tea', 1), ('tea', 0)]::stock_line[], 'order 2');
SELECT stock_reserve(ARRAY[('tea', 9223372036854775807), ('tea', 1)]::stock_line[], 'order 2');
SELECT stock_reserve(array_fill(('tea', 1)::stock_line, ARRAY[10001]), 'order 2');
SELECT stock_reserve(stock_lines('{"tea": 1}'), NULL);
SELECT stock_reserve(stock_lines('{"tea": 1}'), 'order 2', ttl => '0');
SELECT stock_reserve(stock_lines('{"tea": 1}'), 'order 2', actor => '');

-- stock_lines
SELECT stock_lines(NULL);
SELECT stock_lines('[["tea", 1]]');
SELECT stock_lines('"tea"');
SELECT stock_lines('{"tea": "1"}');
SELECT stock_lines('{"tea": null}');
SELECT stock_lines('{"tea": 0.5}');
SELECT stock_lines('{"tea": 0}');
SELECT stock_lines('{"tea": -1}');
SELECT stock_lines('{"tea": 1e99}');
SELECT stock_lines('{"": 1}');
SELECT stock_reserve(stock_lines('{}'), 'order 2');

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
SELECT stock_cancel(NULL);
SELECT stock_cancel('');
SELECT stock_cancel(:long);
SELECT stock_cancel('order 1', '{}');
SELECT stock_cancel('order 1', '{tea,NULL}');
SELECT stock_cancel('order 1', '{{tea}}');
SELECT stock_cancel('order 1', '{tea,cup}');

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
-- stock_extend, stock_reinstate
SELECT stock_extend(NULL);
SELECT stock_extend('');
SELECT stock_extend('order 1', '0');
SELECT stock_extend('order 1', '-1 s');
SELECT stock_extend('order 1', '300000 years');
SELECT stock_reinstate(NULL);
SELECT stock_reinstate('');
SELECT stock_reinstate('order 1', '0');
-- stock_level, stock_verify, stock_expire
SELECT stock_level(NULL);
SELECT stock_level('');
SELECT stock_level(:long);
SELECT stock_verify('');
SELECT stock_verify(:long);
SELECT stock_expire(NULL);
SELECT stock_expire(0);

SELECT * FROM stock_levels;
SELECT count(*) FROM stock_log;

TRUNCATE stock_log, stock_hold, stock_item;
