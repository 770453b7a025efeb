-- Extending a reservation: it expires so long from now, never earlier than
-- before, and cannot be extended after it has ended.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

SELECT stock_receive('cup', 10), stock_receive('pot', 10);
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 1', ttl => '1 min');
CREATE VIEW lasts AS SELECT reservation, line,
	date_trunc('hour', expires_at - clock_timestamp() + interval '1 min')
		AS hours
FROM stock_hold;
SELECT * FROM lasts ORDER BY 1, 2;

CREATE TABLE extended AS SELECT * FROM stock_extend('order 1', '2 h');
SELECT outcome, expires_at = (SELECT min(expires_at) FROM stock_hold) AS as_held
FROM extended;
SELECT * FROM lasts ORDER BY 1, 2;
SELECT outcome, expires_at > clock_timestamp() + interval '1 h' AS as_before
FROM stock_extend('order 1', '1 h');
SELECT * FROM lasts ORDER BY 1, 2;
SELECT outcome, expires_at > clock_timestamp() + interval '1 h' AS as_before
FROM stock_extend('order 1');

-- The open lines of a reservation that was confirmed in part; then there are
-- none.
SELECT stock_confirm('order 1', '{cup}');
SELECT outcome FROM stock_extend('order 1', '3 h');
SELECT * FROM lasts ORDER BY 1, 2;
SELECT stock_cancel('order 1');
SELECT * FROM stock_extend('order 1', '3 h');
SELECT * FROM stock_extend('order 9', '3 h');

-- Too late: it has lapsed, and expires now.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 1, 'order 2', ttl => '1 us');
SELECT * FROM stock_extend('order 2', '3 h');
SELECT * FROM stock_extend('order 2', '3 h');
SELECT change, quantity FROM stock_log WHERE reservation = 'order 2' ORDER BY id;
ROLLBACK;
SELECT * FROM stock_verify();

DROP VIEW lasts;
DROP TABLE extended;
TRUNCATE stock_log, stock_hold, stock_item;
