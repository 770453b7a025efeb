/*
 * ring.c
 *		Which tables of a ring are live.
 *
 * A ring is three tables of the same layout, its segments.  New rows go into
 * the current segment.  The sweeper opens the next segment from time to time.
 * When nothing in an old segment is needed any more, it is retired, and later
 * truncated.  So expired rows cost no DELETE, no dead tuples and no index on
 * the time.
 *
 * TRUNCATE is not MVCC-safe: rows also disappear for older snapshots.  A
 * snapshot that is older than a row's move into the current segment would see
 * the row in neither segment.  So the retirement, which comes after the last
 * move, records the next transaction id, and the table is truncated when every
 * snapshot in the database is newer than that.
 *
 * The state table is the map; each session caches it.  Its lock guards the map:
 *
 * - Writers hold RowExclusiveLock from the first look for a row until the row
 *   is physically inserted, and not until the end of the transaction.  While
 *   they hold it they wait for no row that another transaction has written;
 *   they may wait for a lock on a whole table.
 * - Whatever changes the map holds ShareRowExclusiveLock until the change is
 *   committed.  The commit's invalidation message reaches each writer no later
 *   than the lock is granted to it.
 *
 * Rows are inserted and updated only in the current segment, where one unique
 * index decides.  An old segment is delete-only: to change a row there, delete
 * it and insert it into the current segment, in one transaction.  The modules
 * decide when the next segment is due and which rows are needed:
 * claim/functions.sql, outbox/segments.sql, stock/compaction.sql.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/heap.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "base/compat.h"
#include "base/invalidation.h"
#include "base/ring.h"

/* The columns of a state table that make up the map. */
enum
{
	RING_ATT_SLOT = 1,
	RING_ATT_STATE,
	RING_ATT_SEGMENT
};

/* A session's cached map of a ring. */
typedef struct RingCache
{
	RingMap		map;
	Oid			state;			/* the map's state table, or InvalidOid */
	Oid			locked;			/* the state table that was locked last */
} RingCache;

static RingCache rings[RINGS];
static bool callback_registered = false;

PG_FUNCTION_INFO_V1(idempotency_ring_changed);
PG_FUNCTION_INFO_V1(idempotency_next_xid);
PG_FUNCTION_INFO_V1(idempotency_horizon);
PG_FUNCTION_INFO_V1(idempotency_truncate_in_place);

static void
ring_state_changed(Oid relation)
{
	for (int i = 0; i < RINGS; i++)
	{
		if (!OidIsValid(relation) || relation == rings[i].state)
			rings[i].state = InvalidOid;
	}
}

/*
 * Only our functions write a state table, but its constraints can be dropped
 * and its rows changed by its owner.
 */
static void
ring_raise(const CatalogRing *ring, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" of extension idempotency was altered",
					get_rel_name(ring->state)),
			 errdetail("%s", problem)));
}

/*
 * Adds a table to the map, which is sorted by segment, newest first.
 */
static void
ring_add(RingMap *map, int64 segments[RING_SIZE], Oid table, int64 segment)
{
	int			at = map->live;

	Assert(map->live < RING_SIZE);
	for (; at > 0 && segments[at - 1] < segment; at--)
	{
		segments[at] = segments[at - 1];
		map->tables[at] = map->tables[at - 1];
	}
	segments[at] = segment;
	map->tables[at] = table;
	map->live++;
}

static void
ring_add_row(RingMap *map, int64 segments[RING_SIZE], const CatalogRing *ring,
			 TupleTableSlot *row)
{
	bool		isnull;
	int			slot = DatumGetInt16(slot_getattr(row, RING_ATT_SLOT, &isnull));
	Datum		value = slot_getattr(row, RING_ATT_STATE, &isnull);
	char	   *state;

	if (slot < 0 || slot >= RING_SIZE)
		ring_raise(ring, "It has a row for a table that is not there.");
	if (isnull)
		ring_raise(ring, "It has a row without a state.");
	state = TextDatumGetCString(value);
	if (strcmp(state, "current") != 0 && strcmp(state, "old") != 0)
		return;
	if (map->live == RING_SIZE)
		ring_raise(ring, "It has more than one row for a table.");
	ring_add(map, segments, ring->tables[slot],
			 DatumGetInt64(slot_getattr(row, RING_ATT_SEGMENT, &isnull)));
}

/*
 * Reads the map as it is now, independent of the transaction's snapshot.
 */
static RingMap
ring_load(const CatalogRing *ring)
{
	Relation	table = table_open(ring->state, NoLock);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = compat_table_beginscan(table, latest);
	TupleTableSlot *row = table_slot_create(table, NULL);
	int64		segments[RING_SIZE];
	RingMap		map = {0};

	Assert(CheckRelationLockedByMe(table, RowExclusiveLock, true));
	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
		ring_add_row(&map, segments, ring, row);
	ExecDropSingleTupleTableSlot(row);
	table_endscan(scan);
	UnregisterSnapshot(latest);
	table_close(table, NoLock);
	if (map.live == 0)
		ring_raise(ring, "It has no row for a table that is in use.");
	return map;
}

/*
 * The extension may be dropped and created again while we wait for the lock, so
 * the state table is looked up again when the lock is granted.
 */
RingMap
ring_lock(RingId id)
{
	RingCache  *cache = &rings[id];

	for (;;)
	{
		cache->locked = catalog_get()->rings[id].state;
		LockRelationOid(cache->locked, RowExclusiveLock);
		if (catalog_get()->rings[id].state == cache->locked)
			break;
		ring_unlock(id);
	}
	if (cache->state != cache->locked)
	{
		CatalogRing ring = catalog_get()->rings[id];

		if (!callback_registered)
			invalidation_watch_relations(ring_state_changed);
		callback_registered = true;
		cache->map = ring_load(&ring);
		cache->state = cache->locked;
	}
	return cache->map;
}

void
ring_unlock(RingId id)
{
	Assert(OidIsValid(rings[id].locked));
	UnlockRelationOid(rings[id].locked, RowExclusiveLock);
}

/*
 * SQL: idempotency_ring_changed(ring).  Makes every session read the map again
 * when this transaction has committed.
 */
Datum
idempotency_ring_changed(PG_FUNCTION_ARGS)
{
	CacheInvalidateRelcacheByRelid(PG_GETARG_OID(0));
	PG_RETURN_VOID();
}

/*
 * SQL: idempotency_next_xid(), a transaction id later than that of every
 * transaction that has written so far.
 */
Datum
idempotency_next_xid(PG_FUNCTION_ARGS)
{
	PG_RETURN_FULLTRANSACTIONID(ReadNextFullTransactionId());
}

/*
 * SQL: idempotency_horizon(ring), the oldest transaction id that a snapshot in
 * this database may still show as open.
 */
Datum
idempotency_horizon(PG_FUNCTION_ARGS)
{
	Relation	table = table_open(PG_GETARG_OID(0), AccessShareLock);
	TransactionId horizon = GetOldestNonRemovableTransactionId(table);
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	table_close(table, AccessShareLock);
	if (horizon > XidFromFullTransactionId(next) && epoch == 0)
		PG_RETURN_FULLTRANSACTIONID(FirstNormalFullTransactionId);
	if (horizon > XidFromFullTransactionId(next))
		epoch--;
	PG_RETURN_FULLTRANSACTIONID(FullTransactionIdFromEpochAndXid(epoch,
																 horizon));
}

static bool
ring_has_table(Oid table)
{
	for (int id = 0; id < RINGS; id++)
	{
		for (int i = 0; i < RING_SIZE; i++)
		{
			if (catalog_get()->rings[id].tables[i] == table)
				return true;
		}
	}
	return false;
}

/*
 * SQL: idempotency_truncate_in_place(table), for a full disk, where TRUNCATE
 * fails since it writes new indexes before it removes the old ones.  This is
 * not undone by a rollback.  The table stays retired then, and is truncated
 * again; nobody needs its rows, as for TRUNCATE.
 */
Datum
idempotency_truncate_in_place(PG_FUNCTION_ARGS)
{
	Oid			table = PG_GETARG_OID(0);

	if (!ring_has_table(table))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not a table of a ring", get_rel_name(table))));
	heap_truncate(list_make1_oid(table));
	PG_RETURN_VOID();
}
