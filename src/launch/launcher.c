/*
 * launcher.c
 *		The one worker of the cluster that starts all others.
 *
 * It reads pg_database, sends a discovery worker into each database that it
 * does not know yet, and keeps a sweeper and a relay running wherever the
 * extension is.  It is woken by CREATE and DROP EXTENSION (ddl_hooks.c), by the
 * end of a worker and by reload, and looks at everything once a minute in case
 * a wake was lost.
 *
 * It is connected to no database, so that it is in nobody's way.  A worker
 * that ends is started again after a pause, which doubles while it does not
 * live for long: one that cannot work must neither spin nor fill the log.
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

#define LAUNCHER_RESTART_MS 1000	/* pause before a worker is started again, */
#define LAUNCHER_RESTART_MAX_MS 60000	/* doubled up to this */
#define LAUNCHER_LIFE_MS 10000	/* while it lives shorter than this */
#define LAUNCHER_STUCK_MS 1000	/* how long discovery may wait for a lock */
#define LAUNCHER_DISCOVERY_MS 30000 /* how long it may take in any case */
#define LAUNCHER_LOOK_MS 100	/* how often that is looked at */
#define LAUNCHER_RETRY_MS 10000 /* pause after a worker could not be started */
#define LAUNCHER_RECONCILE_MS 60000

PGDLLEXPORT void launcher_main(Datum arg);

/* A worker of a database, as far as the launcher knows. */
typedef struct LauncherWorker
{
	BackgroundWorkerHandle *handle; /* NULL: not started */
	TimestampTz started_at;
	Backoff		pause;			/* before it may be started again */
	bool		reported;		/* that there is no slot for it */
} LauncherWorker;

/* A database that was looked into, or is to be. */
typedef struct LauncherDatabase
{
	Oid			database;
	bool		stale;			/* something has happened there since */
	bool		vacated;		/* a command needs it for itself */
	bool		discovery_reported; /* that there is no worker slot for it */
	Backoff		discovery_pause;	/* after it could not be looked into */
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
 * Returns NULL if there is no slot, which is said once for each worker.
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
 * Does the process with this pid wait for a lock?
 */
static bool
launcher_waits_for_lock(pid_t pid)
{
	const PGPROC *proc = BackendPidGetProc(pid);

	return proc != NULL && (proc->wait_event_info & 0xFF000000) == PG_WAIT_LOCK;
}

/*
 * A discovery worker gets stuck if somebody has locked the database.  The others
 * cannot wait for that.  One that is only slow, on a machine that is busy, must get
 * its time: tried again, it would be as slow.
 */
static void
launcher_wait_for_discovery(BackgroundWorkerHandle *handle)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz stuck_at = TimestampTzPlusMilliseconds(now, LAUNCHER_STUCK_MS);
	TimestampTz give_up_at = TimestampTzPlusMilliseconds(now, LAUNCHER_DISCOVERY_MS);
	pid_t		pid = 0;

	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		CHECK_FOR_INTERRUPTS();
		now = GetCurrentTimestamp();
		if (now >= give_up_at || (now >= stuck_at && launcher_waits_for_lock(pid)))
			TerminateBackgroundWorker(handle);
		WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				  LAUNCHER_LOOK_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/*
 * Looks into a database.  Returns false if that could not be done, and has to
 * be tried again.
 */
static bool
launcher_discover(LauncherDatabase *entry)
{
	WorkerTarget target = {.database = entry->database,.owner = InvalidOid};
	BackgroundWorkerHandle *handle;

	handle = launcher_start_worker("discovery_main", "idempotency discovery", target,
								   &entry->discovery_reported);
	if (handle == NULL)
		return false;
	launcher_wait_for_discovery(handle);
	pfree(handle);
	return shared_last_looked() == entry->database;
}

/*
 * Looks into the databases that may have workers and that nobody has looked into
 * since something happened there.  Returns how many milliseconds the launcher
 * may sleep: not at all if a worker went, since waiting for it swallows wakes,
 * and what it has found is acted on in the next round.
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

		if (!row->wanted)
			continue;
		entry = launcher_find_or_add(row->database);
		if (!entry->stale || entry->vacated)
			continue;
		if (now < entry->discovery_pause.until)
		{
			sleep_ms = Min(sleep_ms,
						   TimestampDifferenceMilliseconds(now, entry->discovery_pause.until) + 1);
			continue;
		}
		entry->stale = !launcher_discover(entry);
		if (entry->stale)
			backoff_fail(&entry->discovery_pause, LAUNCHER_RETRY_MS,
						 LAUNCHER_RECONCILE_MS, GetCurrentTimestamp());
		else
			entry->discovery_pause = (Backoff) {0};
		sleep_ms = 0;
	}
	return sleep_ms;
}

/*
 * Frees what is known of a database, whose workers may have ended with it.
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
 * Drops what is known of databases that are gone.  The rows have been read
 * after the infos, so a database that is not among them was dropped.
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
 * Takes note of a worker's end, so that it can be started again after a pause.
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
		worker->pause = (Backoff) {0};
	backoff_fail(&worker->pause, LAUNCHER_RESTART_MS, LAUNCHER_RESTART_MAX_MS, now);
	entry->stale = true;		/* has the owner changed, or gone? */
}

/*
 * Starts or stops one worker, as wanted.  Returns when it is to be looked at
 * again; 0: when something happens.
 */
static TimestampTz
launcher_tend_worker(LauncherDatabase *entry, SharedWorkerSlot slot, bool wanted,
					 Oid owner)
{
	LauncherWorker *worker = &entry->workers[slot];
	WorkerTarget target = {.database = entry->database,.owner = owner,.slot = slot};
	bool		is_relay = slot >= SHARED_RELAY;
	TimestampTz now = GetCurrentTimestamp();

	launcher_forget_stopped(entry, slot);
	if (!wanted)
	{
		if (worker->handle != NULL)
			TerminateBackgroundWorker(worker->handle);
		worker->pause = (Backoff) {0};
		return 0;
	}
	if (worker->handle != NULL)
		return 0;
	if (now < worker->pause.until)
		return worker->pause.until;
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
 * Brings the workers of some slots of all databases to what they should be.
 * Returns how many milliseconds the launcher may sleep.
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
		bool		wanted = row && row->wanted && !infos[i].vacated &&
			OidIsValid(infos[i].owner);
		bool		was_stale;

		if (entry == NULL)
			continue;
		was_stale = entry->stale;
		if (wanted && (entry->stale || infos[i].check))
			continue;			/* its owner may not be what it was */
		for (int slot = first_slot; slot < end_slot; slot++)
		{
			TimestampTz again_at;

			/* A relay that is one too many leaves by itself. */
			if (wanted && slot >= SHARED_RELAY + settings_relays)
			{
				launcher_forget_stopped(entry, slot);
				continue;
			}
			again_at = launcher_tend_worker(entry, slot, wanted,
											infos[i].owner);

			if (again_at != 0)
				sleep_ms = Min(sleep_ms,
							   TimestampDifferenceMilliseconds(now, again_at) + 1);
		}
		if (entry->stale && !was_stale)
			sleep_ms = 0;		/* one has ended just now: look again */
	}
	return sleep_ms;
}

/*
 * What was wrong may have been mended: all is tried at once.
 */
static void
launcher_end_pauses(LauncherDatabase *entry)
{
	entry->discovery_pause = (Backoff) {0};
	for (int slot = 0; slot < SHARED_WORKER_SLOTS; slot++)
		entry->workers[slot].pause = (Backoff) {0};
}

/*
 * One look at everything.  Returns how many milliseconds the launcher may
 * sleep.  There may not be slots for all: each database has a sweeper and one
 * relay before any has a second, so that comes once there is no other to look at.
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
	tend_ms = launcher_tend(infos, count, rows, SHARED_RELAY + 1, SHARED_WORKER_SLOTS);
	return Min(sleep_ms, tend_ms);
}

/*
 * After a reload what has failed may work.
 */
static void
launcher_end_all_pauses(void)
{
	ListCell   *cell;

	foreach(cell, known)
		launcher_end_pauses(lfirst(cell));
}

/*
 * The workers end with the launcher: the next one would not know of them.
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
		if (sleep_ms > 0)
			WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					  sleep_ms, PG_WAIT_EXTENSION);
	}
}
