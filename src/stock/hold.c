/*
 * hold.c
 *		Rows of stock_hold: the lines of open reservations, and nothing else.
 *
 * The primary key (reservation, line) decides which of two transactions opens a
 * reservation first: every reservation has a line 0 when it is made.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/relation.h"
#include "stock/hold.h"
#include "stock/row.h"

#define HOLD_LAPSED_LINES_MAX 100000	/* lapsed lines read at a time */
#define HOLD_HORIZON_US USECS_PER_SEC	/* how far ahead a search looks */

/* The columns of stock_hold, counted from 0. */
enum
{
	HOLD_ATT_QUANTITY,
	HOLD_ATT_EXPIRES_AT,
	HOLD_ATT_LINE,
	HOLD_ATT_RESERVATION,
	HOLD_ATT_SKU,
	HOLD_ATT_LINES,
	HOLD_ATTS
};

static Relation
hold_open(void)
{
	return table_open(catalog_get()->stock_hold, RowExclusiveLock);
}

static TupleTableSlot *
hold_slot(Relation hold)
{
	return relation_slot(hold, HOLD_ATTS);
}

static void
holds_add(Holds *holds, int *room, TupleTableSlot *row)
{
	int			at = holds->lines.count;
	StockLine  *line;
	TimestampTz expiry;

	if (at == *room)
	{
		*room *= 2;
		holds->lines.line = repalloc(holds->lines.line,
									 *room * sizeof(StockLine));
		holds->tids = repalloc(holds->tids, *room * sizeof(ItemPointerData));
		holds->expiries = repalloc(holds->expiries,
								   *room * sizeof(TimestampTz));
	}
	expiry = DatumGetTimestampTz(row_value(row, HOLD_ATT_EXPIRES_AT));
	line = &holds->lines.line[at];
	*line = (StockLine)
	{
		.number = row_line(row, HOLD_ATT_LINE),
			.sku = row_name(row, HOLD_ATT_SKU),
			.quantity = row_quantity(row, HOLD_ATT_QUANTITY, false)
	};
	pfree(row_name(row, HOLD_ATT_RESERVATION));
	holds->lines.order = Max(holds->lines.order,
							 row_order(row, HOLD_ATT_LINES, line->number));
	holds->tids[at] = row->tts_tid;
	holds->expiries[at] = expiry;
	holds->expires_at = at == 0 ? expiry : Min(holds->expires_at, expiry);
	holds->lines.count++;
}

/*
 * Reads the lines that a snapshot shows.  With a dirty snapshot, stops at the
 * first line that a transaction in progress is writing, and returns that
 * transaction.
 */
static RelationWriter
holds_scan(Holds *holds, Relation hold, const text *reservation,
		   Snapshot snapshot)
{
	TupleTableSlot *row = hold_slot(hold);
	RelationWriter writer = {.xid = InvalidTransactionId};
	int			room = 4;
	RelationScan scan;
	ScanKeyData key;

	memset(holds, 0, sizeof(*holds));
	holds->lines.line = palloc(room * sizeof(StockLine));
	holds->tids = palloc(room * sizeof(ItemPointerData));
	holds->expiries = palloc(room * sizeof(TimestampTz));
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(reservation));
	relation_scan_begin(&scan, hold, HOLD_ATT_RESERVATION + 1, 0, &key, 1,
						snapshot);
	while (!TransactionIdIsValid(writer.xid) && relation_scan_next(&scan, row))
	{
		holds_add(holds, &room, row);
		if (snapshot->snapshot_type == SNAPSHOT_DIRTY)
			writer = relation_writer(snapshot);
	}
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	return writer;
}

Holds
holds_read(const text *reservation)
{
	Relation	hold = hold_open();
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	Holds		holds;

	(void) holds_scan(&holds, hold, reservation, latest);
	UnregisterSnapshot(latest);
	table_close(hold, NoLock);
	return holds;
}

bool
holds_are_there(const text *reservation)
{
	Relation	hold = hold_open();
	TupleTableSlot *row = hold_slot(hold);
	SnapshotData dirty;
	RelationScan scan;
	ScanKeyData key;
	bool		found;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(reservation));
	relation_scan_begin(&scan, hold, HOLD_ATT_RESERVATION + 1, 0, &key, 1,
						&dirty);
	found = relation_scan_next(&scan, row);
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	table_close(hold, NoLock);
	return found;
}

/*
 * A dirty scan can miss a row that an update is moving.  So finding no lines
 * proves nothing; the primary key decides.
 */
Holds
holds_read_settled(const text *reservation)
{
	Relation	hold = hold_open();
	Holds		holds;

	for (;;)
	{
		SnapshotData dirty;
		RelationWriter writer;

		CHECK_FOR_INTERRUPTS();
		InitDirtySnapshot(dirty);
		writer = holds_scan(&holds, hold, reservation, &dirty);
		if (!TransactionIdIsValid(writer.xid))
			break;
		relation_wait_for_writer(hold, &holds.tids[holds.lines.count - 1],
								 &writer);
	}
	table_close(hold, NoLock);
	return holds;
}

static bool
hold_done(Relation hold, TM_Result result, ItemPointer tid, bool wait)
{
	if (result == TM_BeingModified && wait)
		relation_wait(hold, tid);
	return result == TM_Ok;
}

bool
holds_lock(const Holds *holds, bool wait)
{
	Relation	hold = hold_open();
	bool		locked = true;

	for (int i = 0; i < holds->lines.count && locked; i++)
		locked = hold_done(hold, relation_lock(hold, &holds->tids[i]),
						   &holds->tids[i], wait);
	table_close(hold, NoLock);
	return locked;
}

bool
holds_close(const Holds *holds, int line, bool wait)
{
	Relation	hold = hold_open();
	bool		closed;

	closed = hold_done(hold, relation_delete(hold, &holds->tids[line]),
					   &holds->tids[line], wait);
	table_close(hold, NoLock);
	return closed;
}

static void
hold_store(TupleTableSlot *row, const text *reservation,
		   const StockLines *lines, int at, TimestampTz expires_at)
{
	const StockLine *line = &lines->line[at];

	ExecClearTuple(row);
	memset(row->tts_isnull, false, HOLD_ATTS * sizeof(bool));
	row->tts_values[HOLD_ATT_QUANTITY] = Int64GetDatum(line->quantity);
	row->tts_values[HOLD_ATT_EXPIRES_AT] = TimestampTzGetDatum(expires_at);
	row->tts_values[HOLD_ATT_LINE] = Int16GetDatum(line->number);
	row->tts_values[HOLD_ATT_RESERVATION] = PointerGetDatum(reservation);
	row->tts_values[HOLD_ATT_SKU] = PointerGetDatum(line->sku);
	row->tts_values[HOLD_ATT_LINES] = Int16GetDatum(lines->order);
	row->tts_isnull[HOLD_ATT_LINES] = lines->order == 0;
	ExecStoreVirtualTuple(row);
}

void
holds_extend(const Holds *holds, const text *reservation,
			 TimestampTz expires_at)
{
	Relation	hold = hold_open();
	TupleTableSlot *row = hold_slot(hold);

	for (int i = 0; i < holds->lines.count; i++)
	{
		ItemPointerData tid = holds->tids[i];

		if (holds->expiries[i] >= expires_at)
			continue;
		hold_store(row, reservation, &holds->lines, i, expires_at);
		if (relation_update(hold, &tid, row) != TM_Ok)
			elog(ERROR, "a locked line of a reservation is gone");
	}
	ExecDropSingleTupleTableSlot(row);
	table_close(hold, NoLock);
}

bool
holds_open(const text *reservation, const StockLines *lines,
		   TimestampTz expires_at, ItemPointerData *tids)
{
	Relation	hold = hold_open();
	TupleTableSlot *row = hold_slot(hold);
	int			opened = 0;

	for (; opened < lines->count; opened++)
	{
		hold_store(row, reservation, lines, opened, expires_at);
		if (!relation_insert_or_conflict(hold, row))
			break;
		tids[opened] = row->tts_tid;
	}
	ExecDropSingleTupleTableSlot(row);
	table_close(hold, NoLock);
	if (opened == lines->count)
		return true;
	holds_withdraw(tids, opened);
	return false;
}

void
holds_withdraw(const ItemPointerData *tids, int count)
{
	Relation	hold = hold_open();

	for (int i = 0; i < count; i++)
	{
		ItemPointerData tid = tids[i];

		if (relation_delete(hold, &tid) != TM_Ok)
			elog(ERROR, "a line that was just opened is gone");
	}
	table_close(hold, NoLock);
}

/*
 * Begins a scan of the lines of an item that lapse until a time, by the index
 * on sku and time; or, if sku is NULL, of all lines that lapse since a time,
 * by the index on the time.
 */
static void
hold_begin_lapsed(RelationScan *scan, Relation hold, const text *sku,
				  TimestampTz since, TimestampTz until, Snapshot snapshot)
{
	ScanKeyData keys[2];
	int			count = 0;

	if (sku != NULL)
	{
		ScanKeyInit(&keys[count++], 1, BTEqualStrategyNumber, F_TEXTEQ,
					PointerGetDatum(sku));
		ScanKeyInit(&keys[count++], 2, BTLessEqualStrategyNumber,
					F_TIMESTAMPTZ_LE, TimestampTzGetDatum(until));
	}
	else
		ScanKeyInit(&keys[count++], 1, BTGreaterEqualStrategyNumber,
					F_TIMESTAMPTZ_GE, TimestampTzGetDatum(since));
	relation_scan_begin(scan, hold,
						(sku != NULL ? HOLD_ATT_SKU : HOLD_ATT_EXPIRES_AT) + 1,
						0, keys, count, snapshot);
}

/*
 * Adds a name unless it equals the last one.
 */
static void
hold_add_name(text ***names, int *count, int *room, Datum name)
{
	if (*count > 0 && args_compare_texts((*names)[*count - 1],
										 DatumGetTextPP(name)) == 0)
		return;
	if (*count == *room)
	{
		*room *= 2;
		*names = repalloc(*names, mul_size(*room, sizeof(text *)));
	}
	(*names)[(*count)++] = DatumGetTextPCopy(name);
}

/*
 * Was this line read before?  Lines with the same expiry are in the order of
 * their tids.
 */
static bool
hold_is_passed(const HoldsPosition *from, TimestampTz expires_at,
			   ItemPointer tid)
{
	ItemPointerData passed = from->tid;

	return expires_at == from->expires_at && ItemPointerIsValid(&passed) &&
		ItemPointerCompare(tid, &passed) <= 0;
}

/*
 * Reads lapsed lines from a position on.  *last is the last line that was read,
 * or HOLDS_START if there are no more.  No other line lapses before *next.
 */
static int
hold_read_lapsed(const text *sku, const HoldsPosition *from, int max,
				 text ***reservations, HoldsPosition *last, TimestampTz *next)
{
	static const HoldsPosition start = HOLDS_START;
	Relation	hold = hold_open();
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *row = hold_slot(hold);
	TimestampTz now = GetCurrentTimestamp();
	int			room = 16;
	RelationScan scan;
	int			lines = 0;
	int			count = 0;

	*reservations = palloc(room * sizeof(text *));
	*next = now;
	*last = *from;
	hold_begin_lapsed(&scan, hold, sku, from->expires_at,
					  now + HOLD_HORIZON_US, latest);
	while (count < max && lines < HOLD_LAPSED_LINES_MAX)
	{
		CHECK_FOR_INTERRUPTS();
		if (!relation_scan_next(&scan, row))
		{
			*next = now + HOLD_HORIZON_US;
			break;
		}
		*next = DatumGetTimestampTz(row_value(row, HOLD_ATT_EXPIRES_AT));
		if (*next > now)
			break;
		if (hold_is_passed(from, *next, &row->tts_tid))
			continue;
		last->expires_at = *next;
		last->tid = row->tts_tid;
		lines++;
		hold_add_name(reservations, &count, &room,
					  row_value(row, HOLD_ATT_RESERVATION));
	}
	if (*next > now)
		*last = start;
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	UnregisterSnapshot(latest);
	table_close(hold, NoLock);
	return count;
}

int
holds_lapsed(const text *sku, int max, text ***reservations, TimestampTz *next)
{
	HoldsPosition from = HOLDS_START;
	HoldsPosition last;

	return hold_read_lapsed(sku, &from, max, reservations, &last, next);
}

int
holds_lapsed_from(HoldsPosition *position, int max, text ***reservations)
{
	HoldsPosition from = *position;
	TimestampTz next;

	return hold_read_lapsed(NULL, &from, max, reservations, position, &next);
}
