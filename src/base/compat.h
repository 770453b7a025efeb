/*
 * compat.h
 *		Differences between PostgreSQL 15 and 19.  No other file tests
 *		PG_VERSION_NUM.  The number in a comment is the major version that
 *		introduced the difference.
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
#include "utils/guc_tables.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"	/* 19: get_database_name() moved here */
#include "utils/timestamp.h"
#include "utils/tuplestore.h"	/* 19: other headers no longer include it */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#if PG_VERSION_NUM < 150000
#error "idempotency needs PostgreSQL 15 or later"
#endif

/*
 * 16: symbols that a library exports have to be marked, and
 * PG_FUNCTION_INFO_V1 does that.  We compile with -fvisibility=hidden, so the
 * macros of 15 would hide our SQL functions.  Every file that defines SQL
 * functions must therefore include this header.
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

/* 16: an update reports which kinds of indexes need new entries. */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes CompatUpdateIndexes;
#define compat_needs_index_update(update) ((update) != TU_None)
#define compat_needs_summaries_only(update) ((update) == TU_Summarizing)
#define compat_index_is_summary(info) ((info)->ii_Summarizing)
#else
typedef bool CompatUpdateIndexes;
#define compat_needs_index_update(update) (update)
#define compat_needs_summaries_only(update) false
#define compat_index_is_summary(info) true
#endif

/* 17: an index may keep something open from one insertion to the next. */
#if PG_VERSION_NUM >= 170000
#define compat_index_insert_cleanup index_insert_cleanup
#else
#define compat_index_insert_cleanup(index, info) ((void) 0)
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

/* 19: table scans, updates and deletes take an options argument. */
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

/* 19: a hash table in shared memory has one size instead of two. */
static inline HTAB *
compat_shmem_init_hash(const char *name, int64 size, HASHCTL *info, int flags)
{
#if PG_VERSION_NUM >= 190000
	return ShmemInitHash(name, size, info, flags);
#else
	return ShmemInitHash(name, size, size, info, flags);
#endif
}

/* 16: one function checks the ownership of any object. */
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

/*
 * The connection limit of a database whose DROP DATABASE was interrupted
 * (since 15.4).
 */
#define COMPAT_INVALID_DATABASE (-2)

/* 18: a deferrable key is returned only on request; ours are not deferrable. */
static inline Oid
compat_primary_key_index(Relation table)
{
#if PG_VERSION_NUM >= 180000
	return RelationGetPrimaryKeyIndex(table, false);
#else
	return RelationGetPrimaryKeyIndex(table);
#endif
}

/* This backend's index among MaxBackends. */
static inline int
compat_my_proc_number(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

/* 16: a setting is found by its name.  NULL: there is none. */
static inline struct config_generic *
compat_find_setting(const char *name)
{
#if PG_VERSION_NUM >= 160000
	return find_option(name, false, true, DEBUG5);
#else
	struct config_generic **settings = get_guc_variables();

	for (int i = 0; i < GetNumConfigOptions(); i++)
	{
		if (strcmp(settings[i]->name, name) == 0)
			return settings[i];
	}
	return NULL;
#endif
}

/* 17: a wait event set belongs to a resource owner; ours is never freed. */
static inline WaitEventSet *
compat_create_wait_event_set(MemoryContext context, int event_count)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, event_count);
#else
	return CreateWaitEventSet(context, event_count);
#endif
}

/*
 * 19: the values of a sequence in a jsonpath are allocated in chunks of 16, 32,
 * 64 and so on (JsonValueList in jsonpath_exec.c), no longer one by one.  This
 * is how many values an allocation is for.
 */
static inline int
compat_jsonpath_values(pg_attribute_unused() Size size)
{
#if PG_VERSION_NUM >= 190000
	const Size	head = 2 * sizeof(int) + 2 * sizeof(void *);
	const Size	count = size < head ? 0 : (size - head) / sizeof(JsonbValue);

	if (count >= 16 && (count & (count - 1)) == 0 &&
		size == head + count * sizeof(JsonbValue))
		return (int) Min(count, PG_INT16_MAX);
#endif
	return 1;
}

/* 17: workers can run as a role without LOGIN. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_WORKER_CONNECTION_FLAGS BGWORKER_BYPASS_ROLELOGINCHECK
#else
#define COMPAT_WORKER_CONNECTION_FLAGS 0
#endif

/* 17: the method of a memory context that allocates has flags. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_ALLOC_PARAMETERS MemoryContext context, Size size, int flags
#define COMPAT_ALLOC_ARGUMENTS context, size, flags
#else
#define COMPAT_ALLOC_PARAMETERS MemoryContext context, Size size
#define COMPAT_ALLOC_ARGUMENTS context, size
#endif

#endif							/* BASE_COMPAT_H */
