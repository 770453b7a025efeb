/*
 * hold.c
 *		Rows of stock_hold: the lines of open reservations.
 *
 * The primary key (reservation, line) decides which of two transactions opens a
 * reservation first: every reservation has a line 0 when it is first made.  The
 * first row of a name must never be inserted without names_begin before it and
 * names_end after it, or the filter of names misses the name.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "common/int.h"
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
#include "stock/escrow.h"
#include "stock/hold.h"
#include "stock/row.h"
#include "stock/stock_xact.h"

#define HOLD_LAPSED_LINES_MAX 10000 /* lapsed lines of an item, at a time */
#define HOLD_SEARCH_LINES_MAX 1000	/* lines of a search of all items */

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

/*
 * Reads how a line was opened.
 */
static void
hold_read_opened(StockLine *line, TupleTableSlot *row)
{
	bool		isnull;

	line->opened_id = DatumGetInt64(slot_getattr(row, HOLD_ATT_ID + 1,
												 &isnull));
	if (isnull)
	{
		line->opened_id = 0;
		return;
	}
	if (line->opened_id <= 0)
		row_raise(row, HOLD_ATT_ID, "is out of range");
	line->opened_at = DatumGetTimestampTz(row_value(row, HOLD_ATT_AT));
	line->opened_by = row_name(row, HOLD_ATT_ACTOR);
}

/*
 * The search must not fail because of one row that is wrong: what reads the
 * reservation raises the error.
 */
static TimestampTz
hold_expiry(TupleTableSlot *row)
{
	bool		isnull;
	Datum		expiry = slot_getattr(row, HOLD_ATT_EXPIRES_AT + 1, &isnull);

	return isnull ? DT_NOEND : DatumGetTimestampTz(expiry);
}

/*
 * Reads the quantity, which is 0 if the line waits.
 */
static int64
hold_quantity(TupleTableSlot *row)
{
	if (DatumGetInt64(row_value(row, HOLD_ATT_QUANTITY)) == 0)
		return 0;
	return row_quantity(row, HOLD_ATT_QUANTITY, false);
}

/*
 * Only a reservation of one line waits.
 */
static void
hold_check_wait(const Holds *holds, const StockLine *line, TupleTableSlot *row)
{
	bool		alone = holds->lines.count == 0;

	if (line->waits && (!alone || line->opened_id == 0))
		row_raise(row, HOLD_ATT_QUANTITY, "is out of range");
	if (!alone && holds->lines.line[0].waits)
		row_raise(row, HOLD_ATT_RESERVATION, "is that of one that waits");
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
			.quantity = hold_quantity(row)
	};
	line->waits = line->quantity == 0;
	hold_read_opened(line, row);
	hold_check_wait(holds, line, row);
	pfree(row_name(row, HOLD_ATT_RESERVATION));
	holds->lines.order = Max(holds->lines.order,
							 row_order(row, HOLD_ATT_LINES, line->number));
	holds->tids[at] = row->tts_tid;
	holds->expiries[at] = expiry;
	holds->expires_at = at == 0 ? expiry : Min(holds->expires_at, expiry);
	holds->lines.count++;
}

/* A line while the lines are sorted. */
typedef struct HoldLine
{
	StockLine	line;
	ItemPointerData tid;
	TimestampTz expiry;
} HoldLine;

static int
hold_compare(const void *a, const void *b)
{
	return args_compare_texts(((const HoldLine *) a)->line.sku,
							  ((const HoldLine *) b)->line.sku);
}

/*
 * Sorts the lines by sku.  Usually they are, since their numbers are.
 */
static void
holds_sort(Holds *holds)
{
	HoldLine   *sorted;
	int			at = 1;

	while (at < holds->lines.count &&
		   args_compare_texts(holds->lines.line[at - 1].sku,
							  holds->lines.line[at].sku) < 0)
		at++;
	if (at >= holds->lines.count)
		return;
	sorted = palloc(holds->lines.count * sizeof(HoldLine));
	for (int i = 0; i < holds->lines.count; i++)
	{
		sorted[i].line = holds->lines.line[i];
		sorted[i].tid = holds->tids[i];
		sorted[i].expiry = holds->expiries[i];
	}
	qsort(sorted, holds->lines.count, sizeof(HoldLine), hold_compare);
	for (int i = 0; i < holds->lines.count; i++)
	{
		holds->lines.line[i] = sorted[i].line;
		holds->tids[i] = sorted[i].tid;
		holds->expiries[i] = sorted[i].expiry;
	}
	pfree(sorted);
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

void
holds_lock_for_sum(void)
{
	Relation	hold = hold_open();

	index_close(relation_open_index(hold, HOLD_ATT_SKU + 1, 1, 0,
									RowExclusiveLock), NoLock);
	table_close(hold, NoLock);
}

int64
holds_sum(const text *sku, Snapshot snapshot, TimestampTz *lapses_at)
{
	Relation	hold = hold_open();
	TupleTableSlot *row = hold_slot(hold);
	int64		sum = 0;
	RelationScan scan;
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(sku));
	relation_scan_begin(&scan, hold, HOLD_ATT_SKU + 1, 0, &key, 1, snapshot);
	while (relation_scan_next(&scan, row))
	{
		CHECK_FOR_INTERRUPTS();
		if (pg_add_s64_overflow(sum, hold_quantity(row), &sum))
			row_raise_range(sku);
		*lapses_at = Min(*lapses_at, hold_expiry(row));
	}
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	table_close(hold, NoLock);
	return sum;
}

Holds
holds_read(const text *reservation)
{
	Relation	hold = hold_open();
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	Holds		holds;

	(void) holds_scan(&holds, hold, reservation, latest);
	holds_sort(&holds);
	UnregisterSnapshot(latest);
	table_close(hold, NoLock);
	return holds;
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
		Assert(holds.lines.count > 0);
		relation_wait_for_writer(hold, &holds.tids[holds.lines.count - 1],
								 &writer);
	}
	holds_sort(&holds);
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

	Assert(lines_are_sorted(&holds->lines));
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
	row->tts_values[HOLD_ATT_QUANTITY] =
		Int64GetDatum(line->waits ? 0 : line->quantity);
	row->tts_values[HOLD_ATT_EXPIRES_AT] = TimestampTzGetDatum(expires_at);
	row->tts_values[HOLD_ATT_LINE] = Int16GetDatum(line->number);
	row->tts_values[HOLD_ATT_RESERVATION] = PointerGetDatum(reservation);
	row->tts_values[HOLD_ATT_SKU] = PointerGetDatum(line->sku);
	row->tts_values[HOLD_ATT_LINES] = Int16GetDatum(lines->order);
	row->tts_isnull[HOLD_ATT_LINES] = lines->order == 0;
	row->tts_values[HOLD_ATT_ID] = Int64GetDatum(line->opened_id);
	row->tts_values[HOLD_ATT_AT] = TimestampTzGetDatum(line->opened_at);
	row->tts_values[HOLD_ATT_ACTOR] = PointerGetDatum(line->opened_by);
	if (line->opened_id == 0)
		memset(&row->tts_isnull[HOLD_ATT_ID], true,
			   (HOLD_ATTS - HOLD_ATT_ID) * sizeof(bool));
	ExecStoreVirtualTuple(row);
}

bool
holds_wait(const Holds *holds)
{
	return holds->lines.count == 1 && holds->lines.line->waits;
}

void
holds_serve(const Holds *holds, const text *reservation,
			TimestampTz expires_at)
{
	Relation	hold = hold_open();
	TupleTableSlot *row = hold_slot(hold);
	ItemPointerData tid = holds->tids[0];

	Assert(holds->lines.count == 1);
	hold_store(row, reservation, &holds->lines, 0, expires_at);
	if (relation_update(hold, &tid, row) != TM_Ok)
		elog(ERROR, "a locked line of a reservation is gone");
	ExecDropSingleTupleTableSlot(row);
	table_close(hold, NoLock);
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
		stock_xact_hide_lapse(holds->expiries[i]);
		hold_store(row, reservation, &holds->lines, i, expires_at);
		if (relation_update(hold, &tid, row) != TM_Ok)
			elog(ERROR, "a locked line of a reservation is gone");
	}
	ExecDropSingleTupleTableSlot(row);
	table_close(hold, NoLock);
}

/*
 * Inserts the row of a line.  A new name cannot conflict with any row.
 */
static bool
hold_insert(Relation hold, const RelationIndexes *indexes,
			const ReservationName *name, TupleTableSlot *row)
{
	if (!name->is_new)
		return relation_insert_or_conflict(hold, row);
	relation_insert_new(hold, indexes, row);
	return true;
}

static bool
hold_insert_first(Relation hold, const RelationIndexes *indexes,
				  const ReservationName *name, TupleTableSlot *row)
{
	bool		inserted;

	if (!names_begin(name))
		return false;
	inserted = hold_insert(hold, indexes, name, row);
	names_end(name);
	return inserted;
}

bool
holds_open(const text *reservation, const ReservationName *name,
		   const StockLines *lines, TimestampTz expires_at,
		   ItemPointerData *tids)
{
	Relation	hold = hold_open();
	RelationIndexes *indexes = relation_open_indexes(hold);
	TupleTableSlot *row = hold_slot(hold);
	int			opened = 0;

	Assert(lines->count > 0);
	for (; opened < lines->count; opened++)
	{
		hold_store(row, reservation, lines, opened, expires_at);
		if (!(opened == 0 ? hold_insert_first(hold, indexes, name, row) :
			  hold_insert(hold, indexes, name, row)))
			break;
		tids[opened] = row->tts_tid;
	}
	ExecDropSingleTupleTableSlot(row);
	relation_close_indexes(indexes);
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

static int
hold_line(TupleTableSlot *row)
{
	bool		isnull;
	Datum		line = slot_getattr(row, HOLD_ATT_LINE + 1, &isnull);

	return isnull ? 0 : DatumGetInt16(line);
}

/*
 * Will another line of the reservation be found as well?  Of the lines that
 * have lapsed, only the first is of interest.
 */
static bool
hold_is_repeated(Relation hold, TupleTableSlot *row, Snapshot snapshot,
				 TimestampTz now)
{
	int			number = hold_line(row);
	bool		repeated = false;
	TupleTableSlot *line;
	RelationScan scan;
	ScanKeyData keys[2];

	if (number <= 0)
		return false;
	line = hold_slot(hold);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				row_value(row, HOLD_ATT_RESERVATION));
	ScanKeyInit(&keys[1], 2, BTLessStrategyNumber, F_INT2LT,
				Int16GetDatum(number));
	relation_scan_begin(&scan, hold, HOLD_ATT_RESERVATION + 1, 0, keys,
						lengthof(keys), snapshot);
	while (!repeated && relation_scan_next(&scan, line))
		repeated = hold_expiry(line) <= now;
	ExecDropSingleTupleTableSlot(line);
	relation_scan_end(&scan, NoLock);
	return repeated;
}

/*
 * The scan begins where the first line may be: beside an old snapshot, those
 * that have lapsed before are still in the index.
 */
int
holds_lapsed(const text *sku, TimestampTz from, int max, bool repeated,
			 text ***reservations, TimestampTz *next)
{
	Relation	hold = hold_open();
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *row = hold_slot(hold);
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz lapsed = DT_NOEND;
	int			room = 16;
	int			lines = 0;
	int			count = 0;
	RelationScan scan;
	ScanKeyData keys[2];

	*reservations = palloc(room * sizeof(text *));
	*next = now;
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(sku));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
	relation_scan_begin(&scan, hold, HOLD_ATT_SKU + 1, 0, keys, lengthof(keys),
						latest);
	while (count < max && lines++ < HOLD_LAPSED_LINES_MAX)
	{
		CHECK_FOR_INTERRUPTS();
		if (!relation_scan_next(&scan, row))
		{
			*next = DT_NOEND;
			break;
		}
		*next = DatumGetTimestampTz(row_value(row, HOLD_ATT_EXPIRES_AT));
		if (*next > now)
			break;
		lapsed = Min(lapsed, *next);
		if (repeated || !hold_is_repeated(hold, row, latest, now))
			hold_add_name(reservations, &count, &room,
						  row_value(row, HOLD_ATT_RESERVATION));
	}
	*next = Min(*next, lapsed);
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	UnregisterSnapshot(latest);
	table_close(hold, NoLock);
	return count;
}

/* A search of all items for lapsed lines. */
typedef struct HoldSearch
{
	Relation	hold;
	Snapshot	snapshot;
	RelationScan items;			/* by sku and expiry */
	TupleTableSlot *row;
	TimestampTz now;
} HoldSearch;

static void
hold_seek_key(ScanKey key, const HoldsPosition *position)
{
	if (position->sku != NULL && position->expires_at == DT_NOEND)
		ScanKeyInit(key, 1, BTGreaterStrategyNumber, F_TEXT_GT,
					PointerGetDatum(position->sku));
	else
		ScanKeyInit(key, 1, BTGreaterEqualStrategyNumber, F_TEXT_GE,
					PointerGetDatum(position->sku == NULL ?
									cstring_to_text("") : position->sku));
}

static void
hold_search_begin(HoldSearch *search, const HoldsPosition *position)
{
	ScanKeyData key;

	search->hold = hold_open();
	search->snapshot = RegisterSnapshot(GetLatestSnapshot());
	search->row = hold_slot(search->hold);
	search->now = GetCurrentTimestamp();
	hold_seek_key(&key, position);
	relation_scan_begin(&search->items, search->hold, HOLD_ATT_SKU + 1, 0,
						&key, 1, search->snapshot);
}

static void
hold_search_end(HoldSearch *search)
{
	ExecDropSingleTupleTableSlot(search->row);
	relation_scan_end(&search->items, NoLock);
	UnregisterSnapshot(search->snapshot);
	table_close(search->hold, NoLock);
}

/*
 * Was this line read before?  Lines with the same expiry are in the order of
 * their tids.
 */
static bool
hold_is_passed(const HoldsPosition *position, TupleTableSlot *row)
{
	ItemPointerData passed = position->tid;
	TimestampTz expiry = hold_expiry(row);

	if (position->sku == NULL || position->expires_at == DT_NOEND)
		return false;
	if (args_compare_texts(position->sku,
						   DatumGetTextPP(row_value(row, HOLD_ATT_SKU))) != 0)
		return false;
	return expiry < position->expires_at ||
		(expiry == position->expires_at &&
		 ItemPointerCompare(&row->tts_tid, &passed) <= 0);
}

static void
hold_set_position(HoldsPosition *position, TupleTableSlot *row,
				  TimestampTz expires_at)
{
	Datum		sku = row_value(row, HOLD_ATT_SKU);

	if (position->sku == NULL ||
		args_compare_texts(position->sku, DatumGetTextPP(sku)) != 0)
		position->sku = DatumGetTextPCopy(sku);
	position->expires_at = expires_at;
	position->tid = row->tts_tid;
}

/*
 * Looks at the next line.  Returns whether it is the first lapsed one of a
 * reservation.  If it has not lapsed, continues with the next item, since the
 * others of this item lapse later.  If the item has a counter, that knows when.
 */
static bool
hold_search_line(HoldSearch *search, HoldsPosition *position, TimestampTz *next)
{
	TupleTableSlot *row = search->row;
	TimestampTz expiry = hold_expiry(row);
	ScanKeyData key;

	if (expiry <= search->now)
	{
		if (hold_is_passed(position, row))
			return false;
		hold_set_position(position, row, expiry);
		return !hold_is_repeated(search->hold, row, search->snapshot,
								 search->now);
	}
	if (!escrow_is_there(catalog_get()->stock_log,
						 DatumGetTextPP(row_value(row, HOLD_ATT_SKU))))
		*next = Min(*next, expiry);
	hold_set_position(position, row, DT_NOEND);
	hold_seek_key(&key, position);
	relation_scan_move(&search->items, &key, 1);
	return false;
}

int
holds_lapsed_from(HoldsPosition *position, int max, text ***reservations,
				  TimestampTz *next)
{
	int			room = 16;
	int			count = 0;
	HoldSearch	search;

	*reservations = palloc(room * sizeof(text *));
	hold_search_begin(&search, position);
	for (int lines = 0; count < max && lines < HOLD_SEARCH_LINES_MAX; lines++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!relation_scan_next(&search.items, search.row))
		{
			position->sku = NULL;
			break;
		}
		if (hold_search_line(&search, position, next))
			hold_add_name(reservations, &count, &room,
						  row_value(search.row, HOLD_ATT_RESERVATION));
	}
	hold_search_end(&search);
	return count;
}
