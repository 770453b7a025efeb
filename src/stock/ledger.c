/*
 * ledger.c
 *		The log of stock: appended to, added up, searched by reservation.
 *
 * stock_log has the rows that are not in an item's root record yet.  The others
 * have moved to stock_history_0 to _2 (compaction.sql).  There they tell how a
 * reservation ended, until the history drops them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/sysattr.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/fmgroids.h"
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/relation.h"
#include "base/sequence.h"
#include "base/shared.h"
#include "stock/ledger.h"
#include "stock/row.h"
#include "stock/stock_xact.h"

#define LEDGER_TABLES (1 + CATALOG_RING_SIZE)

/* The sum of numbers that may be out of the range of bigint. */
typedef struct LedgerTotal
{
	Datum		whole;			/* a numeric */
	int64		part;
} LedgerTotal;

static TupleTableSlot *
ledger_slot(Relation table)
{
	return relation_slot(table, LOG_ATTS);
}

static void
ledger_store_text(TupleTableSlot *row, int attribute, const text *value)
{
	row->tts_values[attribute] = PointerGetDatum(value);
	row->tts_isnull[attribute] = value == NULL;
}

int64
ledger_next_id(void)
{
	int64		id = sequence_next(SHARED_STOCK_LOG,
								   catalog_get()->stock_log_id_seq, 0);

	stock_xact_note_id(id);
	return id;
}

static void
ledger_store(TupleTableSlot *row, const LedgerEntry *entry,
			 const StockLine *line, int order)
{
	bool		settled = entry->reservation != NULL;
	bool		opened = line->opened_id != 0 && !line->waits;

	ExecClearTuple(row);
	memset(row->tts_isnull, false, LOG_ATTS * sizeof(bool));
	row->tts_values[LOG_ATT_ID] = Int64GetDatum(ledger_next_id());
	row->tts_values[LOG_ATT_QUANTITY] = Int64GetDatum(line->quantity);
	row->tts_values[LOG_ATT_AT] = TimestampTzGetDatum(GetCurrentTimestamp());
	row->tts_values[LOG_ATT_CHANGE] =
		ObjectIdGetDatum(catalog_get()->stock_change[entry->change]);
	row->tts_values[LOG_ATT_LINE] = Int16GetDatum(line->number);
	row->tts_isnull[LOG_ATT_LINE] = !settled;
	ledger_store_text(row, LOG_ATT_SKU, line->sku);
	ledger_store_text(row, LOG_ATT_RESERVATION, entry->reservation);
	ledger_store_text(row, LOG_ATT_ACTOR, entry->actor);
	ledger_store_text(row, LOG_ATT_NOTE, entry->note);
	row->tts_values[LOG_ATT_LINES] = Int16GetDatum(order);
	row->tts_isnull[LOG_ATT_LINES] = !settled || order == 0;
	row->tts_values[LOG_ATT_RESERVED_ID] = Int64GetDatum(line->opened_id);
	row->tts_isnull[LOG_ATT_RESERVED_ID] = !opened;
	row->tts_values[LOG_ATT_RESERVED_AT] =
		TimestampTzGetDatum(line->opened_at);
	row->tts_isnull[LOG_ATT_RESERVED_AT] = !opened;
	ledger_store_text(row, LOG_ATT_RESERVED_BY,
					  opened ? line->opened_by : NULL);
	ExecStoreVirtualTuple(row);
}

void
ledger_write(const LedgerEntry *entry, const StockLines *lines)
{
	Relation	log = table_open(catalog_get()->stock_log, RowExclusiveLock);
	TupleTableSlot *row = ledger_slot(log);

	for (int i = 0; i < lines->count; i++)
	{
		ledger_store(row, entry, &lines->line[i], lines->order);
		relation_insert(log, row);
	}
	ExecDropSingleTupleTableSlot(row);
	table_close(log, NoLock);
}

static StockChange
ledger_change(TupleTableSlot *row)
{
	Oid			label = DatumGetObjectId(row_value(row, LOG_ATT_CHANGE));
	const Catalog *catalog = catalog_get();

	for (int i = 0; i < STOCK_CHANGES; i++)
	{
		if (catalog->stock_change[i] == label)
			return (StockChange) i;
	}
	row_raise(row, LOG_ATT_CHANGE, "is not a change of stock");
	return STOCK_CHANGES;
}

/*
 * Was the row written by this transaction?
 */
static bool
ledger_is_own(TupleTableSlot *row)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(row, MinTransactionIdAttributeNumber,
									   &isnull);

	return !isnull &&
		TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

static Datum
ledger_total(const LedgerTotal *total)
{
	return DirectFunctionCall2(numeric_add, total->whole,
							   NumericGetDatum(int64_to_numeric(total->part)));
}

static void
ledger_add(LedgerTotal *total, int64 number)
{
	int64		sum;

	if (pg_add_s64_overflow(total->part, number, &sum))
	{
		total->whole = ledger_total(total);
		sum = number;
	}
	total->part = sum;
}

/* Sums while the rows of an item are read. */
typedef struct LedgerTotals
{
	LedgerTotal on_hand;
	LedgerTotal leaving;
	LedgerTotal backorder;
} LedgerTotals;

/*
 * Reservations do not change what is on hand until they are confirmed.
 */
static void
ledger_add_row(LedgerTotals *totals, TupleTableSlot *row)
{
	StockChange change = ledger_change(row);
	bool		moves = change == STOCK_ADJUST || change == STOCK_TRANSFER ||
		change == STOCK_BACKORDER;
	int64		quantity = row_quantity(row, LOG_ATT_QUANTITY, moves);

	if (moves || change == STOCK_RECEIVE)
		ledger_add(&totals->on_hand, quantity);
	if (change == STOCK_CONFIRM)
		ledger_add(&totals->on_hand, -quantity);
	if (change == STOCK_CONFIRM && ledger_is_own(row))
		ledger_add(&totals->leaving, quantity);
	if (change == STOCK_BACKORDER)
		ledger_add(&totals->backorder, quantity);
}

LedgerSum
ledger_sum(const text *sku, Snapshot snapshot)
{
	Relation	log = table_open(catalog_get()->stock_log, NoLock);
	TupleTableSlot *row = ledger_slot(log);
	LedgerTotal none = {.whole = NumericGetDatum(int64_to_numeric(0))};
	LedgerTotals totals = {none, none, none};
	LedgerSum	sum = {0};
	RelationScan scan;
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(sku));
	relation_scan_begin(&scan, log, LOG_ATT_SKU + 1, 0, &key, 1, snapshot);
	while (relation_scan_next(&scan, row))
	{
		CHECK_FOR_INTERRUPTS();
		ledger_add_row(&totals, row);
		sum.rows++;
	}
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	table_close(log, NoLock);
	sum.on_hand = ledger_total(&totals.on_hand);
	sum.leaving = ledger_total(&totals.leaving);
	sum.backorder = ledger_total(&totals.backorder);
	return sum;
}

/*
 * Moves a position to the next row, of the same item or of later ones, that the
 * snapshot sees.  The scan sees all rows, so that it can stop among those that
 * are gone: beside an old snapshot there may be any number of them.
 */
static bool
ledger_pass_rows(Relation log, LedgerPosition *position, bool same_item,
				 Snapshot latest, int *looks, TupleTableSlot *row)
{
	bool		found = false;
	RelationScan scan;
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], 1,
				same_item ? BTEqualStrategyNumber : BTGreaterStrategyNumber,
				same_item ? F_TEXTEQ : F_TEXT_GT,
				PointerGetDatum(position->sku == NULL ? cstring_to_text("") :
								position->sku));
	ScanKeyInit(&keys[1], 2, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(position->id));
	relation_scan_begin(&scan, log, LOG_ATT_SKU + 1, 0, keys,
						same_item ? 2 : 1, SnapshotAny);
	while (!found && *looks > 0 && relation_scan_next(&scan, row))
	{
		CHECK_FOR_INTERRUPTS();
		--*looks;
		position->sku = row_name(row, LOG_ATT_SKU);
		position->id = DatumGetInt64(row_value(row, LOG_ATT_ID));
		found = table_tuple_satisfies_snapshot(log, row, latest);
	}
	relation_scan_end(&scan, NoLock);
	return found;
}

bool
ledger_next_item(LedgerPosition *position, int *looks, LedgerFirst *first)
{
	Relation	log = table_open(catalog_get()->stock_log, NoLock);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *row = ledger_slot(log);
	bool		found = false;

	Assert(*looks >= 0);
	if (position->sku != NULL && position->id != PG_INT64_MAX)
		found = ledger_pass_rows(log, position, true, latest, looks, row);
	if (!found && *looks > 0)
		found = ledger_pass_rows(log, position, false, latest, looks, row);
	if (found)
	{
		first->id = position->id;
		first->at = DatumGetTimestampTz(row_value(row, LOG_ATT_AT));
		position->id = PG_INT64_MAX;	/* the others of the item are later */
	}
	else if (*looks > 0)
		position->sku = NULL;
	ExecDropSingleTupleTableSlot(row);
	UnregisterSnapshot(latest);
	table_close(log, NoLock);
	return found;
}

/*
 * Records a row as the last change of its line, if it is later than the one
 * recorded before.
 */
static void
ledger_collect(LedgerLines *lines, TupleTableSlot *row)
{
	LedgerLine	found = {0};
	LedgerLine *place;

	found.id = DatumGetInt64(row_value(row, LOG_ATT_ID));
	if (found.id <= 0)
		row_raise(row, LOG_ATT_ID, "is out of range");
	found.last = ledger_change(row);
	found.line.number = row_line(row, LOG_ATT_LINE);
	found.line.quantity = row_quantity(row, LOG_ATT_QUANTITY, false);
	found.line.sku = row_name(row, LOG_ATT_SKU);
	lines->order = Max(lines->order,
					   row_order(row, LOG_ATT_LINES, found.line.number));
	if (found.last == STOCK_REINSTATE)
		lines->reopened = Max(lines->reopened, found.id);
	if (found.line.number >= lines->count)
	{
		int			count = found.line.number + 1;

		lines->line = repalloc(lines->line, count * sizeof(LedgerLine));
		memset(&lines->line[lines->count], 0,
			   (count - lines->count) * sizeof(LedgerLine));
		lines->count = count;
	}
	place = &lines->line[found.line.number];
	if (place->id < found.id)
		*place = found;
}

/*
 * Removes the entries of lines for which no row was found.
 */
static void
ledger_close_ranks(LedgerLines *lines)
{
	int			count = 0;

	for (int i = 0; i < lines->count; i++)
	{
		if (lines->line[i].id != 0)
			lines->line[count++] = lines->line[i];
	}
	lines->count = count;
}

/*
 * Returns a table that may have rows of a reservation: 0 is the log, the others
 * are the history.  All tables of the history are searched: one that is not in
 * use may have rows that a restore has loaded.
 */
static Oid
ledger_table(int number)
{
	const Catalog *catalog = catalog_get();

	return number == 0 ? catalog->stock_log :
		catalog->rings[RING_HISTORY].tables[number - 1];
}

/*
 * Scans a table's rows of a reservation and returns their number.  Adds them to
 * lines unless that is NULL.  The log is locked by the transaction anyway; the
 * lock on a table of the history is released, so that the table can be
 * truncated.
 */
static int
ledger_scan(Oid oid, const text *reservation, Snapshot snapshot,
			LedgerLines *lines)
{
	bool		is_log = oid == catalog_get()->stock_log;
	LOCKMODE	release = is_log ? NoLock : RowExclusiveLock;
	Relation	table = table_open(oid, release);
	TupleTableSlot *row = ledger_slot(table);
	RelationScan scan;
	ScanKeyData key;
	int			count = 0;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(reservation));
	relation_scan_begin(&scan, table, LOG_ATT_RESERVATION + 1,
						LOG_ATT_LINE + 1, &key, 1, snapshot);
	while (relation_scan_next(&scan, row))
	{
		if (slot_attisnull(row, LOG_ATT_LINE + 1))
			continue;			/* a change 'reserve' of 0.2.0 */
		if (lines != NULL)
			ledger_collect(lines, row);
		count++;
	}
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, release);
	table_close(table, release);
	return count;
}

/*
 * Scans all tables from a number on.  With one snapshot a row that is being
 * moved is seen in exactly one table.
 */
static int
ledger_scan_from(int first, const text *reservation, LedgerLines *lines)
{
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	int			count = 0;

	Assert(first >= 0 && first < LEDGER_TABLES);
	for (int i = first; i < LEDGER_TABLES; i++)
		count += ledger_scan(ledger_table(i), reservation, latest, lines);
	UnregisterSnapshot(latest);
	return count;
}

/*
 * Uncommitted rows count too; they can be in the log only.  The log is scanned
 * first: a row that has left it by then is in the history for the snapshot that
 * is taken afterwards.
 */
bool
ledger_is_settled(const text *reservation)
{
	SnapshotData dirty;

	InitDirtySnapshot(dirty);
	return ledger_scan(ledger_table(0), reservation, &dirty, NULL) > 0 ||
		ledger_scan_from(1, reservation, NULL) > 0;
}

/*
 * The sweeper truncates a table of the history when it can lock it, and none
 * was counted here since it has begun to move what is needed (forget.c).
 */
void
ledger_keep(void)
{
	const CatalogRing history = catalog_get()->rings[RING_HISTORY];

	for (int i = 0; i < CATALOG_RING_SIZE; i++)
		relation_hold(history.tables[i], AccessShareLock);
	pg_atomic_fetch_add_u64(&shared_my_database()->stock_reopened, 1);
}

LedgerLines
ledger_read(const text *reservation)
{
	LedgerLines lines = {.line = palloc(sizeof(LedgerLine))};

	(void) ledger_scan_from(0, reservation, &lines);
	ledger_close_ranks(&lines);
	return lines;
}
