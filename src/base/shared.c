/*
 * shared.c
 *		The table of databases that have the extension, in shared memory.
 *
 * The launcher reads the table to know which workers to run.  Backends use
 * their database's entry to wake its relays.  The table holds plain data and
 * locks only.  After a crash it is empty, and discovery fills it again.
 *
 * The LWLock guards which entry belongs to which database; the commit of an
 * enqueuing transaction does not take it.  A spinlock in each entry guards what
 * the workers of that database publish.  Nothing that can fail is called under
 * a spinlock.
 */
#include "postgres.h"

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/errors.h"
#include "base/shared.h"

typedef struct SharedState
{
	LWLock	   *lock;
	Oid			last_looked;	/* guarded by lock */
	slock_t		launcher_mutex;
	Latch	   *launcher_latch; /* guarded by launcher_mutex */
	SharedDatabase databases[SHARED_DATABASES_MAX];
} SharedState;

static SharedState *shared = NULL;
static SharedDatabase *my_database = NULL;

PG_FUNCTION_INFO_V1(idempotency_require_preload);

void
shared_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(SharedState)));
	RequestNamedLWLockTranche("idempotency", 1);
}

static void
shared_init_database(SharedDatabase *entry)
{
	memset(entry, 0, sizeof(SharedDatabase));
	SpinLockInit(&entry->mutex);
	for (int i = 0; i < SHARED_SEQUENCES; i++)
		pg_atomic_init_u64(&entry->highest[i], 0);
	pg_atomic_init_u64(&entry->ends, 0);
	pg_atomic_init_u64(&entry->lapses_at, 0);
	pg_atomic_init_u64(&entry->names_complete, 0);
	pg_atomic_init_u64(&entry->names_forgotten, 0);
	pg_atomic_init_u64(&entry->stock_reopened, 0);
	pg_atomic_init_u32(&entry->queues_called, 0);
	pg_atomic_init_u64(&entry->async_begun, 0);
	pg_atomic_init_u64(&entry->async_ended, 0);
	pg_atomic_init_u64(&entry->committed_upto, 0);
	/* Some may have been prepared before the start. */
	pg_atomic_init_u64(&entry->prepared_begun, 1);
	pg_atomic_init_u64(&entry->prepared_noted, 0);
	pg_atomic_init_u64(&entry->unreplicated_since, 0);
	pg_atomic_init_u64(&entry->changes_begun, 0);
	pg_atomic_init_u64(&entry->changes_ended, 0);
	for (int i = 0; i < SHARED_COUNTERS; i++)
		pg_atomic_init_u64(&entry->counters[i], 0);
	for (int i = 0; i < SHARED_RELAYS_MAX; i++)
	{
		pg_atomic_init_u64(&entry->relays[i].turn_since, 0);
		pg_atomic_init_u64(&entry->relays[i].turn_at, 0);
	}
	entry->check_at = GetCurrentTimestamp();
	pg_atomic_init_u64(&entry->since, entry->check_at);
	pg_atomic_init_u32(&entry->relays_armed, 0);
	pg_atomic_init_u32(&entry->readers_armed, 0);
	ConditionVariableInit(&entry->readers);
}

void
shared_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("idempotency", sizeof(SharedState), &found);
	if (!found)
	{
		shared->lock = &GetNamedLWLockTranche("idempotency")->lock;
		shared->last_looked = InvalidOid;
		shared->launcher_latch = NULL;
		SpinLockInit(&shared->launcher_mutex);
		for (int i = 0; i < SHARED_DATABASES_MAX; i++)
			shared_init_database(&shared->databases[i]);
	}
	LWLockRelease(AddinShmemInitLock);
}

bool
shared_ready(void)
{
	return shared != NULL;
}

void
shared_require(const char *what)
{
	if (!shared_ready())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s needs the library idempotency to be preloaded", what),
				 errhint("Add idempotency to shared_preload_libraries and restart the server.")));
}

/*
 * SQL: idempotency_require_preload(what text), raises an error unless the
 * library is preloaded.
 */
Datum
idempotency_require_preload(PG_FUNCTION_ARGS)
{
	errors_hide_frames();
	if (!shared_ready())
		shared_require(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/*
 * Returns a database's entry, or NULL.  InvalidOid finds a free entry.  The
 * caller holds the lock.
 */
static SharedDatabase *
shared_find(Oid database)
{
	Assert(LWLockHeldByMe(shared->lock));
	for (int i = 0; i < SHARED_DATABASES_MAX; i++)
	{
		if (shared->databases[i].database == database)
			return &shared->databases[i];
	}
	return NULL;
}

/*
 * As shared_find, but takes a free entry if the database has none.
 */
static SharedDatabase *
shared_find_or_add(Oid database)
{
	SharedDatabase *entry = shared_find(database);

	Assert(LWLockHeldByMeInMode(shared->lock, LW_EXCLUSIVE));
	if (entry != NULL)
		entry->looks++;
	if (entry == NULL)
	{
		entry = shared_find(InvalidOid);
		if (entry != NULL)
		{
			shared_init_database(entry);
			entry->database = database;
		}
	}
	return entry;
}

SharedDatabase *
shared_database(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = shared_find_or_add(database);
	if (entry != NULL)
		entry->used = true;
	LWLockRelease(shared->lock);
	return entry;
}

/*
 * Counters of stock are evicted while others are loaded, one after the other,
 * so this session's own entry is found without the lock.
 */
SharedDatabase *
shared_database_of(Oid database)
{
	SharedDatabase *entry;

	if (my_database != NULL && database == MyDatabaseId)
		return my_database;
	LWLockAcquire(shared->lock, LW_SHARED);
	entry = shared_find(database);
	LWLockRelease(shared->lock);
	return entry;
}

SharedDatabase *
shared_find_my_database(void)
{
	if (my_database == NULL && shared_ready())
		my_database = shared_database(MyDatabaseId);
	return my_database;
}

SharedDatabase *
shared_existing_database(void)
{
	bool		exists;

	if (my_database == NULL && shared_ready())
	{
		LWLockAcquire(shared->lock, LW_SHARED);
		exists = shared_find(MyDatabaseId) != NULL;
		LWLockRelease(shared->lock);
		if (exists)
			(void) shared_find_my_database();
	}
	return my_database;
}

SharedDatabase *
shared_my_database(void)
{
	if (shared_find_my_database() == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many databases use the extension idempotency"),
				 errdetail("One server can have %d of them.",
						   SHARED_DATABASES_MAX)));
	return my_database;
}

SharedDatabase *
shared_known_database(void)
{
	static bool asked = false;	/* asking each time would be too slow */

	if (!asked)
		(void) shared_find_my_database();
	asked = true;
	return my_database;
}

void
shared_count(SharedCounter counter, uint64 count)
{
	SharedDatabase *database = shared_known_database();

	if (database != NULL)
		pg_atomic_fetch_add_u64(&database->counters[counter], count);
}

void
shared_reset_counters(SharedDatabase *database)
{
	for (int i = 0; i < SHARED_COUNTERS; i++)
		pg_atomic_write_u64(&database->counters[i], 0);
	pg_atomic_write_u64(&database->since, GetCurrentTimestamp());
	SpinLockAcquire(&database->mutex);
	for (int i = 0; i < SHARED_WORKER_SLOTS; i++)
	{
		database->workers[i].starts = database->workers[i].pid != 0;
		database->workers[i].errors = 0;
	}
	SpinLockRelease(&database->mutex);
}

void
shared_forget_database(Oid database, uint64 looks)
{
	SharedDatabase *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = shared_find(database);
	if (entry != NULL && entry->looks == looks)
		entry->database = InvalidOid;
	LWLockRelease(shared->lock);
}

/*
 * CREATE DATABASE can reuse the OID for another database, whose positions and
 * counts start at 0.  The entry stays until the launcher has seen that the
 * database does not exist.
 */
void
shared_drop_database(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = shared_find(database);
	if (entry != NULL)
	{
		int			vacaters = entry->vacaters;
		uint64		looks = entry->looks;

		shared_init_database(entry);
		entry->database = database;
		entry->vacaters = vacaters;
		entry->looks = looks + 1;
		entry->check = true;
		entry->used = true;
	}
	LWLockRelease(shared->lock);
}

void
shared_set_owner(Oid database, Oid owner)
{
	SharedDatabase *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = OidIsValid(owner) ? shared_find_or_add(database) :
		shared_find(database);
	if (entry != NULL)
	{
		entry->owner = owner;
		entry->used |= OidIsValid(owner);
	}
	if (entry != NULL || !OidIsValid(owner))
		shared->last_looked = database;
	LWLockRelease(shared->lock);

	if (entry == NULL && OidIsValid(owner))
		ereport(WARNING,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("no workers for database with OID %u: too many databases use the extension idempotency",
						database)));
}

Oid
shared_last_looked(void)
{
	Oid			database;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	database = shared->last_looked;
	shared->last_looked = InvalidOid;
	LWLockRelease(shared->lock);
	return database;
}

bool
shared_check_database(Oid database)
{
	SharedDatabase *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = shared_find_or_add(database);
	if (entry != NULL)
	{
		entry->check = entry->used = true;
		entry->check_at = GetCurrentTimestamp();
	}
	LWLockRelease(shared->lock);
	shared_wake_launcher();
	return entry != NULL;
}

TimestampTz
shared_last_check(SharedDatabase *database)
{
	TimestampTz at;

	LWLockAcquire(shared->lock, LW_SHARED);
	at = database->check_at;
	LWLockRelease(shared->lock);
	return at;
}

/*
 * Any database may be vacated, also one without the extension.  The entry of
 * such a database is freed when it is no longer vacated.
 */
void
shared_vacate_database(Oid database, bool vacate)
{
	SharedDatabase *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = vacate ? shared_find_or_add(database) : shared_find(database);
	Assert(entry == NULL || entry->vacaters >= 0);
	if (entry != NULL && (vacate || entry->vacaters > 0))
		entry->vacaters += vacate ? 1 : -1;
	if (entry != NULL && entry->vacaters == 0 && !entry->used)
		entry->database = InvalidOid;
	LWLockRelease(shared->lock);
	shared_wake_launcher();
}

int
shared_take_databases(SharedDatabaseInfo *infos)
{
	int			count = 0;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < SHARED_DATABASES_MAX; i++)
	{
		SharedDatabase *entry = &shared->databases[i];

		if (!OidIsValid(entry->database))
			continue;
		infos[count].database = entry->database;
		infos[count].owner = entry->owner;
		infos[count].check = entry->check;
		infos[count].vacated = entry->vacaters > 0;
		infos[count].looks = entry->looks;
		entry->check = false;
		count++;
	}
	LWLockRelease(shared->lock);
	return count;
}

void
shared_set_launcher_latch(Latch *latch)
{
	SpinLockAcquire(&shared->launcher_mutex);
	shared->launcher_latch = latch;
	SpinLockRelease(&shared->launcher_mutex);
}

void
shared_wake_launcher(void)
{
	Latch	   *latch;

	SpinLockAcquire(&shared->launcher_mutex);
	latch = shared->launcher_latch;
	SpinLockRelease(&shared->launcher_mutex);
	if (latch != NULL)
		SetLatch(latch);
}

bool
shared_take_worker_slot(SharedDatabase *database, SharedWorkerSlot slot)
{
	SharedWorker *worker = &database->workers[slot];
	TimestampTz now = GetCurrentTimestamp();
	bool		taken;

	SpinLockAcquire(&database->mutex);
	taken = worker->pid == 0;
	if (taken)
	{
		worker->pid = MyProcPid;
		worker->latch = MyLatch;
		worker->starts++;
		worker->started_at = now;
	}
	SpinLockRelease(&database->mutex);
	return taken;
}

void
shared_leave_worker_slot(SharedDatabase *database, SharedWorkerSlot slot)
{
	SpinLockAcquire(&database->mutex);
	database->workers[slot].pid = 0;
	database->workers[slot].latch = NULL;
	SpinLockRelease(&database->mutex);
}

void
shared_wake_worker(SharedDatabase *database, SharedWorkerSlot slot)
{
	Latch	   *latch;

	SpinLockAcquire(&database->mutex);
	latch = database->workers[slot].latch;
	SpinLockRelease(&database->mutex);
	if (latch != NULL)
		SetLatch(latch);
}

void
shared_note_error(SharedDatabase *database, SharedWorkerSlot slot,
				  const char *message)
{
	SharedWorker *worker = &database->workers[slot];
	TimestampTz now = GetCurrentTimestamp();
	int			length = strlen(message);

	length = pg_mbcliplen(message, length, SHARED_ERROR_MAX - 1);
	SpinLockAcquire(&database->mutex);
	worker->errors++;
	worker->last_error_at = now;
	memcpy(worker->last_error, message, length);
	worker->last_error[length] = '\0';
	SpinLockRelease(&database->mutex);
}

void
shared_note_success(SharedDatabase *database, SharedWorkerSlot slot)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&database->mutex);
	database->workers[slot].last_success_at = now;
	SpinLockRelease(&database->mutex);
}

SharedWorker
shared_copy_worker(SharedDatabase *database, SharedWorkerSlot slot)
{
	SharedWorker worker;

	SpinLockAcquire(&database->mutex);
	worker = database->workers[slot];
	SpinLockRelease(&database->mutex);
	return worker;
}

/*
 * A session that waits arms this, and then reads "ends" once more before it
 * sleeps, as a relay does.  It is in the list by then.
 */
static void
shared_wake_armed_readers(SharedDatabase *database)
{
	if (pg_atomic_read_u32(&database->readers_armed) != 0 &&
		pg_atomic_exchange_u32(&database->readers_armed, 0) != 0)
		ConditionVariableBroadcast(&database->readers);
}

void
shared_wake_readers(SharedDatabase *database)
{
	pg_atomic_fetch_add_u64(&database->ends, 1);
	pg_memory_barrier();
	shared_wake_armed_readers(database);
}

/*
 * A relay arms itself and then reads "ends" once more before it sleeps.  Here
 * the order is the reverse, with a barrier in between, so one of the two always
 * sees the other.
 */
void
shared_wake_relays(SharedDatabase *database, bool in_any_case)
{
	Latch	   *latches[SHARED_RELAYS_MAX];
	uint32		armed;

	pg_atomic_fetch_add_u64(&database->ends, 1);
	pg_memory_barrier();
	shared_wake_armed_readers(database);
	armed = in_any_case ? PG_UINT32_MAX :
		pg_atomic_read_u32(&database->relays_armed);
	if (armed == 0)
		return;
	SpinLockAcquire(&database->mutex);
	for (int i = 0; i < SHARED_RELAYS_MAX; i++)
		latches[i] = (armed & (1 << i)) ? database->relays[i].latch : NULL;
	SpinLockRelease(&database->mutex);
	for (int i = 0; i < SHARED_RELAYS_MAX; i++)
	{
		if (latches[i] != NULL)
			SetLatch(latches[i]);
	}
}

void
shared_set_relay_latch(SharedDatabase *database, int relay, Latch *latch)
{
	SpinLockAcquire(&database->mutex);
	database->relays[relay].latch = latch;
	database->relays[relay].flight_count = 0;
	SpinLockRelease(&database->mutex);
	shared_wake_relays(database, true);
}

int
shared_relay_rank(SharedDatabase *database, int relay, int *count)
{
	int			rank = 0;

	*count = 0;
	SpinLockAcquire(&database->mutex);
	for (int i = 0; i < SHARED_RELAYS_MAX; i++)
	{
		if (database->relays[i].latch == NULL)
			continue;
		rank += i < relay;
		++*count;
	}
	SpinLockRelease(&database->mutex);
	return rank;
}

void
shared_arm_relay(SharedDatabase *database, int relay, bool arm)
{
	Assert(relay >= 0 && relay < SHARED_RELAYS_MAX);
	if (arm)
		pg_atomic_fetch_or_u32(&database->relays_armed, 1 << relay);
	else
		pg_atomic_fetch_and_u32(&database->relays_armed, ~(1 << relay));
}

void
shared_show_flights(SharedDatabase *database, int relay,
					const SharedFlight *flights, int count)
{
	SharedRelay *entry = &database->relays[relay];

	count = Min(count, SHARED_FLIGHTS_MAX);
	SpinLockAcquire(&database->mutex);
	memcpy(entry->flights, flights, count * sizeof(SharedFlight));
	entry->flight_count = count;
	SpinLockRelease(&database->mutex);
}

int
shared_copy_flights(SharedDatabase *database, SharedFlight **flights)
{
	int			count = 0;

	*flights = palloc(SHARED_RELAYS_MAX * SHARED_FLIGHTS_MAX *
					  sizeof(SharedFlight));
	for (int i = 0; i < SHARED_RELAYS_MAX; i++)
	{
		SharedRelay *entry = &database->relays[i];

		SpinLockAcquire(&database->mutex);
		Assert(entry->flight_count <= SHARED_FLIGHTS_MAX);
		memcpy(*flights + count, entry->flights,
			   entry->flight_count * sizeof(SharedFlight));
		count += entry->flight_count;
		SpinLockRelease(&database->mutex);
	}
	return count;
}

void
shared_show_troubles(SharedDatabase *database, int relay,
					 const SharedTrouble *troubles, int count)
{
	SharedTrouble *shown = database->troubles;
	int			kept = 0;

	SpinLockAcquire(&database->mutex);
	for (int i = 0; i < database->trouble_count; i++)
	{
		if (shown[i].relay != relay)
			shown[kept++] = shown[i];
	}
	Assert(kept <= SHARED_TROUBLES_MAX);
	count = Min(count, SHARED_TROUBLES_MAX - kept);
	for (int i = 0; i < count; i++)
		shown[kept + i] = troubles[i];
	database->trouble_count = kept + count;
	SpinLockRelease(&database->mutex);
}

int
shared_copy_troubles(SharedDatabase *database, SharedTrouble **troubles)
{
	int			count;

	*troubles = palloc(SHARED_TROUBLES_MAX * sizeof(SharedTrouble));
	SpinLockAcquire(&database->mutex);
	count = database->trouble_count;
	memcpy(*troubles, database->troubles, count * sizeof(SharedTrouble));
	SpinLockRelease(&database->mutex);
	return count;
}
