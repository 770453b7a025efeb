/*
 * relation.c
 *		Reads and writes rows of our own tables straight through the access
 *		methods: what the executor does, less the query.
 *
 * Nothing here checks privileges (the caller's EXECUTE privilege is the gate),
 * constraints (the caller builds valid rows), or fires triggers.  A write is
 * visible to the session's later commands; each ends with a
 * CommandCounterIncrement so that several can happen within one command.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/relation.h"

/* The part of the executor's state that inserting into indexes needs. */
typedef struct IndexWriter
{
	EState	   *estate;
	ResultRelInfo *info;
} IndexWriter;

static IndexWriter
index_writer_open(Relation table, bool speculative)
{
	IndexWriter writer;

	writer.estate = CreateExecutorState();
	writer.info = makeNode(ResultRelInfo);
	InitResultRelInfo(writer.info, table, 0, NULL, 0);
	ExecOpenIndices(writer.info, speculative);
	return writer;
}

static void
index_writer_close(IndexWriter *writer)
{
	ExecCloseIndices(writer->info);
	pfree(writer->info);
	FreeExecutorState(writer->estate);
	CommandCounterIncrement();
}

TupleTableSlot *
relation_slot(Relation table, int columns)
{
	if (RelationGetNumberOfAttributes(table) != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" of extension idempotency was altered",
						RelationGetRelationName(table))));
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

void
relation_insert(Relation table, TupleTableSlot *slot)
{
	IndexWriter writer = index_writer_open(table, false);

	table_tuple_insert(table, slot, GetCurrentCommandId(true), 0, NULL);
	compat_insert_index_tuples(writer.info, slot, writer.estate,
							   false, false, NULL, false);
	index_writer_close(&writer);
}

/*
 * The insertion is speculative: on a conflict the row is killed at once, and
 * others who met it in the meantime wait for the speculation only, not for
 * our transaction.
 */
bool
relation_insert_or_conflict(Relation table, TupleTableSlot *slot)
{
	IndexWriter writer = index_writer_open(table, true);
	TransactionId xid = GetCurrentTransactionId();
	uint32		token = SpeculativeInsertionLockAcquire(xid);
	bool		conflict = false;

	table_tuple_insert_speculative(table, slot, GetCurrentCommandId(true), 0,
								   NULL, token);
	list_free(compat_insert_index_tuples(writer.info, slot, writer.estate,
										 false, true, &conflict, false));
	table_tuple_complete_speculative(table, slot, token, !conflict);
	SpeculativeInsertionLockRelease(xid);
	index_writer_close(&writer);
	return !conflict;
}

void
relation_update(Relation table, ItemPointer tid, TupleTableSlot *slot)
{
	CompatUpdateIndexes update_indexes;
	TM_FailureData failure;
	LockTupleMode mode;
	TM_Result	result;

	result = table_tuple_update(table, tid, slot, GetCurrentCommandId(true),
								GetActiveSnapshot(), InvalidSnapshot, true,
								&failure, &mode, &update_indexes);
	if (result != TM_Ok)
		elog(ERROR, "unexpected result %d of updating a locked row", result);
	if (compat_needs_index_update(update_indexes))
	{
		IndexWriter writer = index_writer_open(table, false);

		compat_insert_index_tuples(writer.info, slot, writer.estate,
								   true, false, NULL,
								   compat_only_summarizing(update_indexes));
		index_writer_close(&writer);
	}
	else
		CommandCounterIncrement();
}

void
relation_delete(Relation table, ItemPointer tid)
{
	TM_FailureData failure;
	TM_Result	result;

	result = table_tuple_delete(table, tid, GetCurrentCommandId(true),
								GetActiveSnapshot(), InvalidSnapshot, true,
								&failure, false);
	if (result != TM_Ok)
		elog(ERROR, "unexpected result %d of deleting a locked row", result);
	CommandCounterIncrement();
}
