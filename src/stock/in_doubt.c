/*
 * in_doubt.c
 *		What prepared transactions have done to the counters of items.
 *
 * A transaction that is prepared leaves its session, and no callback runs when
 * it ends.  What it has done to each item (EscrowPart) is in doubt until then:
 * it is in a table in shared memory, and the entry there has the pin that the
 * transaction had.  Whoever comes after its end settles it as a callback would
 * have done: the session that has run COMMIT or ROLLBACK PREPARED, the sweeper,
 * and external DML, which waits for the end and needs counters without pins.
 *
 * The steps that keep the counters right:
 *
 *   PREPARE   enter each item, while an error is still possible; when the
 *             transaction is prepared, and before others can end it, activate
 *             the entries
 *   settle    only active entries, and only when the end of the transaction is
 *             visible; with the lock of the table
 *
 * After a restart the table is empty, and the counters are loaded again.  A
 * load does not see the rows of a transaction that is still prepared.  So each
 * of these leaves a row for each item in stock_in_doubt, which it deletes
 * again: nobody else ever sees it, but it stays as long as the transaction is
 * in progress.  A load enters what it finds there.  First it reads these rows,
 * then what has been committed, and then, with the lock of the table, it makes
 * sure that none of the transactions has ended meanwhile, and publishes the
 * counter and its entries together.
 *
 * Model: test/models/prepared_stock.pml.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/prepared.h"
#include "base/relation.h"
#include "base/shared.h"
#include "stock/in_doubt.h"
#include "stock/item.h"
#include "stock/lapse.h"
#include "stock/queue.h"

#define IN_DOUBT_TRANCHE "idempotency stock in doubt"
#define IN_DOUBT_ITEMS 100		/* for each transaction that can be prepared */

/* The columns of stock_in_doubt, counted from 0. */
enum
{
	DOUBT_ATT_SKU,
	DOUBT_ATT_TAKEN,
	DOUBT_ATT_RECEIVED,
	DOUBT_ATT_LEAVING,
	DOUBT_ATT_PENDING,
	DOUBT_ATT_JOINED,
	DOUBT_ATT_SERVED,
	DOUBT_ATT_CREATED,
	DOUBT_ATT_LAPSES_AT,
	DOUBT_ATTS
};

typedef struct InDoubt
{
	Oid			database;
	FullTransactionId xid;
	bool		active;			/* the transaction is prepared */
	EscrowItem *item;			/* pinned, once active */
	EscrowPart	part;
} InDoubt;

/* The entries in use come first. */
typedef struct InDoubtShared
{
	pg_atomic_uint32 count;		/* changed with the lock */
	InDoubt		entries[FLEXIBLE_ARRAY_MEMBER];
} InDoubtShared;

static InDoubtShared *shared = NULL;
static LWLock *lock = NULL;
static FullTransactionId entering;	/* while there are entries to activate */

PG_FUNCTION_INFO_V1(stock_settle_prepared);

static int
in_doubt_room(void)
{
	return max_prepared_xacts * IN_DOUBT_ITEMS;
}

static Size
in_doubt_size(void)
{
	return add_size(offsetof(InDoubtShared, entries),
					mul_size(in_doubt_room(), sizeof(InDoubt)));
}

void
in_doubt_request(void)
{
	RequestAddinShmemSpace(in_doubt_size());
	RequestNamedLWLockTranche(IN_DOUBT_TRANCHE, 1);
}

void
in_doubt_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("idempotency stock in doubt", in_doubt_size(),
							 &found);
	lock = &GetNamedLWLockTranche(IN_DOUBT_TRANCHE)->lock;
	if (!found)
		pg_atomic_init_u32(&shared->count, 0);
	LWLockRelease(AddinShmemInitLock);
}

static int
in_doubt_count(void)
{
	return pg_atomic_read_u32(&shared->count);
}

/*
 * Adds an entry; the caller has made sure that there is room, with the lock.
 */
static void
in_doubt_add(const InDoubt *entry)
{
	int			count = in_doubt_count();

	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	Assert(count < in_doubt_room());
	shared->entries[count] = *entry;
	pg_atomic_write_u32(&shared->count, count + 1);
}

/*
 * The last entry takes the place of the one that is removed.
 */
static void
in_doubt_remove(int at)
{
	int			last = in_doubt_count() - 1;

	Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	Assert(at >= 0 && at <= last);
	shared->entries[at] = shared->entries[last];
	pg_atomic_write_u32(&shared->count, last);
}

static void
in_doubt_raise_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many items of stock are in doubt"),
			 errdetail("There is room for %d, which prepared transactions have changed.",
					   in_doubt_room()),
			 errhint("End prepared transactions (pg_prepared_xacts), or increase max_prepared_transactions, which gives room for %d items each.",
					 IN_DOUBT_ITEMS)));
}

/*
 * Writes the row that a load after a restart will find, and deletes it.
 */
static void
in_doubt_write(const text *sku, const EscrowPart *part)
{
	Relation	table = table_open(catalog_get()->stock_in_doubt,
								   RowExclusiveLock);
	TupleTableSlot *row = relation_slot(table, DOUBT_ATTS);

	ExecClearTuple(row);
	memset(row->tts_isnull, false, DOUBT_ATTS * sizeof(bool));
	row->tts_values[DOUBT_ATT_SKU] = PointerGetDatum(sku);
	row->tts_values[DOUBT_ATT_TAKEN] = Int64GetDatum(part->taken);
	row->tts_values[DOUBT_ATT_RECEIVED] = Int64GetDatum(part->received);
	row->tts_values[DOUBT_ATT_LEAVING] = Int64GetDatum(part->left);
	row->tts_values[DOUBT_ATT_PENDING] = Int64GetDatum(part->pending);
	row->tts_values[DOUBT_ATT_JOINED] = Int32GetDatum(part->joined);
	row->tts_values[DOUBT_ATT_SERVED] = Int32GetDatum(part->served);
	row->tts_values[DOUBT_ATT_CREATED] = BoolGetDatum(part->created);
	row->tts_values[DOUBT_ATT_LAPSES_AT] = TimestampTzGetDatum(part->lapses_at);
	ExecStoreVirtualTuple(row);
	relation_insert(table, row);
	if (relation_delete(table, &row->tts_tid) != TM_Ok)
		elog(ERROR, "could not delete a new row of stock_in_doubt");
	ExecDropSingleTupleTableSlot(row);
	table_close(table, NoLock);
}

void
in_doubt_enter(EscrowItem *item, const EscrowPart *part)
{
	InDoubt		entry = {
		.database = MyDatabaseId,
		.xid = GetTopFullTransactionId(),
		.item = item,
		.part = *part
	};
	bool		room;

	Assert(!FullTransactionIdIsValid(entering) ||
		   FullTransactionIdEquals(entering, entry.xid));
	entering = entry.xid;
	in_doubt_write(escrow_sku(item), part);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	room = in_doubt_count() < in_doubt_room();
	if (room)
		in_doubt_add(&entry);
	LWLockRelease(lock);
	if (!room)
		in_doubt_raise_full();
}

static bool
in_doubt_is_mine(const InDoubt *entry)
{
	return FullTransactionIdEquals(entry->xid, entering);
}

void
in_doubt_activate(void)
{
	if (!FullTransactionIdIsValid(entering))
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < in_doubt_count(); i++)
		shared->entries[i].active |= in_doubt_is_mine(&shared->entries[i]);
	LWLockRelease(lock);
	entering = InvalidFullTransactionId;
}

void
in_doubt_cancel(void)
{
	if (!FullTransactionIdIsValid(entering))
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = in_doubt_count() - 1; i >= 0; i--)
	{
		if (!in_doubt_is_mine(&shared->entries[i]))
			continue;
		Assert(!shared->entries[i].active);
		in_doubt_remove(i);
	}
	LWLockRelease(lock);
	entering = InvalidFullTransactionId;
}

/*
 * Is the transaction not in progress any more?  Only then may its outcome be
 * read: the commit log knows it before it is visible.
 */
static bool
in_doubt_has_ended(FullTransactionId xid)
{
	return !TransactionIdIsInProgress(XidFromFullTransactionId(xid));
}

/*
 * Returns whether the queue of the item could be served now.
 */
static bool
in_doubt_settle(const InDoubt *entry)
{
	Assert(entry->active && LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
	if (!TransactionIdDidCommit(XidFromFullTransactionId(entry->xid)))
		return escrow_abort(entry->item, &entry->part);
	return escrow_commit(entry->item, &entry->part);
}

/*
 * Returns whether all transactions are known to have ended that were prepared
 * before the last start.
 */
static bool
in_doubt_none_recovered(void)
{
	return max_prepared_xacts == 0 ||
		pg_atomic_read_u32(&shared_my_database()->prepared_before_start) == 1;
}

/*
 * How many transactions are left that have changed stock and were prepared
 * before the last start.  One that has ended may have made reservations that
 * nobody was told of, so the sweeper searches for them.
 */
static int
in_doubt_recovered(Oid log, PreparedXact **xacts)
{
	pg_atomic_uint32 *known = &shared_my_database()->prepared_before_start;
	bool		unknown;
	uint32		count = 0;
	int			all;

	if (in_doubt_none_recovered())
		return 0;
	all = prepared_holders(log, xacts, &unknown);
	for (int i = 0; i < all; i++)
	{
		if ((*xacts)[i].recovered)
			(*xacts)[count++] = (*xacts)[i];
	}
	if (pg_atomic_exchange_u32(known, count + 1) != count + 1)
	{
		lapse_begin();
		queue_begin();
		lapse_note(0);
		queue_call(QUEUE_ALL);
	}
	return count;
}

/*
 * The entries of a transaction are next to each other, mostly, so it is asked
 * for once.
 */
void
in_doubt_resolve(void)
{
	FullTransactionId asked = InvalidFullTransactionId;
	bool		ended = false;
	bool		call = false;

	if (max_prepared_xacts == 0 || in_doubt_count() == 0 ||
		shared_existing_database() == NULL)
		return;
	lapse_begin();
	queue_begin();
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = in_doubt_count() - 1; i >= 0; i--)
	{
		const InDoubt *entry = &shared->entries[i];

		if (entry->database != MyDatabaseId || !entry->active)
			continue;
		if (!FullTransactionIdEquals(entry->xid, asked))
			ended = in_doubt_has_ended(entry->xid);
		asked = entry->xid;
		if (!ended)
			continue;
		call |= in_doubt_settle(entry);
		in_doubt_remove(i);
	}
	LWLockRelease(lock);
	if (call)
		queue_call(QUEUE_SOME);
}

/*
 * SQL: stock_settle_prepared(max_rows), for the sweeper.
 */
Datum
stock_settle_prepared(PG_FUNCTION_ARGS)
{
	PreparedXact *xacts;

	shared_require("stock");
	(void) in_doubt_recovered(catalog_get()->stock_log, &xacts);
	in_doubt_resolve();
	PG_RETURN_BOOL(false);
}

static InDoubt
in_doubt_read(TupleTableSlot *row, EscrowItem *item, FullTransactionId xid)
{
	InDoubt		entry = {
		.database = MyDatabaseId, .xid = xid, .active = true, .item = item
	};
	EscrowPart *part = &entry.part;

	slot_getallattrs(row);
	part->taken = DatumGetInt64(row->tts_values[DOUBT_ATT_TAKEN]);
	part->received = DatumGetInt64(row->tts_values[DOUBT_ATT_RECEIVED]);
	part->left = DatumGetInt64(row->tts_values[DOUBT_ATT_LEAVING]);
	part->pending = DatumGetInt64(row->tts_values[DOUBT_ATT_PENDING]);
	part->joined = DatumGetInt32(row->tts_values[DOUBT_ATT_JOINED]);
	part->served = DatumGetInt32(row->tts_values[DOUBT_ATT_SERVED]);
	part->created = DatumGetBool(row->tts_values[DOUBT_ATT_CREATED]);
	part->lapses_at = DatumGetTimestampTz(row->tts_values[DOUBT_ATT_LAPSES_AT]);
	return entry;
}

void
in_doubt_lock_for_load(void)
{
	Relation	table;

	if (in_doubt_none_recovered())
		return;
	table = table_open(catalog_get()->stock_in_doubt, RowExclusiveLock);
	index_close(relation_open_index(table, DOUBT_ATT_SKU + 1, 1, 0,
									RowExclusiveLock), NoLock);
	table_close(table, NoLock);
}

static const PreparedXact *
in_doubt_writer(TupleTableSlot *row, const PreparedXact *xacts, int count)
{
	bool		isnull;
	Datum		value = slot_getsysattr(row, MinTransactionIdAttributeNumber,
										&isnull);
	TransactionId xmin = DatumGetTransactionId(value);

	for (int i = 0; i < count; i++)
	{
		if (XidFromFullTransactionId(xacts[i].xid) == xmin)
			return &xacts[i];
	}
	return NULL;
}

/*
 * Finds what these transactions have done to an item; palloc'd.  Each has one
 * row at most for it.
 */
static int
in_doubt_find(EscrowItem *item, const text *sku, const PreparedXact *xacts,
			  int xact_count, InDoubt **found)
{
	Relation	table = table_open(catalog_get()->stock_in_doubt,
								   RowExclusiveLock);
	TupleTableSlot *row = relation_slot(table, DOUBT_ATTS);
	int			count = 0;
	RelationScan scan;
	ScanKeyData key;

	*found = palloc(mul_size(xact_count, sizeof(InDoubt)));
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(sku));
	relation_scan_begin(&scan, table, DOUBT_ATT_SKU + 1, 0, &key, 1,
						SnapshotAny);
	while (relation_scan_next(&scan, row))
	{
		const PreparedXact *writer = in_doubt_writer(row, xacts, xact_count);

		CHECK_FOR_INTERRUPTS();
		Assert(writer == NULL || count < xact_count);
		if (writer != NULL)
			(*found)[count++] = in_doubt_read(row, item, writer->xid);
	}
	ExecDropSingleTupleTableSlot(row);
	relation_scan_end(&scan, NoLock);
	table_close(table, NoLock);
	return count;
}

/*
 * Publishes the counter with what is in doubt.  Returns false, with nothing
 * changed, if one of the transactions has ended: the level may include it.
 */
static bool
in_doubt_publish(EscrowItem *item, ItemLevel level, const InDoubt *found,
				 int count)
{
	bool		room;
	bool		ended = false;

	if (count == 0)
	{
		escrow_publish(item, &level);
		return true;
	}
	LWLockAcquire(lock, LW_EXCLUSIVE);
	room = in_doubt_count() + count <= in_doubt_room();
	for (int i = 0; i < count; i++)
		ended |= in_doubt_has_ended(found[i].xid);
	for (int i = 0; i < count && room && !ended; i++)
	{
		const EscrowPart *part = &found[i].part;

		level.available -= part->taken;
		level.on_hand += part->received;
		level.waiting += part->joined;
		escrow_pin_again(item);
		in_doubt_add(&found[i]);
	}
	if (room && !ended)
		escrow_publish(item, &level);
	LWLockRelease(lock);
	if (!room && !ended)
		in_doubt_raise_full();
	return !ended;
}

void
in_doubt_load(EscrowItem *item, Oid log, const text *sku)
{
	ItemLevel	level;
	PreparedXact *xacts;
	InDoubt    *found = NULL;
	int			count;

	do
	{
		CHECK_FOR_INTERRUPTS();
		count = in_doubt_recovered(log, &xacts);
		if (count > 0)
			count = in_doubt_find(item, sku, xacts, count, &found);
		level = item_load(sku);
	} while (!in_doubt_publish(item, level, found, count));
}

/*
 * The database has no prepared transactions any more.
 */
void
in_doubt_forget_database(Oid database)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = in_doubt_count() - 1; i >= 0; i--)
	{
		const InDoubt *entry = &shared->entries[i];

		if (entry->database != database)
			continue;
		Assert(entry->active);
		escrow_unpin(entry->item);
		in_doubt_remove(i);
	}
	LWLockRelease(lock);
}
