/*
 * compat.h
 *		What differs between PostgreSQL 15 and 19; the only file that asks for
 *		the version.
 */
#ifndef BASE_COMPAT_H
#define BASE_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/pg_database.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/timestamp.h"

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
	return index_beginscan(table, index, snapshot,
#if PG_VERSION_NUM >= 180000
						   NULL,
#endif
						   key_count, 0);
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

/* 17: intervals can be infinite. */
#if PG_VERSION_NUM >= 170000
#define compat_interval_is_finite(interval) (!INTERVAL_NOT_FINITE(interval))
#else
#define compat_interval_is_finite(interval) true
#endif

#endif							/* BASE_COMPAT_H */
