-- For tests of reservations that the history of stock has forgotten: makes the
-- procedure forget_hot, which compacts item "hot" and drops its rows.
\set ECHO none
CREATE PROCEDURE forget_hot() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM stock_receive('hot', 1);	-- so that the table has a row
	PERFORM stock_compact_item('hot', 100000);
	UPDATE stock_ring SET opened_at = opened_at - interval '4 days'
	WHERE state = 'current';
	PERFORM stock_forget();
	COMMIT;
	UPDATE stock_ring SET closed_at = closed_at - interval '7 days' WHERE state = 'old';
	FOR i IN 1..1000 LOOP
		PERFORM stock_forget();
		COMMIT;
		EXIT WHEN NOT EXISTS (SELECT FROM stock_ring WHERE state IN ('old', 'retired'));
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
\set ECHO all
