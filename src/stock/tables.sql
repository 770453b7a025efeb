/*
 * stock: types and tables
 *
 * A line of an open reservation is a row of stock_hold.  Every other change of
 * a quantity, and also the end of a reservation, appends a row for each item to
 * stock_log, which is never updated.  stock_item has an item's root record: the
 * sums of the rows that were compacted and moved to the history.  For every
 * item,
 *
 *     on hand   = received + adjusted - confirmed    (root record and log)
 *     backorder = what may be promised beyond that   (root record and log)
 *     reserved  = sum of the quantities of its holds
 *     available = on hand + backorder - reserved >= 0
 *
 * A reservation of one item that falls short can wait in the queue of the item,
 * stock_queue, until the sweeper serves it.
 *
 * Only the functions of this module write to these tables.  Other changes drop
 * the counters in shared memory (guard.c).  stock_verify compares everything.
 */

CREATE TYPE stock_outcome AS ENUM
	('reserved', 'insufficient', 'unknown_sku', 'waiting');

CREATE TYPE stock_settlement AS ENUM
	('done', 'expired', 'already_confirmed', 'already_cancelled', 'already_reserved',
	 'insufficient', 'unknown', 'waiting');

CREATE TYPE stock_change AS ENUM
	('receive', 'adjust', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate',
		'transfer', 'backorder');

CREATE TYPE stock_reservation AS (
	outcome     stock_outcome,
	expires_at  timestamptz,
	shortages   jsonb
);

COMMENT ON TYPE stock_outcome IS
	'Outcome of stock_reserve and stock_reserve_many.';
COMMENT ON TYPE stock_settlement IS
	'Outcome of stock_confirm, stock_cancel, stock_extend and stock_reinstate.';
COMMENT ON TYPE stock_change IS
	'The kind of a change of stock, in stock_log and stock_history.';
COMMENT ON TYPE stock_reservation IS
	'Result of stock_reserve and stock_reserve_many. shortages: [{"sku", "wanted", "available", "missing"}, ...], one for each line that falls short.';

/*
 * DROP EXTENSION locks relations in the order of their creation.  Our code uses
 * the same order: the log before the other tables.  The columns of fixed width
 * come first.
 *
 * line is the number of a line in its reservation, in the rows that settle or
 * reinstate the line.  lines is how many lines the reservation had at the
 * start, since the history may drop the rows of one line sooner than those of
 * another.  It is null in rows of 0.2.0.
 *
 * reserved_id, reserved_at and reserved_by are the id, at and actor of the hold
 * that was closed.  They are null if the log has a row of its own for how the
 * line was opened: a reinstatement, or a change 'reserve' of 0.2.0.
 *
 * The constraints state what the code assumes about rows.  The code checks the
 * rows that it reads all the same (row.c).  Neither a constraint nor a view may
 * name the changes 'transfer' and 'backorder', except as text: the upgrade
 * script adds these labels to the type, and a new label cannot be used in the
 * transaction that adds it.
 */
CREATE TABLE idempotency_internal.stock_log (
	id          bigint GENERATED ALWAYS AS IDENTITY,
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	change      stock_change NOT NULL,
	line        smallint,
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C",
	actor       text,
	note        text,
	lines       smallint,
	reserved_id bigint,
	reserved_at timestamptz,
	reserved_by text,
	PRIMARY KEY (sku, id),
	CHECK (quantity > 0 OR (change NOT IN
		('receive', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate')
		AND quantity < 0)),
	CHECK ((reservation IS NOT NULL) =
		(change IN ('reserve', 'cancel', 'expire', 'confirm', 'reinstate'))),
	CHECK ((line IS NOT NULL) =
		(change IN ('cancel', 'expire', 'confirm', 'reinstate'))),
	CONSTRAINT stock_log_id_check CHECK (id > 0),
	CONSTRAINT stock_log_line_check CHECK (line BETWEEN 0 AND 9999),
	CONSTRAINT stock_log_lines_check CHECK (lines IS NULL
		OR (line IS NOT NULL AND line < lines AND lines <= 10000)),
	CONSTRAINT stock_log_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_log_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	CONSTRAINT stock_log_actor_check
		CHECK (pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	CONSTRAINT stock_log_note_check
		CHECK (pg_catalog.octet_length(note) <= 1000),
	CONSTRAINT stock_log_reserved_check CHECK (
		pg_catalog.num_nonnulls(reserved_id, reserved_at, reserved_by) IN (0, 3)
		AND reserved_id > 0 AND (reserved_id IS NULL OR line IS NOT NULL)
		AND pg_catalog.octet_length(reserved_by) BETWEEN 1 AND 255)
);
/* Rows without a line are of 0.2.0: stock_history searches for them, too. */
CREATE INDEX stock_log_settled ON idempotency_internal.stock_log (reservation)
	WHERE reservation IS NOT NULL;

COMMENT ON TABLE idempotency_internal.stock_log IS
	'Changes of items that are not compacted into their root records yet. Rows are never updated. See the view stock_history.';
COMMENT ON COLUMN idempotency_internal.stock_log.actor IS
	'The user who made the change; null if a reservation has expired.';

/*
 * id, at and actor are those of the change that has opened the line.  They are
 * null if the log has a row for it.  If the reservation waits in the queue of
 * its item, its only line has the quantity 0, and id orders the queue.
 */
CREATE TABLE idempotency_internal.stock_hold (
	quantity    bigint NOT NULL CHECK (quantity >= 0),
	expires_at  timestamptz NOT NULL,
	line        smallint CHECK (line >= 0),
	reservation text COLLATE "C",
	sku         text COLLATE "C" NOT NULL,
	lines       smallint,
	id          bigint,
	at          timestamptz,
	actor       text,
	PRIMARY KEY (reservation, line),
	CONSTRAINT stock_hold_expires_at_check
		CHECK (pg_catalog.isfinite(expires_at)),
	CONSTRAINT stock_hold_lines_check CHECK (line < lines AND lines <= 10000),
	CONSTRAINT stock_hold_line_max_check CHECK (line < 10000),
	CONSTRAINT stock_hold_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	CONSTRAINT stock_hold_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_hold_opened_check CHECK (
		pg_catalog.num_nonnulls(id, at, actor) IN (0, 3) AND id > 0
		AND pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	CONSTRAINT stock_hold_waits_check CHECK (quantity > 0 OR id IS NOT NULL)
);
CREATE INDEX stock_hold_sku_expires_at
	ON idempotency_internal.stock_hold (sku, expires_at);

COMMENT ON TABLE idempotency_internal.stock_hold IS
	'One row per line of an open reservation.';

/*
 * Sums of bigints may be out of the range of bigint, for example of all that
 * was ever received.
 */
CREATE TABLE idempotency_internal.stock_item (
	sku         text COLLATE "C" CONSTRAINT stock_item_pkey PRIMARY KEY,
	received    numeric NOT NULL DEFAULT 0 CHECK (received >= 0),
	adjusted    numeric NOT NULL DEFAULT 0,
	confirmed   numeric NOT NULL DEFAULT 0 CHECK (confirmed >= 0),
	backorder   numeric NOT NULL DEFAULT 0,
	CONSTRAINT stock_item_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_item_sums_check CHECK (
		received < 'Infinity' AND received = pg_catalog.trunc(received)
		AND adjusted > '-Infinity' AND adjusted < 'Infinity'
		AND adjusted = pg_catalog.trunc(adjusted)
		AND confirmed < 'Infinity' AND confirmed = pg_catalog.trunc(confirmed)
		AND backorder > '-Infinity' AND backorder < 'Infinity'
		AND backorder = pg_catalog.trunc(backorder))
) WITH (fillfactor = 50);

COMMENT ON TABLE idempotency_internal.stock_item IS
	'One row per item, its root record: the sums of its compacted rows.';

/*
 * Which table of the history is in use (base/ring.c).  This table is not
 * dumped: a restored database begins with a new ring, and all tables of the
 * history are read in any case.
 */
CREATE TABLE idempotency_internal.stock_ring (
	LIKE idempotency_internal.idem_ring INCLUDING ALL);
COMMENT ON TABLE idempotency_internal.stock_ring IS
	'The tables of the history of stock: compacted rows are inserted into the current one, old ones are truncated when idempotency.stock_history is over.';
INSERT INTO idempotency_internal.stock_ring (slot, state, segment, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()),
	(1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

CREATE TABLE idempotency_internal.stock_history_0 (
	id          bigint NOT NULL,
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL,
	change      stock_change NOT NULL,
	line        smallint,
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C",
	actor       text,
	note        text,
	lines       smallint,
	reserved_id bigint,
	reserved_at timestamptz,
	reserved_by text,
	CONSTRAINT stock_history_quantity_check CHECK (
		quantity > 0 OR (change NOT IN
		('receive', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate')
		AND quantity < 0)),
	CONSTRAINT stock_history_change_check CHECK (
		(reservation IS NOT NULL) =
			(change IN ('reserve', 'cancel', 'expire', 'confirm', 'reinstate'))
		AND (line IS NOT NULL) =
			(change IN ('cancel', 'expire', 'confirm', 'reinstate'))),
	CONSTRAINT stock_history_id_check CHECK (id > 0),
	CONSTRAINT stock_history_line_check CHECK (line BETWEEN 0 AND 9999),
	CONSTRAINT stock_history_lines_check CHECK (lines IS NULL
		OR (line IS NOT NULL AND line < lines AND lines <= 10000)),
	CONSTRAINT stock_history_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	CONSTRAINT stock_history_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	CONSTRAINT stock_history_actor_check
		CHECK (pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	CONSTRAINT stock_history_note_check
		CHECK (pg_catalog.octet_length(note) <= 1000),
	CONSTRAINT stock_history_reserved_check CHECK (
		pg_catalog.num_nonnulls(reserved_id, reserved_at, reserved_by) IN (0, 3)
		AND reserved_id > 0 AND (reserved_id IS NULL OR line IS NOT NULL)
		AND pg_catalog.octet_length(reserved_by) BETWEEN 1 AND 255)
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX stock_history_0_settled
	ON idempotency_internal.stock_history_0 (reservation)
	WHERE line IS NOT NULL;
/* For stock_needed, which searches a whole table for them. */
CREATE INDEX stock_history_0_reinstated
	ON idempotency_internal.stock_history_0 (id)
	WHERE change = 'reinstate';
/* Rows of 0.2.0 only, for stock_history: no others are ever in it. */
CREATE INDEX stock_history_0_reserved
	ON idempotency_internal.stock_history_0 (reservation)
	WHERE change = 'reserve';
CREATE TABLE idempotency_internal.stock_history_1 (
	LIKE idempotency_internal.stock_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.stock_history_2 (
	LIKE idempotency_internal.stock_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);

/* Rows are rarely deleted (stock_migrate), so a key would cost too much. */
ALTER TABLE idempotency_internal.stock_history_0 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.stock_history_1 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.stock_history_2 REPLICA IDENTITY FULL;

COMMENT ON TABLE idempotency_internal.stock_history_0 IS 'Compacted changes of items.  See the view stock_history.';
COMMENT ON TABLE idempotency_internal.stock_history_1 IS 'Compacted changes of items.  See the view stock_history.';
COMMENT ON TABLE idempotency_internal.stock_history_2 IS 'Compacted changes of items.  See the view stock_history.';

/*
 * ttl_us is how long the reservation will be open once it is served, in
 * microseconds.  When it stops waiting is in stock_hold.
 */
CREATE TABLE idempotency_internal.stock_queue (
	id          bigint CHECK (id > 0),
	quantity    bigint NOT NULL CHECK (quantity > 0),
	ttl_us      bigint NOT NULL CHECK (ttl_us BETWEEN 1 AND 31622400000000),
	sku         text COLLATE "C"
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	reservation text COLLATE "C" NOT NULL
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	PRIMARY KEY (sku, id)
);
COMMENT ON TABLE idempotency_internal.stock_queue IS
	'One row per reservation that waits for its item.';

/*
 * What a transaction that is prepared has done to the counters (in_doubt.c).
 * It deletes its rows itself, so no snapshot ever shows one.
 */
CREATE TABLE idempotency_internal.stock_in_doubt (
	sku         text COLLATE "C" NOT NULL,
	taken       bigint NOT NULL,
	received    bigint NOT NULL,
	leaving     bigint NOT NULL,
	pending     bigint NOT NULL,
	joined      integer NOT NULL,
	served      integer NOT NULL,
	created     boolean NOT NULL,
	lapses_at   timestamptz NOT NULL
);
CREATE INDEX ON idempotency_internal.stock_in_doubt (sku);
ALTER TABLE idempotency_internal.stock_in_doubt REPLICA IDENTITY FULL;
COMMENT ON TABLE idempotency_internal.stock_in_doubt IS
	'Empty for everybody: what prepared transactions have done to the counters of items, for the time after a restart.';

CREATE VIEW idempotency_internal.stock_entry AS
	SELECT * FROM idempotency_internal.stock_log
	UNION ALL SELECT * FROM idempotency_internal.stock_history_0
	UNION ALL SELECT * FROM idempotency_internal.stock_history_1
	UNION ALL SELECT * FROM idempotency_internal.stock_history_2;
COMMENT ON VIEW idempotency_internal.stock_entry IS
	'Internal: the rows of the log and of the history.';

/*
 * A query by reservation uses an index of each table, and skips the parts where
 * it is null: rows without a line have no reservation.  Only those of 0.2.0 do,
 * for which the history has indexes of their own.
 */
CREATE VIEW stock_history AS
	SELECT entry.id, entry.quantity, entry.at, entry.change, entry.line,
		   entry.sku, entry.reservation, entry.actor, entry.note, entry.lines
	FROM idempotency_internal.stock_entry entry
	WHERE entry.line IS NOT NULL
	UNION ALL
	SELECT entry.id, entry.quantity, entry.at, entry.change, entry.line,
		   entry.sku, NULL, entry.actor, entry.note, entry.lines
	FROM idempotency_internal.stock_entry entry
	WHERE entry.line IS NULL AND entry.change <> 'reserve'
	UNION ALL
	SELECT entry.id, entry.quantity, entry.at, entry.change, entry.line,
		   entry.sku, entry.reservation, entry.actor, entry.note, entry.lines
	FROM idempotency_internal.stock_entry entry
	WHERE entry.change = 'reserve'
	UNION ALL
	SELECT closed.reserved_id, closed.quantity, closed.reserved_at, 'reserve',
		   NULL, closed.sku, closed.reservation, closed.reserved_by, NULL, NULL
	FROM idempotency_internal.stock_entry closed
	WHERE closed.reserved_id IS NOT NULL AND closed.line IS NOT NULL
	UNION ALL
	SELECT hold.id, hold.quantity, hold.at, 'reserve',
		   NULL, hold.sku, hold.reservation, hold.actor, NULL, NULL
	FROM idempotency_internal.stock_hold hold
	WHERE hold.id IS NOT NULL AND hold.quantity > 0;
COMMENT ON VIEW stock_history IS
	'Every change of every item that is kept, with its actor, time and note.';

/*
 * The levels as a caller would find them: a lapsed hold counts as available,
 * whether it was settled or not.  The subselect makes the time one value for
 * the whole query, so that an index can be searched with it.  A number that is
 * out of range, after external DML, is shown as null: one such item must not
 * keep the others from being read.
 */
CREATE VIEW stock_levels AS
	SELECT item.sku,
		   CASE WHEN level.available BETWEEN '-9223372036854775808' AND '9223372036854775807'
				THEN level.available::bigint END AS available,
		   CASE WHEN level.reserved BETWEEN '-9223372036854775808' AND '9223372036854775807'
				THEN level.reserved::bigint END AS reserved,
		   item.received + logged.received AS received,
		   item.adjusted + logged.adjusted AS adjusted,
		   item.confirmed + logged.confirmed AS confirmed,
		   (SELECT count(*) FROM idempotency_internal.stock_queue queue
			WHERE queue.sku = item.sku) AS waiting,
		   item.backorder + logged.backorder AS backorder
	FROM idempotency_internal.stock_item item
	CROSS JOIN LATERAL (
		SELECT
			coalesce(sum(entry.quantity) FILTER (
				WHERE entry.change = 'receive'), 0) AS received,
			coalesce(sum(entry.quantity) FILTER (WHERE entry.change NOT IN (
				'receive', 'reserve', 'cancel', 'expire', 'confirm',
				'reinstate') AND entry.change::text <> 'backorder'), 0)
				AS adjusted,
			coalesce(sum(entry.quantity) FILTER (
				WHERE entry.change::text = 'backorder'), 0) AS backorder,
			coalesce(sum(entry.quantity) FILTER (
				WHERE entry.change = 'confirm'), 0) AS confirmed
		FROM idempotency_internal.stock_log entry
		WHERE entry.sku = item.sku
	) logged
	CROSS JOIN LATERAL (
		SELECT coalesce(sum(hold.quantity), 0) AS reserved
		FROM idempotency_internal.stock_hold hold
		WHERE hold.sku = item.sku
		  AND hold.expires_at > (SELECT clock_timestamp())
	) held
	CROSS JOIN LATERAL (
		SELECT item.received + item.adjusted - item.confirmed
			   + logged.received + logged.adjusted - logged.confirmed
			   + item.backorder + logged.backorder
			   - held.reserved AS available,
			   held.reserved AS reserved
	) level;

COMMENT ON VIEW stock_levels IS
	'Every item: the available and the reserved quantity, the sums of its changes, how many reservations wait for it, and its backorder.';

CREATE VIEW stock_holds AS
	SELECT hold.reservation, hold.line, hold.sku, hold.quantity, hold.expires_at
	FROM idempotency_internal.stock_hold hold
	WHERE hold.quantity > 0;
COMMENT ON VIEW stock_holds IS
	'The lines of open reservations; one whose time is over stays here until its expiry is recorded.';

/*
 * A condition on any column is checked before the join.
 */
CREATE VIEW stock_waiting AS
	SELECT queue.sku, queue.position, queue.reservation, queue.quantity,
		   hold.at AS since, hold.expires_at
	FROM (
		SELECT waits.sku, waits.id, waits.reservation, waits.quantity,
			   row_number() OVER (PARTITION BY waits.sku ORDER BY waits.id)
				AS position
		FROM idempotency_internal.stock_queue waits
	) queue
	LEFT JOIN idempotency_internal.stock_hold hold
		ON hold.reservation = queue.reservation AND hold.id = queue.id;
COMMENT ON VIEW stock_waiting IS
	'The reservations that wait in the queues of their items, in the order in which they are served.';

SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_item', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_hold', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_queue', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_log', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_log_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_history_0', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_history_1', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_history_2', '');
