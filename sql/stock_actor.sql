-- Every change of stock records its actor, which is the session user unless
-- the caller names another.  If this fails, all rows behind a connection pool
-- name one role, or the wrong one.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;
\pset null -
SELECT stock_receive('cup', 100, actor => 'receiver'),
	stock_adjust('cup', -1, 'lost', actor => 'counter');
SELECT stock_transfer('cup', 'pot', 20, actor => 'mover');
SELECT outcome FROM stock_reserve('cup', 1, 'order 1', actor => 'clerk');
SELECT outcome FROM stock_reserve_many('{"cup": 1, "pot": 1}', 'order 2', actor => 'clerk 2');
SELECT stock_confirm('order 1', actor => 'till'),
	stock_confirm('order 2', '{pot}', 'till 2'),
	stock_cancel('order 2', actor => 'customer');
SELECT outcome FROM stock_reinstate('order 2', actor => 'customer again');
SELECT stock_cancel('order 2', '{cup}', actor => repeat('x', 255));
SELECT change, sku, quantity, left(actor, 20) AS actor FROM stock_log
ORDER BY id;

-- An expiry has no actor, whichever call detects it.
SELECT outcome FROM stock_reserve('cup', 1, 'order 3', ttl => '1 us', actor => 'clerk');
SELECT stock_confirm('order 3', actor => 'too late');
SELECT outcome FROM stock_reinstate('order 3', actor => 'till');
SELECT change, actor FROM stock_log WHERE reservation = 'order 3' ORDER BY id;

-- The default is the session user, also after SET ROLE and for a null
-- argument.  A replayed answer records no actor.
CREATE ROLE regress_stock_actor;
SELECT idempotency_grant('regress_stock_actor'), idempotency_grant_operator('regress_stock_actor');
SELECT coalesce(max(id), 0) AS before FROM stock_log \gset
SET ROLE regress_stock_actor;
SELECT stock_receive('tea', 10, NULL, NULL), stock_adjust('tea', 1, NULL, NULL);
SELECT stock_transfer('tea', 'cup', 1, NULL, NULL);
SELECT outcome FROM stock_reserve('tea', 1, 'order 4', NULL, NULL);
SELECT outcome FROM stock_reserve_many('{"tea": 1}', 'order 5', NULL, NULL);
SELECT outcome FROM stock_reserve_many('{"tea": 1}', 'order 5', NULL, 'somebody else');
SELECT stock_confirm('order 4', NULL, NULL),
	stock_confirm('order 4', NULL, 'somebody else'), stock_cancel('order 5', NULL, NULL);
SELECT outcome FROM stock_reinstate('order 5', NULL, NULL);
RESET ROLE;
SELECT change, sku, quantity, actor = session_user AS by_session_user
FROM stock_log WHERE id > :before ORDER BY id;
SET SESSION AUTHORIZATION regress_stock_actor;
SELECT stock_receive('tea', 1), stock_cancel('order 5');
RESET SESSION AUTHORIZATION;
SELECT change, actor FROM stock_log ORDER BY id DESC LIMIT 2;

-- The history keeps it.
SELECT count(stock_compact_item(sku, 1000)) FROM stock_item;
SELECT change, actor FROM stock_history
WHERE actor IN ('mover', 'till 2', 'customer again') ORDER BY id;

DROP OWNED BY regress_stock_actor;
DROP ROLE regress_stock_actor;
TRUNCATE stock_log, stock_hold, stock_item, stock_history_0, stock_history_1,
	stock_history_2;
