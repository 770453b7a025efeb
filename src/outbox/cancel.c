/*
 * cancel.c
 *		Has an event been cancelled before its time?
 *
 * outbox_cancel (functions.sql) inserts a row into outbox_cancelled and then
 * looks at the clock: the event can be cancelled if it is not due yet.  Those
 * who deliver events look at the clock first, and for such a row afterwards.
 * So an event that they find due, without a row, cannot be cancelled any more;
 * no lock is needed.  They must see the rows of open transactions, too, and use
 * a dirty snapshot.  Until such a transaction has ended, the event is left
 * alone.  Model: test/models/cancel.pml.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "fmgr.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "outbox/cancel.h"

/* The columns of outbox_cancelled, counted from 0. */
enum
{
	CANCELLED_ATT_POSITION,
	CANCELLED_ATT_CANCELLED_AT,
	CANCELLED_ATT_XID,
	CANCELLED_ATT_SWEPT,
	CANCELLED_ATTS
};

PG_FUNCTION_INFO_V1(outbox_is_cancelled);

/*
 * Looks at all versions of the row of a position, also those that open
 * transactions have inserted or deleted.  The sweeper updates a row that is
 * committed, so there may be two.
 */
static CancelState
cancel_find(Relation table, int64 position)
{
	TupleTableSlot *slot = relation_slot(table, CANCELLED_ATTS);
	CancelState state = CANCEL_NONE;
	RelationScan scan;
	ScanKeyData key;
	SnapshotData dirty;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(position));
	InitDirtySnapshot(dirty);
	relation_scan_begin(&scan, table, CANCELLED_ATT_POSITION + 1, 0, &key, 1,
						&dirty);
	while (state != CANCEL_DONE && relation_scan_next(&scan, slot))
		state = TransactionIdIsValid(dirty.xmin) ? CANCEL_OPEN : CANCEL_DONE;
	relation_scan_end(&scan, RowExclusiveLock);
	ExecDropSingleTupleTableSlot(slot);
	return state;
}

/*
 * Usually the table is empty.
 */
CancelState
cancel_state(int64 position)
{
	CancelState state = CANCEL_NONE;
	Relation	table = table_open(catalog_get()->outbox_cancelled,
								   AccessShareLock);

	if (RelationGetNumberOfBlocks(table) > 0)
		state = cancel_find(table, position);
	table_close(table, AccessShareLock);
	return state;
}

/*
 * SQL: outbox_is_cancelled(position); null: an open transaction may cancel it.
 */
Datum
outbox_is_cancelled(PG_FUNCTION_ARGS)
{
	CancelState state = cancel_state(PG_GETARG_INT64(0));

	if (state == CANCEL_OPEN)
		PG_RETURN_NULL();
	PG_RETURN_BOOL(state == CANCEL_DONE);
}
