/*
 * relation.c
 *		Reads and writes rows of our own tables through the table and index
 *		access methods, without a query and without the executor.
 *
 * Nothing here checks privileges (EXECUTE on our functions is what callers
 * need), checks constraints (callers build valid rows), or fires triggers.
 * Each write ends with CommandCounterIncrement, so that the session's later
 * commands see it and one command can make several writes.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

#include "base/compat.h"
#include "base/relation.h"

#define RELATION_SPECULATION_US 100 /* sleep per speculative insertion met */

#define RELATION_SPECULATIVE_TOKEN 1	/* not 0; no backend waits for it */

#define RELATION_OTHER_FILTER (-1)	/* no column has this number */

/* Why a row gets entries in indexes. */
typedef enum RelationWrite
{
	RELATION_INSERT,
	RELATION_UPDATE,
	RELATION_UPDATE_SUMMARIES	/* the others have entries that lead to it */
} RelationWrite;

/*
 * If LockRelationOid raises an error, the abort of the transaction or
 * subtransaction sets CurrentResourceOwner again.
 */
void
relation_hold(Oid relation, LOCKMODE mode)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelationOid(relation, mode);
	CurrentResourceOwner = owner;
}

void
relation_release(Oid relation, LOCKMODE mode)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	UnlockRelationOid(relation, mode);
	CurrentResourceOwner = owner;
}

static void
relation_was_altered(Relation table, const char *how)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" of extension idempotency was altered",
					RelationGetRelationName(table)),
			 errdetail("%s", how)));
}

/*
 * Returns the column that a partial index requires to be not null, and nothing
 * else; 0 if the index is not partial; RELATION_OTHER_FILTER otherwise.
 */
static AttrNumber
relation_index_filter(List *predicate)
{
	NullTest   *test;

	if (predicate == NIL)
		return 0;
	test = linitial(predicate);
	if (list_length(predicate) != 1 || !IsA(test, NullTest) ||
		test->nulltesttype != IS_NOT_NULL || !IsA(test->arg, Var) ||
		((Var *) test->arg)->varattno == 0) /* the whole row */
		return RELATION_OTHER_FILTER;
	return ((Var *) test->arg)->varattno;
}

/*
 * Is this a unique index on the columns of the primary key?  That is the
 * primary key itself, or a copy that REINDEX CONCURRENTLY or pg_repack makes.
 */
static bool
relation_index_is_key(const RelationIndexes *indexes,
					  const RelationIndex *index)
{
	Form_pg_index form = index->index->rd_index;

	if (form->indisprimary || !index->info->ii_Unique)
		return form->indisprimary;
	for (int i = 0; i < indexes->count; i++)
	{
		Form_pg_index key = indexes->index[i].index->rd_index;

		if (key->indisprimary && form->indimmediate &&
			index->filter == 0 && key->indnkeyatts == form->indnkeyatts &&
			memcmp(key->indkey.values, form->indkey.values,
				   key->indnkeyatts * sizeof(AttrNumber)) == 0)
			return true;
	}
	return false;
}

RelationIndexes *
relation_open_indexes(Relation table)
{
	List	   *oids = RelationGetIndexList(table);
	RelationIndexes *indexes = palloc(offsetof(RelationIndexes, index) +
									  list_length(oids) *
									  sizeof(RelationIndex));
	bool		evaluates = false;
	ListCell   *cell;

	Assert(CheckRelationLockedByMe(table, RowExclusiveLock, true));
	indexes->count = 0;
	foreach(cell, oids)
	{
		RelationIndex *index = &indexes->index[indexes->count++];

		index->index = index_open(lfirst_oid(cell), RowExclusiveLock);
		index->info = BuildIndexInfo(index->index);
		index->filter = relation_index_filter(index->info->ii_Predicate);
		evaluates |= index->filter == RELATION_OTHER_FILTER ||
			index->info->ii_Expressions != NIL ||
			index->info->ii_ExclusionOps != NULL;
	}
	list_free(oids);
	for (int i = 0; i < indexes->count; i++)
		indexes->index[i].is_key = relation_index_is_key(indexes,
														 &indexes->index[i]);
	indexes->estate = evaluates ? CreateExecutorState() : NULL;
	return indexes;
}

void
relation_close_indexes(RelationIndexes *indexes)
{
	for (int i = 0; i < indexes->count; i++)
	{
		RelationIndex *index = &indexes->index[i];

		compat_index_insert_cleanup(index->index, index->info);
		pfree(index->info);
		index_close(index->index, NoLock);
	}
	if (indexes->estate != NULL)
		FreeExecutorState(indexes->estate);
	pfree(indexes);
}

/*
 * Does a partial index have an entry for the slot's row?
 */
static bool
relation_index_includes(EState *estate, const RelationIndex *index,
						TupleTableSlot *slot)
{
	IndexInfo  *info = index->info;

	if (index->filter != RELATION_OTHER_FILTER)
		return index->filter == 0 || !slot_attisnull(slot, index->filter);
	if (info->ii_PredicateState == NULL)
		info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate, estate);
	return ExecQual(info->ii_PredicateState, GetPerTupleExprContext(estate));
}

/*
 * Inserts the slot's row into one index.  Returns false if another row may have
 * the same primary key; UNIQUE_CHECK_PARTIAL checks that without waiting.
 * Other unique keys were added by a user: a second row is an error, as in the
 * executor.
 */
static bool
relation_insert_into_index(Relation table, EState *estate,
						   const RelationIndex *index, TupleTableSlot *slot,
						   IndexUniqueCheck check, bool update)
{
	IndexInfo  *info = index->info;
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	bool		unique;

	if (!info->ii_ReadyForInserts ||
		!relation_index_includes(estate, index, slot))
		return true;
	if (!index->is_key)
		check = info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO;
	FormIndexDatum(info, slot, estate, values, nulls);
	unique = index_insert(index->index, values, nulls, &slot->tts_tid, table,
						  check, update, info);
	if (info->ii_ExclusionOps != NULL)
		check_exclusion_constraint(table, index->index, info, &slot->tts_tid,
								   values, nulls, estate, false);
	return unique || check == UNIQUE_CHECK_NO;
}

/*
 * With UNIQUE_CHECK_PARTIAL the table must have a primary key, or no conflict
 * would ever be found.
 */
static bool
relation_insert_into_indexes(Relation table, const RelationIndexes *indexes,
							 TupleTableSlot *slot, IndexUniqueCheck check,
							 RelationWrite write)
{
	EState	   *estate = indexes->estate;
	bool		decided = check != UNIQUE_CHECK_PARTIAL;
	bool		unique = true;

	Assert(ItemPointerIsValid(&slot->tts_tid));
	if (estate != NULL)
		GetPerTupleExprContext(estate)->ecxt_scantuple = slot;
	for (int i = 0; i < indexes->count; i++)
	{
		const RelationIndex *index = &indexes->index[i];

		if (write == RELATION_UPDATE_SUMMARIES &&
			!compat_index_is_summary(index->info))
			continue;
		unique &= relation_insert_into_index(table, estate, index, slot, check,
											 write != RELATION_INSERT);
		decided |= index->is_key;
	}
	if (estate != NULL)
		ResetPerTupleExprContext(estate);
	if (!decided && write != RELATION_UPDATE_SUMMARIES)
		relation_was_altered(table, "It has no primary key.");
	return unique;
}

static bool
relation_has_columns(Relation table, int columns)
{
	if (RelationGetNumberOfAttributes(table) != columns)
		return false;
	for (int i = 0; i < columns; i++)
	{
		if (TupleDescAttr(RelationGetDescr(table), i)->attisdropped)
			return false;
	}
	return true;
}

TupleTableSlot *
relation_slot(Relation table, int columns)
{
	if (!relation_has_columns(table, columns))
		relation_was_altered(table, "It has other columns than those that it was made with.");
	return table_slot_create(table, NULL);
}

bool
relation_probe(Relation table, Relation index, ScanKey keys, int key_count,
			   Snapshot snapshot, TupleTableSlot *slot)
{
	IndexScanDesc scan = compat_index_beginscan(table, index, snapshot,
												key_count);
	bool		found;

	index_rescan(scan, keys, key_count, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (found)
		ExecMaterializeSlot(slot);
	index_endscan(scan);
	return found;
}

/*
 * Is a column of an index in the order that our indexes have?  They use the
 * collation and the operators of the column, in ascending order, nulls last.
 */
static bool
relation_index_orders(Relation table, Relation index, int i)
{
	AttrNumber	column = index->rd_index->indkey.values[i];
	Form_pg_attribute attribute;
	TypeCacheEntry *type;

	if (column <= 0)
		return false;
	attribute = TupleDescAttr(RelationGetDescr(table), column - 1);
	type = lookup_type_cache(attribute->atttypid, TYPECACHE_BTREE_OPFAMILY);
	return index->rd_indcollation[i] == attribute->attcollation &&
		index->rd_indoption[i] == 0 &&
		index->rd_opfamily[i] == type->btree_opf;
}

/*
 * Can this index be used instead of the one that we created?  All that is
 * searched has a value in the first column, so that may be what is not null.
 */
static bool
relation_index_serves(Relation table, Oid oid, AttrNumber column, int columns,
					  AttrNumber filter)
{
	Relation	index = RelationIdGetRelation(oid);
	Form_pg_index form = index->rd_index;
	bool		serves;

	serves = form->indkey.values[0] == column &&
		form->indnkeyatts >= columns && form->indisvalid &&
		index->rd_rel->relam == BTREE_AM_OID;
	for (int i = 0; i < columns && serves; i++)
		serves = relation_index_orders(table, index, i);
	if (serves)
	{
		List	   *predicate = RelationGetIndexPredicate(index);

		AttrNumber	has = relation_index_filter(predicate);

		serves = has == filter || (filter != 0 && has == column);
	}
	RelationClose(index);
	return serves;
}

/*
 * Ignores an index that REINDEX CONCURRENTLY has not finished.  The lock on the
 * table keeps its indexes from being dropped.  The primary key comes first,
 * since an index of a user may lack its other columns, which give an order.
 */
Relation
relation_open_index(Relation table, AttrNumber column, int columns,
					AttrNumber filter, LOCKMODE mode)
{
	Oid			found = compat_primary_key_index(table);
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *cell;

	Assert(CheckRelationLockedByMe(table, AccessShareLock, true));
	if (OidIsValid(found) &&
		!relation_index_serves(table, found, column, columns, filter))
		found = InvalidOid;
	foreach(cell, indexes)
	{
		if (!OidIsValid(found) &&
			relation_index_serves(table, lfirst_oid(cell), column, columns,
								  filter))
			found = lfirst_oid(cell);
	}
	list_free(indexes);
	if (!OidIsValid(found))
		relation_was_altered(table, "It lacks an index.");
	return index_open(found, mode);
}

Relation
relation_hold_primary_key(Relation table, const AttrNumber *columns, int count)
{
	Oid			oid = compat_primary_key_index(table);
	Relation	index;

	if (!OidIsValid(oid))
		relation_was_altered(table, "It has no primary key.");
	relation_hold(oid, RowExclusiveLock);
	index = index_open(oid, NoLock);
	if (index->rd_index->indnkeyatts != count ||
		memcmp(index->rd_index->indkey.values, columns,
			   count * sizeof(AttrNumber)) != 0)
		relation_was_altered(table, "Its primary key has other columns.");
	return index;
}

void
relation_scan_begin(RelationScan *scan, Relation table, AttrNumber column,
					AttrNumber filter, ScanKey keys, int key_count,
					Snapshot snapshot)
{
	scan->index = relation_open_index(table, column, key_count, filter,
									  RowExclusiveLock);
	scan->scan = compat_index_beginscan(table, scan->index, snapshot,
										key_count);
	index_rescan(scan->scan, keys, key_count, NULL, 0);
}

bool
relation_scan_next(RelationScan *scan, TupleTableSlot *slot)
{
	return index_getnext_slot(scan->scan, ForwardScanDirection, slot);
}

void
relation_scan_move(RelationScan *scan, ScanKey keys, int key_count)
{
	index_rescan(scan->scan, keys, key_count, NULL, 0);
}

void
relation_scan_end(RelationScan *scan, LOCKMODE release)
{
	index_endscan(scan->scan);
	index_close(scan->index, release);
}

void
relation_insert(Relation table, TupleTableSlot *slot)
{
	RelationIndexes *indexes = relation_open_indexes(table);

	table_tuple_insert(table, slot, GetCurrentCommandId(true), 0, NULL);
	relation_insert_into_indexes(table, indexes, slot, UNIQUE_CHECK_YES,
								 RELATION_INSERT);
	relation_close_indexes(indexes);
	CommandCounterIncrement();
}

void
relation_insert_new(Relation table, const RelationIndexes *indexes,
					TupleTableSlot *slot)
{
	table_tuple_insert(table, slot, GetCurrentCommandId(true), 0, NULL);
	if (!relation_insert_into_indexes(table, indexes, slot,
									  UNIQUE_CHECK_PARTIAL, RELATION_INSERT))
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("a new row of table \"%s\" is there already",
						RelationGetRelationName(table))));
	CommandCounterIncrement();
}

void
relation_check_constraints(Relation table, TupleTableSlot *slot)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *info = makeNode(ResultRelInfo);

	InitResultRelInfo(info, table, 0, NULL, 0);
	ExecConstraints(info, slot, estate);
	FreeExecutorState(estate);
}

/*
 * The insertion is speculative: on a conflict the row is removed at once, not
 * when the transaction ends.  The executor also takes a lock for others to
 * wait on.  We save that cost on every insertion; a backend that finds the row
 * within these microseconds sleeps for a moment and looks again.
 */
bool
relation_insert_or_conflict(Relation table, TupleTableSlot *slot)
{
	RelationIndexes *indexes = relation_open_indexes(table);
	bool		inserted;

	table_tuple_insert_speculative(table, slot, GetCurrentCommandId(true), 0,
								   NULL, RELATION_SPECULATIVE_TOKEN);
	inserted = relation_insert_into_indexes(table, indexes, slot,
											UNIQUE_CHECK_PARTIAL,
											RELATION_INSERT);
	table_tuple_complete_speculative(table, slot, RELATION_SPECULATIVE_TOKEN,
									 inserted);
	relation_close_indexes(indexes);
	CommandCounterIncrement();
	return inserted;
}

/*
 * Locks a row and ignores its content.
 */
static TM_Result
relation_lock_row(Relation table, ItemPointer tid, LockWaitPolicy policy)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	TM_FailureData failure;
	TM_Result	result;

	Assert(CheckRelationLockedByMe(table, RowExclusiveLock, true));
	result = table_tuple_lock(table, tid, GetActiveSnapshot(), slot,
							  GetCurrentCommandId(true), LockTupleExclusive,
							  policy, 0, &failure);
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/*
 * Replaces a row that this transaction has locked.  Unique keys do not change
 * in our tables.  UNIQUE_CHECK_PARTIAL is used only because it locks the
 * index's leaf page, so that a concurrent uniqueness check cannot miss the row
 * while it moves.  Its result is ignored.
 */
static TM_Result
relation_update_locked(Relation table, ItemPointer tid, TupleTableSlot *slot)
{
	CompatUpdateIndexes update_indexes;
	TM_FailureData failure;
	LockTupleMode mode;
	TM_Result	result;

	result = compat_table_update(table, tid, slot, GetActiveSnapshot(),
								 &failure, &mode, &update_indexes);
	if (result != TM_Ok)
		return result;
	if (compat_needs_index_update(update_indexes))
	{
		RelationIndexes *indexes = relation_open_indexes(table);
		RelationWrite write = compat_needs_summaries_only(update_indexes) ?
			RELATION_UPDATE_SUMMARIES : RELATION_UPDATE;

		(void) relation_insert_into_indexes(table, indexes, slot,
											UNIQUE_CHECK_PARTIAL, write);
		relation_close_indexes(indexes);
	}
	CommandCounterIncrement();
	return TM_Ok;
}

static TM_Result
relation_try_delete(Relation table, ItemPointer tid, bool wait)
{
	TM_FailureData failure;
	TM_Result	result;

	Assert(CheckRelationLockedByMe(table, RowExclusiveLock, true));
	result = compat_table_delete(table, tid, GetActiveSnapshot(), wait,
								 &failure);
	if (result == TM_Ok)
		CommandCounterIncrement();
	return result;
}

TM_Result
relation_lock(Relation table, ItemPointer tid)
{
	TM_Result	result = relation_lock_row(table, tid, LockWaitSkip);

	return result == TM_WouldBlock ? TM_BeingModified : result;
}

/*
 * heap_update() cannot return instead of waiting, so the row is locked first.
 */
TM_Result
relation_update(Relation table, ItemPointer tid, TupleTableSlot *slot)
{
	TM_Result	result = relation_lock(table, tid);

	if (result == TM_Ok)
		result = relation_update_locked(table, tid, slot);
	return result;
}

/*
 * Without waiting, a row that this transaction itself has locked is reported as
 * busy, like a row that another transaction has locked.  Locking it again tells
 * the two apart.
 */
TM_Result
relation_delete(Relation table, ItemPointer tid)
{
	TM_Result	result = relation_try_delete(table, tid, false);

	if (result == TM_BeingModified &&
		relation_lock(table, tid) == TM_Ok)
		result = relation_try_delete(table, tid, true);
	return result;
}

RelationWriter
relation_writer(const SnapshotData *dirty)
{
	RelationWriter writer;

	writer.xid = TransactionIdIsValid(dirty->xmin) ? dirty->xmin : dirty->xmax;
	writer.speculative = dirty->speculativeToken != 0;
	return writer;
}

/*
 * Waits as a unique index does, so that lock_timeout and the deadlock detector
 * apply.
 */
void
relation_wait_for_writer(Relation table, ItemPointer tid,
						 const RelationWriter *writer)
{
	Assert(writer->speculative || TransactionIdIsNormal(writer->xid));
	if (writer->speculative)
		pg_usleep(RELATION_SPECULATION_US);
	else
		XactLockTableWait(writer->xid, table, tid, XLTW_InsertIndex);
}

void
relation_wait(Relation table, ItemPointer tid)
{
	(void) relation_lock_row(table, tid, LockWaitBlock);
}
