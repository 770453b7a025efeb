/*
 * relation.h
 *		Reads and writes rows of our own tables without the executor.
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
 * Locks a relation until relation_release, or until the end of the current
 * transaction or subtransaction: as long as rows that are written under the
 * lock may survive.
 *
 * An ordinary lock belongs to the portal that takes it.  If a cursor fails in a
 * savepoint that is younger than the cursor, its locks are released, but rows
 * that it wrote before the savepoint remain.
 */
extern void relation_hold(Oid relation, LOCKMODE mode);
extern void relation_release(Oid relation, LOCKMODE mode);

/*
 * Makes a slot for rows of one of our tables.  Raises an error if the table
 * does not have the expected number of columns.
 */
extern TupleTableSlot *relation_slot(Relation table, int columns);

/*
 * Finds a row by an index and stores it in the slot.  With a dirty snapshot,
 * relation_writer then tells which transaction is writing the row.
 */
extern bool relation_probe(Relation table, Relation index, ScanKey keys,
						   int key_count, Snapshot snapshot,
						   TupleTableSlot *slot);

/*
 * Opens an index of a table that the caller has locked.  The index starts with
 * the column and has at least this number of columns.  If filter is not 0, it
 * is a partial index: of the rows where that column is not null, or of those
 * where the first column is not, so the caller must look at the filter.
 */
extern Relation relation_open_index(Relation table, AttrNumber column,
									int columns, AttrNumber filter,
									LOCKMODE mode);

/*
 * Opens a table's primary key, which must have exactly these columns, and locks
 * it with RowExclusiveLock as relation_hold does.
 */
extern Relation relation_hold_primary_key(Relation table,
										  const AttrNumber *columns, int count);

/* A scan of a table in the order of an index. */
typedef struct RelationScan
{
	Relation	index;
	IndexScanDesc scan;
} RelationScan;

/*
 * Scans the rows that match the keys, which are on columns of the index.
 * relation_scan_end releases the lock on the index if release is
 * RowExclusiveLock; with NoLock it is kept until the end of the transaction.
 */
extern void relation_scan_begin(RelationScan *scan, Relation table,
								AttrNumber column, AttrNumber filter,
								ScanKey keys, int key_count, Snapshot snapshot);
extern bool relation_scan_next(RelationScan *scan, TupleTableSlot *slot);

/* Continues the scan elsewhere, with other keys, as many as at the start. */
extern void relation_scan_move(RelationScan *scan, ScanKey keys, int key_count);
extern void relation_scan_end(RelationScan *scan, LOCKMODE release);

/* Raises an error unless the slot's row satisfies the table's constraints. */
extern void relation_check_constraints(Relation table, TupleTableSlot *slot);

/* The transaction that is writing a row, as found with a dirty snapshot. */
typedef struct RelationWriter
{
	TransactionId xid;			/* InvalidTransactionId: none */
	bool		speculative;	/* the insertion may be undone immediately */
} RelationWriter;

/*
 * Returns the transaction that is writing the row that relation_probe found.
 * relation_wait_for_writer waits until that transaction has ended, or until the
 * speculative insertion has been decided.
 */
extern RelationWriter relation_writer(const SnapshotData *dirty);
extern void relation_wait_for_writer(Relation table, ItemPointer tid,
									 const RelationWriter *writer);

/* An index of a table that rows are inserted into. */
typedef struct RelationIndex
{
	Relation	index;
	struct IndexInfo *info;
	AttrNumber	filter;			/* as for relation_open_index */
	bool		is_key;			/* unique, with the primary key's columns */
} RelationIndex;

typedef struct RelationIndexes
{
	struct EState *estate;		/* for expressions; NULL: there are none */
	int			count;
	RelationIndex index[FLEXIBLE_ARRAY_MEMBER];
} RelationIndexes;

/*
 * Open and lock all indexes of a table; the locks are kept.  Those that users
 * have added get entries as the executor would make them, of any kind; unique
 * keys and exclusion constraints are checked at once, also if deferrable.
 */
extern RelationIndexes *relation_open_indexes(Relation table);
extern void relation_close_indexes(RelationIndexes *indexes);

/* Inserts the slot's row; raises an error on a duplicate key. */
extern void relation_insert(Relation table, TupleTableSlot *slot);

/*
 * As relation_insert, for a key that is known to be new.  Never waits, since
 * the caller has opened the indexes, but for a unique key that a user has
 * added.
 */
extern void relation_insert_new(Relation table, const RelationIndexes *indexes,
								TupleTableSlot *slot);

/*
 * Inserts the slot's row, unless a committed or uncommitted row has the same
 * primary key.  Never waits for that.  Returns whether the row was inserted.
 */
extern bool relation_insert_or_conflict(Relation table, TupleTableSlot *slot);

/*
 * Update or delete a row without waiting.  TM_Ok: done; TM_BeingModified:
 * another open transaction has locked or changed the row; TM_Updated,
 * TM_Deleted: this version of the row is obsolete.
 */
extern TM_Result relation_update(Relation table, ItemPointer tid,
								 TupleTableSlot *slot);
extern TM_Result relation_delete(Relation table, ItemPointer tid);

/*
 * Locks a row until the end of the transaction, without waiting, and returns
 * the same results.
 */
extern TM_Result relation_lock(Relation table, ItemPointer tid);

/* Waits until no other open transaction has locked or changed the row. */
extern void relation_wait(Relation table, ItemPointer tid);

#endif							/* BASE_RELATION_H */
