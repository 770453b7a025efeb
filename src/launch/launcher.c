/*
 * launcher.c
 *		The one worker of the cluster that starts all other workers.
 *
 * It reads pg_database, starts a discovery worker in each database that it has
 * not looked into yet, and keeps a sweeper and idempotency.relays relays
 * running in each database that has the extension.  It is woken by DDL
 * (ddl_hooks.c), by the end of a worker and by reload.  Once a minute it
 * checks everything, in case a wake-up was lost.
 *
 * It is connected to no database, so that it blocks no DROP DATABASE.  A worker
 * that ends is started again after a pause.  The pause doubles as long as the
 * worker ends soon, so that a worker that cannot work neither uses the CPU all
 * the time nor fills the log.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/backoff.h"
#include "base/compat.h"
#include "base/report.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/worker.h"
#include "launch/launcher.h"

#define LAUNCHER_RESTART_MS 1000	/* first pause before a worker restarts */
#define LAUNCHER_RESTART_MAX_MS 60000	/* the longest pause */
#define LAUNCHER_LIFE_MS 10000	/* a shorter life doubles the pause */
#define LAUNCHER_STUCK_MS 1000	/* limit for discovery if it waits for a lock */
#define LAUNCHER_DISCOVERY_MS 30000 /* limit for discovery in any case */
#define LAUNCHER_LOOK_MS 100	/* how often these limits are checked */
#define LAUNCHER_RETRY_MS 10000 /* pause after a worker could not be started */
#define LAUNCHER_RECONCILE_MS 60000 /* the longest sleep */

PGDLLEXPORT void launcher_main(Datum arg);

/* A worker slot of a database, as the launcher knows it. */
typedef struct LauncherWorker
{
	BackgroundWorkerHandle *handle; /* NULL: not started */
	TimestampTz started_at;
	Backoff		pause;			/* before it may be started again */
	bool		reported;		/* logged that no process slot is free */
} LauncherWorker;

/* A database that may have workers. */
typedef struct LauncherDatabase
{
	Oid			database;
	bool		stale;			/* discovery has to run */
	bool		vacated;		/* a command needs it without sessions */
	bool		discovery_reported; /* logged that no process slot is free */
	Backoff		discovery_pause;	/* after a failure */
	LauncherWorker workers[SHARED_WORKER_SLOTS];
} LauncherDatabase;

/* A row of pg_database. */
typedef struct LauncherRow
{
	Oid			database;
	bool		wanted;			/* it may have workers */
} LauncherRow;

static List *known = NIL;		/* of LauncherDatabase *, in TopMemoryContext */

void
launcher_register(void)
{
	BackgroundWorker worker;

	worker_define(&worker, "launcher_main", "idempotency launcher");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/*
 * Reads pg_database into the current memory context.
 */
static List *
launcher_read_databases(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *rows = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old = MemoryContextSwitchTo(caller);
		LauncherRow *row = palloc(sizeof(LauncherRow));

		row->database = form->oid;
		row->wanted = form->datallowconn && !form->datistemplate &&
			form->datconnlimit != COMPAT_INVALID_DATABASE &&
			settings_database_wanted(NameStr(form->datname));
		rows = lappend(rows, row);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return rows;
}

static LauncherRow *
launcher_find_row(List *rows, Oid database)
{
	ListCell   *cell;

	foreach(cell, rows)
	{
		LauncherRow *row = lfirst(cell);

		if (row->database == database)
			return row;
	}
	return NULL;
}

static LauncherDatabase *
launcher_find_known(Oid database)
{
	ListCell   *cell;

	foreach(cell, known)
	{
		LauncherDatabase *entry = lfirst(cell);

		if (entry->database == database)
			return entry;
	}
	return NULL;
}

static LauncherDatabase *
launcher_find_or_add(Oid database)
{
	LauncherDatabase *entry = launcher_find_known(database);
	MemoryContext old;

	if (entry != NULL)
		return entry;
	old = MemoryContextSwitchTo(TopMemoryContext);
	entry = palloc0(sizeof(LauncherDatabase));
	entry->database = database;
	entry->stale = true;
	known = lappend(known, entry);
	MemoryContextSwitchTo(old);
	return entry;
}

/*
 * Starts a worker.  Returns NULL if max_worker_processes is reached; that is
 * logged once.
 */
static BackgroundWorkerHandle *
launcher_start_worker(const char *main, const char *name, WorkerTarget target,
					  bool *reported)
{
	BackgroundWorkerHandle *handle = NULL;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	BackgroundWorker worker;

	worker_define(&worker, main, name);
	worker.bgw_notify_pid = MyProcPid;
	memcpy(worker.bgw_extra, &target, sizeof(target));
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
		*reported = false;
	else
	{
		handle = NULL;
		ereport(*reported ? DEBUG1 : WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start %s: no free background worker slot", name),
				 errhint("Increase max_worker_processes.")));
		*reported = true;
	}
	MemoryContextSwitchTo(old);
	return handle;
}

/*
 * Is the process with this pid waiting for a lock?
 */
static bool
launcher_waits_for_lock(pid_t pid)
{
	const PGPROC *proc = BackendPidGetProc(pid);

	return proc != NULL && (proc->wait_event_info & 0xFF000000) == PG_WAIT_LOCK;
}

/*
 * Waits until discovery has ended.  Discovery is stopped soon if it waits for
 * a lock, such as one on the database, since other databases cannot wait for
 * that.  If it is only slow, on a busy machine, it gets more time: another try
 * would be just as slow.
 */
static void
launcher_wait_for_discovery(BackgroundWorkerHandle *handle)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz stuck_at = TimestampTzPlusMilliseconds(now, LAUNCHER_STUCK_MS);
	TimestampTz give_up_at = TimestampTzPlusMilliseconds(now,
														 LAUNCHER_DISCOVERY_MS);
	pid_t		pid = 0;

	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		CHECK_FOR_INTERRUPTS();
		now = GetCurrentTimestamp();
		if (now >= give_up_at ||
			(now >= stuck_at && launcher_waits_for_lock(pid)))
			TerminateBackgroundWorker(handle);
		WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				  LAUNCHER_LOOK_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/*
 * Runs discovery in a database.  Returns false if that failed and has to be
 * tried again.
 */
static bool
launcher_discover(LauncherDatabase *entry)
{
	WorkerTarget target = {.database = entry->database, .owner = InvalidOid};
	BackgroundWorkerHandle *handle;

	handle = launcher_start_worker("discovery_main", "idempotency discovery", target,
								   &entry->discovery_reported);
	if (handle == NULL)
		return false;
	Assert(!entry->vacated);
	launcher_wait_for_discovery(handle);
	pfree(handle);
	return shared_last_looked() == entry->database;
}

/*
 * Runs discovery in each database that may have workers and where something has
 * changed since the last time.  Returns how many milliseconds the launcher may
 * sleep.  That is 0 if discovery ran: its result is used in the next round, and
 * the wait for it has reset the latch.
 */
static long
launcher_discover_all(List *rows)
{
	TimestampTz now = GetCurrentTimestamp();
	long		sleep_ms = LAUNCHER_RECONCILE_MS;
	ListCell   *cell;

	foreach(cell, rows)
	{
		LauncherRow *row = lfirst(cell);
		LauncherDatabase *entry;
		long		rest_ms;

		if (!row->wanted)
			continue;
		entry = launcher_find_or_add(row->database);
		if (!entry->stale || entry->vacated)
			continue;
		rest_ms = TimestampDifferenceMilliseconds(now,
												  entry->discovery_pause.until);
		if (now < entry->discovery_pause.until)
		{
			sleep_ms = Min(sleep_ms, rest_ms + 1);
			continue;
		}
		entry->stale = !launcher_discover(entry);
		if (entry->stale)
			backoff_fail(&entry->discovery_pause, LAUNCHER_RETRY_MS,
						 LAUNCHER_RECONCILE_MS, GetCurrentTimestamp());
		else
			backoff_reset(&entry->discovery_pause);
		sleep_ms = 0;
	}
	return sleep_ms;
}

/*
 * Frees an entry of the list of known databases.
 */
static void
launcher_free(LauncherDatabase *entry)
{
	for (int slot = 0; slot < SHARED_WORKER_SLOTS; slot++)
	{
		if (entry->workers[slot].handle != NULL)
			pfree(entry->workers[slot].handle);
	}
	pfree(entry);
}

/*
 * Removes databases that do not exist any more.  The rows were read after the
 * infos, so a database without a row was dropped.
 */
static void
launcher_forget_dropped(const SharedDatabaseInfo *infos, int count, List *rows)
{
	ListCell   *cell;

	for (int i = 0; i < count; i++)
	{
		if (launcher_find_row(rows, infos[i].database) == NULL)
			shared_forget_database(infos[i].database, infos[i].looks);
	}
	foreach(cell, known)
	{
		LauncherDatabase *entry = lfirst(cell);

		if (launcher_find_row(rows, entry->database) != NULL)
			continue;
		known = foreach_delete_current(known, cell);
		launcher_free(entry);
	}
}

/*
 * If the worker has ended, sets when it may be started again.
 */
static void
launcher_forget_stopped(LauncherDatabase *entry, SharedWorkerSlot slot)
{
	LauncherWorker *worker = &entry->workers[slot];
	TimestampTz now = GetCurrentTimestamp();
	pid_t		pid;

	if (worker->handle == NULL ||
		GetBackgroundWorkerPid(worker->handle, &pid) != BGWH_STOPPED)
		return;
	pfree(worker->handle);
	worker->handle = NULL;
	if (TimestampDifferenceExceeds(worker->started_at, now, LAUNCHER_LIFE_MS))
		backoff_reset(&worker->pause);
	backoff_fail(&worker->pause, LAUNCHER_RESTART_MS, LAUNCHER_RESTART_MAX_MS,
				 now);
	entry->stale = true;		/* the owner may have changed */
}

/*
 * Starts or stops one worker as wanted.  Returns when it has to be checked
 * again; 0: not before the next event.
 */
static TimestampTz
launcher_tend_worker(LauncherDatabase *entry, SharedWorkerSlot slot,
					 bool wanted, Oid owner)
{
	LauncherWorker *worker = &entry->workers[slot];
	WorkerTarget target = {
		.database = entry->database,
		.owner = owner,
		.slot = slot
	};
	bool		is_relay = slot >= SHARED_RELAY;
	TimestampTz now = GetCurrentTimestamp();

	launcher_forget_stopped(entry, slot);
	if (!wanted)
	{
		if (worker->handle != NULL)
			TerminateBackgroundWorker(worker->handle);
		backoff_reset(&worker->pause);
		return 0;
	}
	if (worker->handle != NULL)
		return 0;
	if (now < worker->pause.until)
		return worker->pause.until;
	Assert(OidIsValid(owner) && !entry->vacated);
	worker->handle = launcher_start_worker(is_relay ? "relay_main" : "sweeper_main",
										   is_relay ? "idempotency relay" : "idempotency sweeper",
										   target, &worker->reported);
	worker->started_at = now;
	if (worker->handle != NULL)
		return 0;
	worker->pause.until = TimestampTzPlusMilliseconds(now, LAUNCHER_RETRY_MS);
	return worker->pause.until;
}

/*
 * Starts or stops the workers of a range of slots, in all databases.  Returns
 * how many milliseconds the launcher may sleep.
 */
static long
launcher_tend(const SharedDatabaseInfo *infos, int count, List *rows,
			  int first_slot, int end_slot)
{
	TimestampTz now = GetCurrentTimestamp();
	long		sleep_ms = LAUNCHER_RECONCILE_MS;

	for (int i = 0; i < count; i++)
	{
		LauncherDatabase *entry = launcher_find_known(infos[i].database);
		LauncherRow *row = launcher_find_row(rows, infos[i].database);
		bool		wanted;
		bool		was_stale;

		if (entry == NULL)
			continue;
		wanted = row && row->wanted && !infos[i].vacated &&
			OidIsValid(infos[i].owner);
		was_stale = entry->stale;
		if (wanted && (entry->stale || infos[i].check))
			continue;			/* the owner may have changed */
		for (int slot = first_slot; slot < end_slot; slot++)
		{
			TimestampTz again_at;

			/* A relay whose number is too high exits by itself. */
			if (wanted && slot >= SHARED_RELAY + settings_relays)
			{
				launcher_forget_stopped(entry, slot);
				continue;
			}
			again_at = launcher_tend_worker(entry, slot, wanted,
											infos[i].owner);

			if (again_at != 0)
			{
				long		rest_ms;

				rest_ms = TimestampDifferenceMilliseconds(now, again_at);
				sleep_ms = Min(sleep_ms, rest_ms + 1);
			}
		}
		if (entry->stale && !was_stale)
			sleep_ms = 0;		/* a worker has just ended: next round */
	}
	return sleep_ms;
}

/*
 * Ends the pauses of a database where something changed: the cause of a failure
 * may be gone.
 */
static void
launcher_end_pauses(LauncherDatabase *entry)
{
	backoff_reset(&entry->discovery_pause);
	for (int slot = 0; slot < SHARED_WORKER_SLOTS; slot++)
		backoff_reset(&entry->workers[slot].pause);
}

/*
 * Checks everything once.  Returns how many milliseconds the launcher may
 * sleep.  max_worker_processes may not suffice for all workers, so each
 * database gets a sweeper and one relay before any database gets a second
 * relay.  Second relays are therefore started in a round in which nothing else
 * is to be done.
 */
static long
launcher_round(void)
{
	static SharedDatabaseInfo infos[SHARED_DATABASES_MAX];
	int			count = shared_take_databases(infos);
	List	   *rows = launcher_read_databases();
	ListCell   *cell;
	long		sleep_ms;
	long		tend_ms;

	launcher_forget_dropped(infos, count, rows);
	foreach(cell, known)
		((LauncherDatabase *) lfirst(cell))->vacated = false;
	for (int i = 0; i < count; i++)
	{
		LauncherDatabase *entry = launcher_find_known(infos[i].database);

		if (entry == NULL)
			continue;
		if (infos[i].check)
			launcher_end_pauses(entry);
		entry->stale |= infos[i].check;
		entry->vacated = infos[i].vacated;
	}
	sleep_ms = launcher_discover_all(rows);
	tend_ms = launcher_tend(infos, count, rows, 0, SHARED_RELAY + 1);
	sleep_ms = Min(sleep_ms, tend_ms);
	if (sleep_ms == 0)
		return 0;
	tend_ms = launcher_tend(infos, count, rows, SHARED_RELAY + 1,
							SHARED_WORKER_SLOTS);
	return Min(sleep_ms, tend_ms);
}

/*
 * Ends all pauses after a reload: the cause of a failure may be gone.
 */
static void
launcher_end_all_pauses(void)
{
	ListCell   *cell;

	foreach(cell, known)
		launcher_end_pauses(lfirst(cell));
}

/*
 * Stops all workers when the launcher exits: the next launcher would not know
 * them.
 */
static void
launcher_sign_off(int code, Datum arg)
{
	ListCell   *cell;

	shared_set_launcher_latch(NULL);
	foreach(cell, known)
	{
		LauncherDatabase *entry = lfirst(cell);

		for (int slot = 0; slot < SHARED_WORKER_SLOTS; slot++)
		{
			if (entry->workers[slot].handle != NULL)
				TerminateBackgroundWorker(entry->workers[slot].handle);
		}
	}
}

void
launcher_main(Datum arg)
{
	MemoryContext round = AllocSetContextCreate(TopMemoryContext,
												"idempotency launcher round",
												ALLOCSET_DEFAULT_SIZES);

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	shared_set_launcher_latch(MyLatch);
	before_shmem_exit(launcher_sign_off, (Datum) 0);
	ereport(LOG, (errmsg("idempotency launcher has started")));
	report_begin("idempotency launcher");

	for (;;)
	{
		long		sleep_ms;

		ResetLatch(MyLatch);
		if (worker_obey_signals())
			launcher_end_all_pauses();
		MemoryContextReset(round);
		MemoryContextSwitchTo(round);
		sleep_ms = launcher_round();
		Assert(CurrentMemoryContext == round);
		if (sleep_ms > 0)
			WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					  sleep_ms, PG_WAIT_EXTENSION);
	}
}
