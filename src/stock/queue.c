/*
 * queue.c
 *		Rows of stock_queue: the order in which reservations wait for an item.
 *
 * A reservation that waits has a row in stock_hold, with quantity 0, since
 * nothing is reserved for it yet, and the time when it stops waiting.  So its
 * name is taken, no sum counts it, and it expires as others do.  Its row in
 * stock_queue has what it waits for.  The row in stock_hold is locked or closed
 * before the one in stock_queue is removed, so two sessions never meet there.
 *
 * The counter of the item has the number of those that wait.  While there are
 * any, nothing is reserved past them; the sweeper serves them in the order of
 * their ids (serve.c).  It is called when a transaction ends that made more
 * available, joined the queue or left it.  Model: test/models/queue.pml.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/catalog.h"
#include "base/relation.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/queue.h"
#include "stock/row.h"
#include "stock/stock_xact.h"

static SharedDatabase *database = NULL;
static bool ignore_calls = false;

void
queue_begin(void)
{
	if (database == NULL)
		database = shared_my_database();
}

void
queue_ignore_calls(bool ignore)
{
	ignore_calls = ignore;
}

void
queue_call(QueueCall items)
{
	Assert(database != NULL);
	if (ignore_calls)
		return;
	pg_atomic_fetch_or_u32(&database->queues_called, items);
	shared_wake_worker(database, SHARED_SWEEPER);
}

int
queue_take_call(void)
{
	return pg_atomic_exchange_u32(&database->queues_called, QUEUE_NONE);
}

void
queue_call_evicted(Oid of)
{
	SharedDatabase *entry = shared_database_of(of);

	if (entry != NULL)
		pg_atomic_fetch_or_u32(&entry->queues_called, QUEUE_ALL);
}

static Relation
queue_open(void)
{
	return table_open(catalog_get()->stock_queue, RowExclusiveLock);
}

static TupleTableSlot *
queue_slot(Relation queue)
{
	return relation_slot(queue, QUEUE_ATTS);
}

void
queue_lock_for_count(void)
{
	Relation	queue = queue_open();

	index_close(relation_open_index(queue, QUEUE_ATT_SKU + 1, 1, 0,
									RowExclusiveLock), NoLock);
	table_close(queue, NoLock);
}

int
queue_count(const text *sku, Snapshot snapshot)
{
	Relation	queue = queue_open();
	TupleTableSlot *row = queue_slot(queue);
	int			count = 0;
	RelationScan scan;
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(sku));
	relation_scan_begin(&scan, queue, QUEUE_ATT_SKU + 1, 0, &key, 1, snapshot);
	while (relation_scan_next(&scan, row))
	{
		CHECK_FOR_INTERRUPTS();
		count++;
	}
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	table_close(queue, NoLock);
	return count;
}

void
queue_join(const text *reservation, const StockLine *line, int64 ttl_us)
{
	Relation	queue = queue_open();
	TupleTableSlot *row = queue_slot(queue);

	Assert(line->waits && line->opened_id > 0);
	ExecClearTuple(row);
	memset(row->tts_isnull, false, QUEUE_ATTS * sizeof(bool));
	row->tts_values[QUEUE_ATT_ID] = Int64GetDatum(line->opened_id);
	row->tts_values[QUEUE_ATT_QUANTITY] = Int64GetDatum(line->quantity);
	row->tts_values[QUEUE_ATT_TTL_US] = Int64GetDatum(ttl_us);
	row->tts_values[QUEUE_ATT_SKU] = PointerGetDatum(line->sku);
	row->tts_values[QUEUE_ATT_RESERVATION] = PointerGetDatum(reservation);
	ExecStoreVirtualTuple(row);
	relation_insert(queue, row);
	ExecDropSingleTupleTableSlot(row);
	table_close(queue, NoLock);
}

static QueueEntry
queue_entry(TupleTableSlot *row)
{
	QueueEntry	entry = {
		.id = DatumGetInt64(row_value(row, QUEUE_ATT_ID)),
		.quantity = row_quantity(row, QUEUE_ATT_QUANTITY, false),
		.ttl_us = DatumGetInt64(row_value(row, QUEUE_ATT_TTL_US)),
		.reservation = row_name(row, QUEUE_ATT_RESERVATION),
		.tid = row->tts_tid
	};

	if (entry.ttl_us <= 0 ||
		entry.ttl_us > SETTINGS_RESERVATION_TTL_MAX_S * USECS_PER_SEC)
		row_raise(row, QUEUE_ATT_TTL_US, "is out of range");
	return entry;
}

/*
 * Finds the row of an item with an id, or the first one from there on, as
 * committed now.
 */
static bool
queue_find(const text *sku, int64 id, bool later, QueueEntry *entry)
{
	Relation	queue = queue_open();
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *row = queue_slot(queue);
	RelationScan scan;
	ScanKeyData keys[2];
	bool		found;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(sku));
	ScanKeyInit(&keys[1], 2,
				later ? BTGreaterEqualStrategyNumber : BTEqualStrategyNumber,
				later ? F_INT8GE : F_INT8EQ, Int64GetDatum(id));
	relation_scan_begin(&scan, queue, QUEUE_ATT_SKU + 1, 0, keys,
						lengthof(keys), latest);
	found = relation_scan_next(&scan, row);
	if (found)
		*entry = queue_entry(row);
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	UnregisterSnapshot(latest);
	table_close(queue, NoLock);
	return found;
}

bool
queue_first(const text *sku, int64 from, QueueEntry *first)
{
	return queue_find(sku, from, true, first);
}

bool
queue_read(StockLine *line)
{
	QueueEntry	entry;

	if (!queue_find(line->sku, line->opened_id, false, &entry))
		return false;
	line->quantity = entry.quantity;
	return true;
}

void
queue_leave(StockLine *line)
{
	QueueEntry	entry;
	Relation	queue;

	Assert(line->waits && line->opened_id > 0);
	if (!queue_find(line->sku, line->opened_id, false, &entry))
		ereport(ERROR,
				(errcode(ERRCODE_CHECK_VIOLATION),
				 errmsg("a reservation that waits for \"%s\" is not in its queue",
						text_to_cstring(line->sku)),
				 errhint("It was not written by the functions of stock. Correct or delete it.")));
	line->quantity = entry.quantity;
	queue = queue_open();
	if (relation_delete(queue, &entry.tid) != TM_Ok)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on a row of table \"%s\"",
						RelationGetRelationName(queue))));
	table_close(queue, NoLock);
	stock_xact_leave(line);
}
