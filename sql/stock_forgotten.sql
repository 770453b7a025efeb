-- An order knows how many lines it had.  Rows of a hot item leave log and
-- history sooner than those of others: an order that is known only in part is
-- unknown, and as long as one line is open all are remembered.  If this fails,
-- an order comes back in part, or one that is settled in part counts as a new
-- one.
\getenv dir PG_ABS_SRCDIR
\set db regress_stock_forgotten
\i :dir/sql/include/ring.sql
\set VERBOSITY sqlstate
\i :dir/sql/include/forget_hot.sql
CREATE FUNCTION reserve(lines text, name text)
RETURNS stock_outcome
LANGUAGE sql AS
	'SELECT outcome FROM stock_reserve_many(lines::jsonb, name)';
CREATE VIEW known AS SELECT reservation, line, sku, change, lines
	FROM stock_history WHERE line IS NOT NULL;
SELECT stock_receive('hot', 100), stock_receive('cold', 100);

-- An order that is settled in part is another order, whatever is still open.
SELECT reserve('{"hot": 1, "cold": 1}', 'order 1');
SELECT stock_confirm('order 1', '{hot}');
SELECT reserve('{"cold": 1}', 'order 1');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 1');
SELECT reserve('{"cold": 2}', 'order 1');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 2');
SELECT reserve('{"cold": 1}', 'order 2');
SELECT stock_cancel('order 2', '{hot}');
SELECT reserve('{"cold": 1}', 'order 2');
SELECT outcome FROM stock_reinstate('order 2');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 2');
SELECT reserve('{"cold": 1}', 'order 2');
SELECT stock_cancel('order 2', '{hot}');

-- Orders whose lines are all settled.
SELECT reserve('{"hot": 1, "cold": 1}', 'order 3'), stock_cancel('order 3');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 4'), stock_confirm('order 4');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 5'),
	stock_confirm('order 5', '{hot}'), stock_cancel('order 5');
SELECT reserve('{"hot": 1}', 'order 6'), stock_cancel('order 6');
SELECT stock_confirm('order 4', '{hot}'), stock_confirm('order 5', '{cold}');
SELECT * FROM known ORDER BY reservation, line;

CALL forget_hot();
SELECT * FROM known ORDER BY reservation, line;
SELECT * FROM stock_verify();

-- While one line is open, all lines are known.
SELECT stock_confirm('order 1', '{hot}'), stock_cancel('order 1', '{hot}');
SELECT reserve('{"cold": 1}', 'order 1');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 1');
SELECT stock_cancel('order 2', '{hot}'), (stock_extend('order 2')).outcome;
SELECT outcome FROM stock_reinstate('order 2');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 2');

-- No line is open, and one is forgotten.
SELECT outcome FROM stock_reinstate('order 3');
SELECT stock_cancel('order 3'), stock_confirm('order 3'),
	(stock_extend('order 3')).outcome;
SELECT stock_cancel('order 3', '{hot}'), stock_cancel('order 3', '{cold}'),
	stock_confirm('order 3', '{jug}');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 3');
SELECT reserve('{"cold": 1}', 'order 3');
SELECT stock_confirm('order 4'), stock_confirm('order 4', '{hot}'),
	stock_confirm('order 4', '{cold}');
SELECT stock_cancel('order 5'), (stock_reinstate('order 5')).outcome;
SELECT stock_confirm('order 6'), reserve('{"hot": 1}', 'order 6');

-- All lines are settled in the end, and forgotten together.
SELECT stock_confirm('order 1'), stock_confirm('order 1');
SELECT stock_confirm('order 1', '{jug}');
CALL forget_hot();
SELECT stock_confirm('order 1');
SELECT reserve('{"hot": 1, "cold": 1}', 'order 1');

-- Rows of 0.2.0 lack the number of lines: a gap shows that one is missing.
INSERT INTO stock_log (quantity, change, line, sku, reservation) VALUES
	(1, 'cancel', 1, 'cold', 'order 7'), (1, 'cancel', 0, 'cold', 'order 8'),
	(1, 'confirm', 0, 'hot', 'order 9');
INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku) VALUES
	(1, now() + interval '1 h', 1, 'order 9', 'cold'),
	(1, now() + interval '1 h', 0, 'order 10', 'cold');
INSERT INTO stock_log (quantity, change, sku, reservation)
VALUES (1, 'reserve', 'cold', 'order 7'), (1, 'reserve', 'cold', 'order 8'),
	(1, 'reserve', 'cold', 'order 9'), (1, 'reserve', 'hot', 'order 9'),
	(1, 'reserve', 'cold', 'order 10');
SELECT (stock_reinstate('order 7')).outcome, stock_cancel('order 7');
SELECT (stock_reinstate('order 8')).outcome, reserve('{"cold": 1}', 'order 8');
SELECT reserve('{"cold": 1}', 'order 10'), stock_confirm('order 10'),
	stock_confirm('order 10');
SELECT reserve('{"cold": 1}', 'order 9');
CALL forget_hot();
SELECT stock_confirm('order 9', '{hot}'), stock_confirm('order 9'),
	stock_confirm('order 9');
SELECT * FROM stock_verify();
\i :dir/sql/include/ring_end.sql
