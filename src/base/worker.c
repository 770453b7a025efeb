/*
 * worker.c
 *		What our background workers have in common: how they start, how they
 *		handle signals, and the short transactions that they work in.
 *
 * SIGTERM is handled by the server's die(), which also interrupts a wait for a
 * lock.  Workers exit with 1, since the postmaster takes 0 to mean that the
 * worker is not needed any more.  A worker runs as the extension's owner, not
 * as the bootstrap superuser, so that a trigger that the owner creates gains
 * no privileges.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/report.h"
#include "base/worker.h"

static char worker_name[BGW_MAXLEN + NAMEDATALEN + 32]; /* for the log */
static char worker_own_database[NAMEDATALEN];
static SharedDatabase *worker_database = NULL;
static SharedWorkerSlot worker_slot;
static Oid	worker_sequence = InvalidOid;	/* of the extension */

void
worker_define(BackgroundWorker *worker, const char *main, const char *name)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "idempotency", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, main, BGW_MAXLEN);
	strlcpy(worker->bgw_name, name, BGW_MAXLEN);
	strlcpy(worker->bgw_type, name, BGW_MAXLEN);
}

/*
 * Settings that change what a statement does, how it is planned, or whether it
 * fails.  Those that log, or give memory, are left to the administrator.
 */
#define WORKER_DEFAULTS \
	"SELECT name, boot_val FROM pg_catalog.pg_settings" \
	" WHERE context OPERATOR(pg_catalog.=) ANY ('{user,superuser}')" \
	" AND boot_val IS NOT NULL AND name OPERATOR(pg_catalog.~*) '^(" \
	"allow_system_table_mods|array_nulls|backslash_quote|bytea_output" \
	"|check_function_bodies|client_min_messages|constraint_exclusion" \
	"|cpu_.*_cost|cursor_tuple_fraction|datestyle" \
	"|debug_(parallel_query|pretty_print|print_.*)|default_(statistics_target" \
	"|table_access_method|tablespace|toast_compression|transaction_.*)" \
	"|effective_cache_size|enable_.*|escape_string_warning|exit_on_error" \
	"|extra_float_digits|force_parallel_mode|from_collapse_limit|geqo.*" \
	"|gin_fuzzy_search_limit|idle_.*_timeout|intervalstyle|jit.*" \
	"|join_collapse_limit|lock_timeout|lo_compat_privileges" \
	"|max_parallel_workers_per_gather|min_parallel_.*|parallel_.*" \
	"|plan_cache_mode|quote_all_identifiers|random_page_cost" \
	"|recursive_worktable_factor|restrict_nonsystem_relation_kind" \
	"|row_security|seq_page_cost|session_replication_role" \
	"|standard_conforming_strings|statement_timeout|synchronize_seqscans" \
	"|temp_file_limit|temp_tablespaces|transaction_timeout" \
	"|transform_null_equals|xmlbinary|xmloption)$'"

static void
worker_set(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Gives settings the value that they have if nobody sets them, for as long as
 * the worker lives: a later reload does not change them.
 */
static void
worker_set_defaults(void)
{
	StartTransactionCommand();
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute(WORKER_DEFAULTS, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_settings");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		worker_set(SPI_getvalue(row, desc, 1), SPI_getvalue(row, desc, 2));
	}
	PopActiveSnapshot();
	SPI_finish();
	CommitTransactionCommand();
}

/*
 * Settings that an administrator makes for clients must not affect a worker's
 * short transactions.  Workers keep query plans for months: a sequential scan
 * that was planned while a table was empty must not be used when the table has
 * grown.
 */
static void
worker_fix_settings(void)
{
	static const char *const first[][2] = { /* before any transaction */
		{"role", "none"},
		{"search_path", "pg_catalog, pg_temp"},
		{"exit_on_error", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"synchronous_commit", "local"},	/* do not wait for standbys */
		{"lock_timeout", "0"},
		{"idempotency.writes", "on"},
		{"plpgsql.extra_errors", "none"},
		{"plpgsql.variable_conflict", "error"},
	};
	static const char *const other[] = {
		"enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"
	};

	for (int i = 0; i < (int) lengthof(first); i++)
		worker_set(first[i][0], first[i][1]);
	if (GetConfigOption("transaction_timeout", true, false) != NULL)
		worker_set("transaction_timeout", "0"); /* 17 */
	worker_set_defaults();
	for (int i = 0; i < (int) lengthof(other); i++)
		worker_set(other[i], "off");
}

void
worker_exit(const char *why)
{
	ereport(LOG,
			(errmsg("%s ends because %s", worker_name, why),
			 errhidecontext(true)));
	proc_exit(1);
}

/*
 * No other name: a database with sessions cannot be renamed.
 */
const char *
worker_database_name(void)
{
	return worker_own_database;
}

static void
worker_find_name(void)
{
	char	   *database;

	StartTransactionCommand();
	database = get_database_name(MyDatabaseId);
	strlcpy(worker_own_database, database ? database : "",
			sizeof(worker_own_database));
	snprintf(worker_name, sizeof(worker_name), "%s of database \"%s\"",
			 MyBgworkerEntry->bgw_type, database ? database : "");
	CommitTransactionCommand();
}

void
worker_start_in_database(void)
{
	WorkerTarget target;

	memcpy(&target, MyBgworkerEntry->bgw_extra, sizeof(target));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(target.database, target.owner,
											  COMPAT_WORKER_CONNECTION_FLAGS);
	worker_fix_settings();
	worker_find_name();
	report_begin(worker_name);
}

void
worker_note_success(void)
{
	shared_note_success(worker_database, worker_slot);
}

Oid
worker_extension(void)
{
	return worker_sequence;
}

static void
worker_leave_slot(int code, Datum slot)
{
	shared_leave_worker_slot(worker_database, DatumGetInt32(slot));
}

/*
 * Must take no lock but a spinlock: the error may have been raised anywhere,
 * with any other lock held.
 */
static void
worker_note_error(const char *message)
{
	shared_note_error(worker_database, worker_slot, message);
}

/*
 * Without the slot there could be two workers of a kind: if the launcher is
 * restarted, it starts workers while the earlier ones are still exiting.
 */
SharedWorkerSlot
worker_start_in_slot(void)
{
	WorkerTarget target;

	memcpy(&target, MyBgworkerEntry->bgw_extra, sizeof(target));
	worker_start_in_database();
	worker_database = shared_my_database();
	worker_slot = target.slot;
	if (!shared_take_worker_slot(worker_database, worker_slot))
		worker_exit("the one before it is still there");
	before_shmem_exit(worker_leave_slot, Int32GetDatum(target.slot));
	report_errors_to(worker_note_error);
	ereport(LOG,
			(errmsg("%s has started", worker_name), errhidecontext(true)));
	return target.slot;
}

bool
worker_obey_signals(void)
{
	/* Between two turns, a worker holds nothing. */
	Assert(!IsTransactionState() && !ActiveSnapshotSet());
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	CHECK_FOR_INTERRUPTS();
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}

/*
 * An owner may have created rules and defaults on the tables.  They must not
 * run as a former owner, nor as the bootstrap superuser (discovery.c) when the
 * owner is no longer a superuser.  A change of owner waits for our lock on the
 * sequence.
 */
static bool
worker_may_act_for(Oid owner)
{
	return owner == GetUserId() ||
		(GetUserId() == BOOTSTRAP_SUPERUSERID && superuser_arg(owner));
}

/*
 * Waits for a concurrent DROP EXTENSION before anything of ours is locked.
 * DROP EXTENSION locks idem_token_seq before our other relations, and so do we,
 * so the two cannot deadlock.  Returns whether the extension exists.  What a
 * worker keeps in memory is not true of an extension that was created again.
 */
static bool
worker_lock_extension(void)
{
	const Catalog *catalog = catalog_find();

	if (catalog == NULL)
		return false;
	LockRelationOid(catalog->idem_token_seq, AccessShareLock);
	catalog = catalog_find();
	if (catalog != NULL && !worker_may_act_for(catalog->owner))
		worker_exit("the extension has another owner");
	if (catalog != NULL && OidIsValid(worker_sequence) &&
		catalog->idem_token_seq != worker_sequence)
		worker_exit("the extension was created again");
	if (catalog != NULL)
		worker_sequence = catalog->idem_token_seq;
	return catalog != NULL;
}

bool
worker_begin(const char *activity)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	if (!worker_lock_extension())
	{
		CommitTransactionCommand();
		return false;
	}
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, activity);
	return true;
}

void
worker_commit(void)
{
	Assert(GetCurrentTransactionNestLevel() == 1);
	PopActiveSnapshot();
	SPI_finish();
	CommitTransactionCommand();
	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
}

void
worker_abort(void)
{
	AbortOutOfAnyTransaction();
	Assert(!IsTransactionOrTransactionBlock());
	pgstat_report_activity(STATE_IDLE, NULL);
}

ErrorData *
worker_try(const char *activity, void (*step) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		if (!worker_begin(activity))
			worker_exit("the extension is not there any more");
		step(arg);
		worker_commit();
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		worker_abort();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return error;
}
