-- Savepoints: what was taken or added since is undone by a rollback to the
-- savepoint, and kept by its release, also in nested ones.  If this fails,
-- units are lost or promised twice.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10);
-- What a transaction can still take.
CREATE FUNCTION free(sku text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	short jsonb;
BEGIN
	SELECT shortages INTO short FROM stock_reserve(sku, 1000, 'too many');
	RETURN (short -> 0 ->> 'available')::bigint;
END
$$;

BEGIN;
SELECT outcome FROM stock_reserve('cup', 1, 'order 1');
SAVEPOINT a;
SELECT outcome FROM stock_reserve('cup', 2, 'order 2');
SAVEPOINT b;
SELECT outcome FROM stock_reserve('cup', 3, 'order 3');
SELECT free('cup');
RELEASE b;
SELECT free('cup');
ROLLBACK TO a;
SELECT free('cup');
SELECT outcome FROM stock_reserve('cup', 4, 'order 2');
SELECT free('cup');
ROLLBACK TO a;
RELEASE a;
SELECT free('cup');
COMMIT;
SELECT free('cup');

-- Additions, and what was taken of them.
BEGIN;
SAVEPOINT a;
SELECT stock_receive('cup', 5);
SAVEPOINT b;
SELECT outcome FROM stock_reserve('cup', 12, 'order 4');
SELECT free('cup');
ROLLBACK TO b;
SELECT free('cup');
SELECT outcome FROM stock_reserve('cup', 3, 'order 5');
RELEASE b;
ROLLBACK TO a;
SELECT free('cup');
SELECT outcome FROM stock_reserve('cup', 10, 'order 6');
COMMIT;

-- An item that is created after the savepoint, and one that is first touched
-- then.
BEGIN;
SAVEPOINT a;
SELECT stock_receive('jug', 5);
SELECT outcome FROM stock_reserve('jug', 1, 'order 7');
ROLLBACK TO a;
SELECT outcome FROM stock_reserve('jug', 1, 'order 7');
SELECT stock_receive('jug', 2);
SAVEPOINT b;
SELECT outcome FROM stock_reserve('jug', 2, 'order 8');
ROLLBACK TO b;
SELECT free('jug');
COMMIT;
SELECT free('jug');

-- Exception blocks; a cancel and a confirm that are rolled back.
DO $$
BEGIN
	FOR i IN 1..100 LOOP
		BEGIN
			PERFORM stock_cancel('order 1');
			PERFORM stock_reserve('cup', 10, 'order ' || 100 + i);
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
			PERFORM stock_confirm('order ' || 100 + i);
		END;
	END LOOP;
END
$$;
SELECT free('cup');
SELECT reservation, sku, quantity FROM stock_hold ORDER BY 1;

-- The whole transaction.
BEGIN;
SELECT stock_cancel('order 1'), stock_receive('cup', 7);
SELECT outcome FROM stock_reserve('cup', 17, 'order 9');
ROLLBACK;
SELECT free('cup');
SELECT * FROM stock_verify();

DROP FUNCTION free;
TRUNCATE stock_log, stock_hold, stock_item;
