/*
 * The items: item-1 and so on, with more than anybody can take, and sold-1, all
 * of which is reserved.  psql variables: items, slots and pieces, as bench has
 * them.
 */

SELECT stock_receive('item-' || n, :pieces) FROM generate_series(1, :items) n
\g /dev/null
SELECT stock_receive('sold-1', 1000)
\g /dev/null
SELECT stock_reserve('sold-1', 1, 'buyer-' || n) FROM generate_series(1, 1000) n
\g /dev/null

INSERT INTO peer_item
	SELECT 'item-' || n, :pieces FROM generate_series(1, :items) n
	UNION ALL SELECT 'sold-1', 0;
INSERT INTO peer_slot
	SELECT 'item-1', n, :pieces FROM generate_series(1, :slots) n
	UNION ALL SELECT 'sold-1', n, 0 FROM generate_series(1, :slots) n;

VACUUM ANALYZE;
