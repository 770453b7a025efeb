/*
 * item.c
 *		The root records of items, and what they, the log and the holds add up
 *		to.
 *
 * A root record has the sums of the rows of the log that were compacted.  It is
 * created with the item and changed only by the compaction, so reserving and
 * receiving never wait for it.
 *
 * What may be promised beyond what is on hand, the backorder, counts as on hand
 * here and in the counters.
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
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/catalog.h"
#include "base/relation.h"
#include "stock/hold.h"
#include "stock/item.h"
#include "stock/ledger.h"
#include "stock/queue.h"
#include "stock/row.h"

/* The columns of stock_item, counted from 0. */
enum
{
	ITEM_ATT_SKU,
	ITEM_ATT_RECEIVED,
	ITEM_ATT_ADJUSTED,
	ITEM_ATT_CONFIRMED,
	ITEM_ATT_BACKORDER,
	ITEM_ATTS
};

void
item_lock_for_load(void)
{
	Relation	item = table_open(catalog_get()->stock_item, RowExclusiveLock);
	Relation	log = table_open(catalog_get()->stock_log, NoLock);
	Relation	index;

	index = relation_open_index(item, ITEM_ATT_SKU + 1, 1, 0, RowExclusiveLock);
	index_close(index, NoLock);
	index = relation_open_index(log, LOG_ATT_SKU + 1, 1, 0, RowExclusiveLock);
	index_close(index, NoLock);
	table_close(log, NoLock);
	table_close(item, NoLock);
	holds_lock_for_sum();
	queue_lock_for_count();
}

static bool
item_find(Relation item, const text *sku, Snapshot snapshot,
		  TupleTableSlot *row)
{
	RelationScan scan;
	ScanKeyData key;
	bool		found;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(sku));
	relation_scan_begin(&scan, item, ITEM_ATT_SKU + 1, 0, &key, 1, snapshot);
	found = relation_scan_next(&scan, row);
	if (found)
		ExecMaterializeSlot(row);
	relation_scan_end(&scan, NoLock);
	return found;
}

/*
 * Returns a sum of the root record.  Raises an error unless it is a finite
 * whole number.
 */
static Datum
item_sum(TupleTableSlot *row, int column)
{
	Datum		sum = row_value(row, column);
	Datum		whole;

	if (numeric_is_nan(DatumGetNumeric(sum)) ||
		numeric_is_inf(DatumGetNumeric(sum)))
		row_raise(row, column, "is not a number");
	whole = DirectFunctionCall2(numeric_trunc, sum, Int32GetDatum(0));
	if (!DatumGetBool(DirectFunctionCall2(numeric_eq, sum, whole)))
		row_raise(row, column, "is not a whole number");
	return whole;
}

static int64
item_int64(const text *sku, Datum number)
{
	Datum		least = NumericGetDatum(int64_to_numeric(PG_INT64_MIN));
	Datum		most = NumericGetDatum(int64_to_numeric(PG_INT64_MAX));

	if (DatumGetBool(DirectFunctionCall2(numeric_lt, number, least)) ||
		DatumGetBool(DirectFunctionCall2(numeric_gt, number, most)))
		row_raise_range(sku);
	return DatumGetInt64(DirectFunctionCall1(numeric_int8, number));
}

static Datum
item_on_hand(TupleTableSlot *row, Datum logged)
{
	Datum		on_hand;

	on_hand = DirectFunctionCall2(numeric_add, item_sum(row, ITEM_ATT_RECEIVED),
								  item_sum(row, ITEM_ATT_ADJUSTED));
	on_hand = DirectFunctionCall2(numeric_add, on_hand,
								  item_sum(row, ITEM_ATT_BACKORDER));
	on_hand = DirectFunctionCall2(numeric_sub, on_hand,
								  item_sum(row, ITEM_ATT_CONFIRMED));
	return DirectFunctionCall2(numeric_add, on_hand, logged);
}

/*
 * What this transaction confirms stays on hand until it has committed.  A
 * database that was upgraded from 0.2.0 can have an on_hand that is out of
 * range: then nothing can be received until a load finds it in range.
 */
static void
item_add_up(ItemLevel *level, const text *sku, TupleTableSlot *row,
			const LedgerSum *log, int64 reserved)
{
	Datum		on_hand = item_on_hand(row, log->on_hand);
	Datum		most = NumericGetDatum(int64_to_numeric(PG_INT64_MAX));
	Datum		held = NumericGetDatum(int64_to_numeric(reserved));
	Datum		available = DirectFunctionCall2(numeric_sub, on_hand, held);

	level->available = item_int64(sku, available);
	on_hand = DirectFunctionCall2(numeric_add, on_hand, log->leaving);
	level->too_many =
		DatumGetBool(DirectFunctionCall2(numeric_gt, on_hand, most));
	level->on_hand = level->too_many ? PG_INT64_MAX : item_int64(sku, on_hand);
}

/*
 * Root record, log and holds are read with one snapshot.  It sees rows that are
 * being compacted in exactly one of the first two.
 */
ItemLevel
item_load(const text *sku)
{
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	Relation	item = table_open(catalog_get()->stock_item, NoLock);
	TupleTableSlot *row = relation_slot(item, ITEM_ATTS);
	ItemLevel	level = {
		.known = item_find(item, sku, latest, row),
		.lapses_at = DT_NOEND
	};

	if (level.known)
	{
		LedgerSum	log = ledger_sum(sku, latest);

		level.rows = log.rows;
		level.waiting = queue_count(sku, latest);
		item_add_up(&level, sku, row, &log,
					holds_sum(sku, latest, &level.lapses_at));
	}
	ExecDropSingleTupleTableSlot(row);
	table_close(item, NoLock);
	UnregisterSnapshot(latest);
	return level;
}

int64
item_backorder(const text *sku)
{
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	Relation	item = table_open(catalog_get()->stock_item, NoLock);
	TupleTableSlot *row = relation_slot(item, ITEM_ATTS);
	int64		backorder = 0;

	if (item_find(item, sku, latest, row))
	{
		LedgerSum	log = ledger_sum(sku, latest);
		Datum		root = item_sum(row, ITEM_ATT_BACKORDER);

		backorder = item_int64(sku, DirectFunctionCall2(numeric_add, root,
														log.backorder));
	}
	ExecDropSingleTupleTableSlot(row);
	table_close(item, NoLock);
	UnregisterSnapshot(latest);
	return backorder;
}

/*
 * Waits for a transaction that is writing an item's row.  Returns whether the
 * item exists and is committed.
 */
static bool
item_wait(Relation item, const text *sku, TupleTableSlot *row)
{
	SnapshotData dirty;
	RelationWriter writer;

	InitDirtySnapshot(dirty);
	if (!item_find(item, sku, &dirty, row))
		return false;
	writer = relation_writer(&dirty);
	if (!TransactionIdIsValid(writer.xid))
		return true;
	relation_wait_for_writer(item, &row->tts_tid, &writer);
	return false;
}

static void
item_store(TupleTableSlot *row, const text *sku)
{
	Datum		zero = NumericGetDatum(int64_to_numeric(0));

	ExecClearTuple(row);
	memset(row->tts_isnull, false, ITEM_ATTS * sizeof(bool));
	row->tts_values[ITEM_ATT_SKU] = PointerGetDatum(sku);
	row->tts_values[ITEM_ATT_RECEIVED] = zero;
	row->tts_values[ITEM_ATT_ADJUSTED] = zero;
	row->tts_values[ITEM_ATT_CONFIRMED] = zero;
	row->tts_values[ITEM_ATT_BACKORDER] = zero;
	ExecStoreVirtualTuple(row);
}

void
item_create(const text *sku)
{
	Relation	item = table_open(catalog_get()->stock_item, RowExclusiveLock);
	TupleTableSlot *row = relation_slot(item, ITEM_ATTS);

	while (!item_wait(item, sku, row))
	{
		CHECK_FOR_INTERRUPTS();
		item_store(row, sku);
		if (relation_insert_or_conflict(item, row))
			break;
	}
	ExecDropSingleTupleTableSlot(row);
	table_close(item, NoLock);
}
