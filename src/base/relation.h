/*
 * relation.h
 *		Reads and writes rows of our own tables without going through a query.
 */
#ifndef BASE_RELATION_H
#define BASE_RELATION_H

#include "access/genam.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/*
 * Locks a relation until relation_release, or to the end of the transaction or
 * savepoint that is open, as long as the rows that it writes there may live.  A
 * lock that is taken in the ordinary way goes with the cursor that runs, which
 * can fail in a savepoint that is younger than it and than its earlier rows.
 */
extern void relation_hold(Oid relation, LOCKMODE mode);
extern void relation_release(Oid relation, LOCKMODE mode);

/* A slot for rows of one of our tables, which has to have so many columns. */
extern TupleTableSlot *relation_slot(Relation table, int columns);

/*
 * Finds a row by an index and stores it in the slot.  With a dirty snapshot
 * the transactions that are writing it are in the snapshot afterwards.
 */
extern bool relation_probe(Relation table, Relation index, ScanKey keys,
						   int key_count, Snapshot snapshot,
						   TupleTableSlot *slot);

/*
 * Opens the index of a table, which is locked, that is on the column first and
 * on so many columns at least.  It leaves out rows where filter, if that is not
 * 0, is null, and no others.
 */
extern Relation relation_open_index(Relation table, AttrNumber column,
									int columns, AttrNumber filter,
									LOCKMODE mode);

/*
 * Opens the primary key of a table, which has to be on these columns, and locks
 * it as relation_hold does, in RowExclusiveLock.
 */
extern Relation relation_hold_primary_key(Relation table,
										  const AttrNumber *columns, int count);

/* Rows of a table in the order of an index. */
typedef struct RelationScan
{
	Relation	index;
	IndexScanDesc scan;
} RelationScan;

/*
 * Walks over the rows that the keys, on columns of the index, let through.  The
 * index stays locked to the end of the transaction, or only to the end of the
 * walk if release is its mode and not NoLock.
 */
extern void relation_scan_begin(RelationScan *scan, Relation table,
								AttrNumber column, AttrNumber filter,
								ScanKey keys, int key_count, Snapshot snapshot);
extern bool relation_scan_next(RelationScan *scan, TupleTableSlot *slot);
extern void relation_scan_end(RelationScan *scan, LOCKMODE release);

/* Raises an error unless the slot's row satisfies the table's constraints. */
extern void relation_check_constraints(Relation table, TupleTableSlot *slot);

/* The transaction that a dirty snapshot has found writing a row. */
typedef struct RelationWriter
{
	TransactionId xid;			/* invalid: none is */
	bool		speculative;	/* the row may be gone in a moment */
} RelationWriter;

/* Who writes the row that was found last; and waits until that is decided. */
extern RelationWriter relation_writer(const SnapshotData *dirty);
extern void relation_wait_for_writer(Relation table, ItemPointer tid,
									 const RelationWriter *writer);

/* Inserts the slot's row; raises an error on a duplicate. */
extern void relation_insert(Relation table, TupleTableSlot *slot);

/*
 * Inserts the slot's row unless a unique index has it, in progress or not;
 * never waits.  Returns whether the row was inserted.
 */
extern bool relation_insert_or_conflict(Relation table, TupleTableSlot *slot);

/*
 * Replaces or deletes a row, without waiting.  TM_Ok: done; TM_BeingModified:
 * another open transaction has it; TM_Updated, TM_Deleted: it is no more.
 */
extern TM_Result relation_update(Relation table, ItemPointer tid,
								 TupleTableSlot *slot);
extern TM_Result relation_delete(Relation table, ItemPointer tid);

/* As those, but locks the row only, to the end of the transaction. */
extern TM_Result relation_lock(Relation table, ItemPointer tid);

/* Waits until no other open transaction has the row. */
extern void relation_wait(Relation table, ItemPointer tid);

#endif							/* BASE_RELATION_H */
