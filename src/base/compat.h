/*
 * compat.h
 *		What differs between PostgreSQL 15 and 19; the only file that asks for
 *		the version.
 */
#ifndef BASE_COMPAT_H
#define BASE_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"	/* 19: get_database_name() */
#include "utils/timestamp.h"
#include "utils/tuplestore.h"	/* 19: no longer part of others */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#if PG_VERSION_NUM < 150000
#error "idempotency needs PostgreSQL 15 or later"
#endif

/*
 * 16: what a library exports is marked, and so is every function for SQL.  A
 * file that has such functions includes this one, or the server of 15 does not
 * find them.
 */
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#undef PG_FUNCTION_INFO_V1
#define PG_FUNCTION_INFO_V1(name) \
extern PGDLLEXPORT Datum name(PG_FUNCTION_ARGS); \
extern PGDLLEXPORT const Pg_finfo_record *CppConcat(pg_finfo_, name) (void); \
const Pg_finfo_record * \
CppConcat(pg_finfo_, name) (void) \
{ \
	static const Pg_finfo_record my_finfo = {1}; \
	return &my_finfo; \
} \
extern int	no_such_variable
#endif

/* 16: an update says which kinds of indexes have to follow. */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes CompatUpdateIndexes;
#define compat_needs_index_update(update) ((update) != TU_None)
#else
typedef bool CompatUpdateIndexes;
#define compat_needs_index_update(update) (update)
#endif

static inline IndexScanDesc
compat_index_beginscan(Relation table, Relation index, Snapshot snapshot,
					   int key_count)
{
#if PG_VERSION_NUM >= 190000
	return index_beginscan(table, index, snapshot, NULL, key_count, 0, 0);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(table, index, snapshot, NULL, key_count, 0);
#else
	return index_beginscan(table, index, snapshot, key_count, 0);
#endif
}

/* 19: scans, updates and deletes have options. */
static inline TableScanDesc
compat_table_beginscan(Relation table, Snapshot snapshot)
{
#if PG_VERSION_NUM >= 190000
	return table_beginscan(table, snapshot, 0, NULL, 0);
#else
	return table_beginscan(table, snapshot, 0, NULL);
#endif
}

static inline TableScanDesc
compat_table_beginscan_tidrange(Relation table, Snapshot snapshot,
								ItemPointer from, ItemPointer to)
{
#if PG_VERSION_NUM >= 190000
	return table_beginscan_tidrange(table, snapshot, from, to, 0);
#else
	return table_beginscan_tidrange(table, snapshot, from, to);
#endif
}

static inline TM_Result
compat_table_update(Relation table, ItemPointer tid, TupleTableSlot *slot,
					Snapshot snapshot, TM_FailureData *failure,
					LockTupleMode *mode, CompatUpdateIndexes *update_indexes)
{
	return table_tuple_update(table, tid, slot, GetCurrentCommandId(true),
#if PG_VERSION_NUM >= 190000
							  0,
#endif
							  snapshot, InvalidSnapshot, true, failure, mode,
							  update_indexes);
}

static inline TM_Result
compat_table_delete(Relation table, ItemPointer tid, Snapshot snapshot,
					bool wait, TM_FailureData *failure)
{
#if PG_VERSION_NUM >= 190000
	return table_tuple_delete(table, tid, GetCurrentCommandId(true), 0,
							  snapshot, InvalidSnapshot, wait, failure);
#else
	return table_tuple_delete(table, tid, GetCurrentCommandId(true), snapshot,
							  InvalidSnapshot, wait, failure, false);
#endif
}

/* 19: a table in shared memory has one size, not two. */
static inline HTAB *
compat_shmem_init_hash(const char *name, int64 size, HASHCTL *info, int flags)
{
#if PG_VERSION_NUM >= 190000
	return ShmemInitHash(name, size, info, flags);
#else
	return ShmemInitHash(name, size, size, info, flags);
#endif
}

/* 16: one function asks for the owner of anything. */
static inline bool
compat_owns_database(Oid database, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, database, role);
#else
	return pg_database_ownercheck(database, role);
#endif
}

static inline bool
compat_owns_relation(Oid relation, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relation, role);
#else
	return pg_class_ownercheck(relation, role);
#endif
}

/* The connection limit of a database whose DROP was interrupted; since 15.4. */
#define COMPAT_INVALID_DATABASE (-2)

/* 18: a deferrable key counts if asked to; ours is not. */
static inline Oid
compat_primary_key_index(Relation table)
{
#if PG_VERSION_NUM >= 180000
	return RelationGetPrimaryKeyIndex(table, false);
#else
	return RelationGetPrimaryKeyIndex(table);
#endif
}

/* This backend's place among MaxBackends. */
static inline int
compat_my_proc_number(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

/* 17: a wait set belongs to a resource owner; ours lives with the process. */
static inline WaitEventSet *
compat_create_wait_event_set(MemoryContext context, int event_count)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, event_count);
#else
	return CreateWaitEventSet(context, event_count);
#endif
}

/* 17: an owner that may not log in can still own workers. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_WORKER_CONNECTION_FLAGS BGWORKER_BYPASS_ROLELOGINCHECK
#else
#define COMPAT_WORKER_CONNECTION_FLAGS 0
#endif

#endif							/* BASE_COMPAT_H */
