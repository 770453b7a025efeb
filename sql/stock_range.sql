-- Near the limit of bigint: a receipt is refused if it is too much for what is
-- on hand, reserved or not.  If this fails, a reservation can neither be
-- confirmed nor cancelled, nor expire, and the levels cannot be read.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
\set max 9223372036854775807
\set SHOW_CONTEXT never
\set VERBOSITY sqlstate

SELECT stock_receive('cup', :max);
SELECT outcome FROM stock_reserve('cup', 5, 'order 1');
SELECT stock_receive('cup', 5);
SELECT stock_adjust('cup', 1, 'found');
SELECT stock_cancel('order 1');
SELECT outcome FROM stock_reinstate('order 1');
SELECT stock_receive('cup', 1);
SELECT * FROM stock_levels;
SELECT * FROM stock_verify();

-- What has left makes room after the commit.
BEGIN;
SELECT stock_confirm('order 1');
SELECT stock_receive('cup', 1);
ROLLBACK;
SELECT stock_receive('cup', 1);
SELECT stock_confirm('order 1');
SELECT stock_receive('cup', 6);
SELECT stock_receive('cup', 5);
SELECT stock_receive('cup', 1);
SELECT stock_adjust('cup', -3, 'torn');
SELECT stock_adjust('cup', 4, 'found');
SELECT stock_adjust('cup', 3, 'found');

-- A removal that is rolled back makes no room.
BEGIN;
SELECT stock_adjust('cup', -3, 'torn');
SAVEPOINT a;
SELECT stock_adjust('cup', -3, 'torn');
ROLLBACK TO a;
COMMIT;
BEGIN;
SELECT stock_receive('cup', 2);
SAVEPOINT a;
SELECT stock_receive('cup', 1);
ROLLBACK TO a;
SELECT stock_adjust('cup', -2, 'torn');
ROLLBACK;
SELECT stock_receive('cup', 4);
SELECT stock_receive('cup', 3);

-- Expiry, and a reserve that lets one expire.
BEGIN;
SELECT outcome FROM stock_reserve('cup', 7, 'order 2', ttl => '1 us');
SELECT stock_receive('cup', 1);
ROLLBACK;
BEGIN;
SELECT outcome FROM stock_reserve('cup', 7, 'order 2', ttl => '1 us');
SELECT stock_expire(), outcome FROM stock_reserve('cup', :max, 'order 3');
ROLLBACK;
SELECT * FROM stock_verify();

-- A counter that was loaded during a confirm that is rolled back.
SELECT outcome FROM stock_reserve('cup', 7, 'order 4');
UPDATE stock_item SET received = received;
BEGIN;
SELECT stock_confirm('order 4');
SELECT outcome FROM stock_reserve('cup', 1, 'order 5');
ROLLBACK;
SELECT stock_receive('cup', 1);
SELECT stock_cancel('order 4');
SELECT * FROM stock_verify();

-- Two deliveries, of which only one fits.
SELECT stock_receive('pot', 1);
BEGIN;
SELECT stock_receive('pot', :max - 1);
SELECT stock_receive('pot', 1);
ROLLBACK;
SELECT stock_receive('pot', :max - 1);

-- Levels out of range, after external DML, do not keep other items from being
-- read.
INSERT INTO stock_log (sku, change, quantity) VALUES ('pot', 'receive', 1);
SELECT sku, available, reserved FROM stock_levels ORDER BY sku;
SELECT sku, available, ok, detail FROM stock_verify() ORDER BY sku;
SELECT * FROM stock_level('pot');
SELECT stock_receive('pot', 1);
SELECT outcome FROM stock_reserve('pot', 1, 'order 6');
SELECT outcome FROM stock_reserve('cup', 1, 'order 6');

-- On hand is out of range: nothing can be received until it is in range.
INSERT INTO stock_item (sku, received) VALUES ('tub', :max + 10::numeric);
INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku, lines)
VALUES
	(5, now() + interval '1 h', 0, 'order 7', 'tub', 1),
	(10, now() + interval '1 h', 0, 'order 8', 'tub', 1);
SELECT outcome FROM stock_reserve('tub', 1, 'order 9');
SELECT stock_receive('tub', 1);
SELECT stock_confirm('order 7');
SELECT stock_receive('tub', 1);
SELECT stock_adjust('tub', 1, 'found');
SELECT stock_confirm('order 8');
UPDATE stock_item SET received = received WHERE sku = 'tub';
SELECT stock_receive('tub', 1);

TRUNCATE stock_log, stock_hold, stock_item;
