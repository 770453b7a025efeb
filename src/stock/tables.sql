/*
 * stock: types and tables
 *
 * stock_log is the truth: every change of a quantity appends one row per sku
 * and no row is ever changed.  stock_item is the sum of an item's log and the
 * row that every change of the item locks.  stock_hold has the lines of open
 * reservations and nothing else.  For every item, always:
 *
 *     available = received + adjusted - confirmed - reserved >= 0
 *     reserved  = sum of the quantities of its holds
 *
 * Only the functions of this room write here.  stock_verify compares the
 * three tables.
 */

CREATE TYPE stock_outcome AS ENUM ('reserved', 'insufficient', 'unknown_sku');

CREATE TYPE stock_settlement AS ENUM
	('done', 'expired', 'already_confirmed', 'already_cancelled', 'unknown');

CREATE TYPE stock_change AS ENUM
	('receive', 'adjust', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate');

CREATE TYPE stock_line AS (
	sku         text COLLATE "C",
	quantity    bigint
);

CREATE TYPE stock_shortage AS (
	sku         text COLLATE "C",
	wanted      bigint,
	available   bigint,
	missing     bigint
);

COMMENT ON TYPE stock_outcome IS
	'What stock_reserve answers.';
COMMENT ON TYPE stock_settlement IS
	'What stock_confirm and stock_cancel answer.';
COMMENT ON TYPE stock_change IS
	'What a row of stock_log did to the item.';
COMMENT ON TYPE stock_line IS
	'One line of an order: so many pieces of one item.';
COMMENT ON TYPE stock_shortage IS
	'A line that could not be reserved: missing = wanted - available.';

/*
 * No counter is in an index, so an update stays within its page while the
 * page has room: the fillfactor leaves half of it.
 */
CREATE TABLE stock_item (
	sku         text COLLATE "C" CONSTRAINT stock_item_pkey PRIMARY KEY,
	received    bigint NOT NULL DEFAULT 0 CHECK (received >= 0),
	adjusted    bigint NOT NULL DEFAULT 0,
	confirmed   bigint NOT NULL DEFAULT 0 CHECK (confirmed >= 0),
	reserved    bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
	CONSTRAINT stock_item_not_oversold
		CHECK (received + adjusted - confirmed - reserved >= 0)
) WITH (fillfactor = 50);

COMMENT ON TABLE stock_item IS
	'One row per item: the sums of its log.';

CREATE TABLE stock_hold (
	reservation text COLLATE "C",
	sku         text COLLATE "C",
	quantity    bigint NOT NULL CHECK (quantity > 0),
	actor       text NOT NULL,
	reserved_at timestamptz NOT NULL,
	expires_at  timestamptz NOT NULL,
	PRIMARY KEY (reservation, sku),
	CHECK (expires_at > reserved_at)
);

/* The sweeper asks for the oldest lapsed holds, a reserve for an item's. */
CREATE INDEX stock_hold_expires_at ON stock_hold (expires_at);
CREATE INDEX stock_hold_sku_expires_at ON stock_hold (sku, expires_at);

COMMENT ON TABLE stock_hold IS
	'One row per line of an open reservation.';

CREATE TABLE stock_log (
	id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	sku         text COLLATE "C" NOT NULL,
	change      stock_change NOT NULL,
	quantity    bigint NOT NULL,
	reservation text COLLATE "C",
	actor       text,
	note        text,
	at          timestamptz NOT NULL DEFAULT clock_timestamp(),
	CHECK (quantity > 0 OR (change = 'adjust' AND quantity < 0)),
	CHECK ((reservation IS NULL) = (change IN ('receive', 'adjust')))
);

CREATE INDEX stock_log_sku_id ON stock_log (sku, id);
CREATE INDEX stock_log_reservation_id ON stock_log (reservation, id)
	WHERE reservation IS NOT NULL;

COMMENT ON TABLE stock_log IS
	'Every change of an item, in the order it happened; only appended to.';
COMMENT ON COLUMN stock_log.actor IS
	'Who did it; null where nobody did, as when a reservation expires.';

/*
 * The levels as a caller finds them: what a lapsed hold kept is free, whether
 * it has been settled or not.  The subselect makes the time one value for the
 * whole query, which an index can be searched with.
 */
CREATE VIEW stock_levels AS
	SELECT item.sku,
		   item.received + item.adjusted - item.confirmed - item.reserved
		   + lapsed.quantity AS available,
		   item.reserved - lapsed.quantity AS reserved,
		   item.received,
		   item.adjusted,
		   item.confirmed
	FROM stock_item item
	CROSS JOIN LATERAL (
		SELECT coalesce(sum(hold.quantity), 0)::bigint AS quantity
		FROM stock_hold hold
		WHERE hold.sku = item.sku
		  AND hold.expires_at <= (SELECT clock_timestamp())
	) lapsed;

COMMENT ON VIEW stock_levels IS
	'Every item: what is available, what is reserved, and the sums behind it.';

SELECT pg_catalog.pg_extension_config_dump('stock_item', '');
SELECT pg_catalog.pg_extension_config_dump('stock_hold', '');
SELECT pg_catalog.pg_extension_config_dump('stock_log', '');
SELECT pg_catalog.pg_extension_config_dump('stock_log_id_seq', '');
