-- A line that is settled, reinstated and settled again has several rows, which
-- leave the history one after another.  If an older row is kept for longer than
-- a newer one, a confirmed line counts as expired and is reserved again; if a
-- cancelled line is kept for longer than the reinstatement that has left it
-- closed, a later reinstatement opens it.
\getenv dir PG_ABS_SRCDIR
\set db regress_stock_reinstated
\i :dir/sql/include/ring.sql
\set VERBOSITY sqlstate
-- A table takes rows for 3.5 days, and is dropped when it has been closed for 7.
CREATE PROCEDURE four_days_pass() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM stock_receive('hot', 1);	-- so that the table has a row
	PERFORM stock_compact_item('hot', 100000);
	UPDATE stock_ring SET opened_at = opened_at - interval '4 days',
		closed_at = closed_at - interval '4 days';
	COMMIT;
	FOR i IN 1..1000 LOOP
		PERFORM stock_forget();
		COMMIT;
		EXIT WHEN NOT EXISTS (SELECT FROM stock_ring WHERE state = 'retired'
			OR closed_at < clock_timestamp() - interval '7 days'
			OR (state = 'current' AND opened_at < clock_timestamp() - interval '3 days'));
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
CREATE FUNCTION rows_of(name text)
RETURNS text
LANGUAGE sql AS $$
	SELECT string_agg(change || ' ' || sku, ', ' ORDER BY id)
	FROM stock_history WHERE reservation = name AND line IS NOT NULL
$$;
CREATE PROCEDURE lapse(name text) LANGUAGE sql AS
	'UPDATE stock_hold SET expires_at = clock_timestamp() - interval ''1 s'' WHERE reservation = name';
SELECT stock_receive('hot', 100), stock_receive('cold', 100);

-- While a line is open, all rows are kept, the newer ones for as long as the
-- older ones.
SELECT outcome FROM stock_reserve_many('{"hot": 1, "cold": 1}', 'order 1');
CALL lapse('order 1');
SELECT stock_cancel('order 1');
CALL four_days_pass();
SELECT outcome FROM stock_reinstate('order 1');
SELECT stock_confirm('order 1', '{hot}');
CALL four_days_pass();
CALL four_days_pass();
SELECT stock_cancel('order 1');
CALL four_days_pass();
SELECT rows_of('order 1');
SELECT stock_confirm('order 1', '{hot}'), stock_cancel('order 1', '{hot}');
SELECT outcome FROM stock_reinstate('order 1');
SELECT sku FROM stock_hold WHERE reservation = 'order 1';
SELECT stock_cancel('order 1');

-- After the last line is closed, a reinstatement is kept for as long as a line
-- that it has left cancelled, and no longer.
SELECT outcome FROM stock_reserve_many('{"hot": 1, "cold": 1}', 'order 2');
SELECT stock_cancel('order 2', '{cold}');
CALL lapse('order 2');
SELECT outcome FROM stock_reinstate('order 2');
CALL four_days_pass();
SELECT stock_cancel('order 2');
CALL four_days_pass();
CALL four_days_pass();
SELECT rows_of('order 2');
SELECT outcome FROM stock_reinstate('order 2');
SELECT sku FROM stock_hold WHERE reservation = 'order 2';
SELECT stock_cancel('order 2');
SELECT count(stock_compact_item('cold', 1000));
CALL four_days_pass();
CALL four_days_pass();
CALL four_days_pass();
CALL four_days_pass();
CALL four_days_pass();
SELECT rows_of('order 1'), rows_of('order 2');
SELECT * FROM stock_verify();
\i :dir/sql/include/ring_end.sql
