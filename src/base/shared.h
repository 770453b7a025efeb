/*
 * shared.h
 *		The table of databases that have the extension, in shared memory.
 */
#ifndef BASE_SHARED_H
#define BASE_SHARED_H

#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#define SHARED_DATABASES_MAX 128

#define SHARED_RELAYS_MAX 8		/* of one database */
#define SHARED_FLIGHTS_MAX 64	/* subscriptions of one relay in views */
#define SHARED_TROUBLES_MAX 32	/* stuck subscriptions that views show */
#define SHARED_TROUBLE_MAX 160	/* bytes of the text about one of these */
#define SHARED_ERROR_MAX 160	/* bytes of a worker's last error */

/* The worker slots of a database, each for one worker. */
typedef enum SharedWorkerSlot
{
	SHARED_SWEEPER,
	SHARED_RELAY,				/* the first relay */
	SHARED_WORKER_SLOTS = SHARED_RELAY + SHARED_RELAYS_MAX
} SharedWorkerSlot;

/* A worker slot: its worker, and the errors of all its workers so far. */
typedef struct SharedWorker
{
	pid_t		pid;			/* of the running worker; 0: none */
	Latch	   *latch;			/* the same; NULL: none */
	int64		starts;			/* number of workers so far */
	TimestampTz started_at;		/* the last of these */
	TimestampTz last_success_at;	/* a round without an error; 0: none */
	int64		errors;			/* number of errors and warnings */
	TimestampTz last_error_at;
	char		last_error[SHARED_ERROR_MAX];
} SharedWorker;

/* What a relay sends to a subscription. */
typedef struct SharedFlight
{
	int64		subscription;
	int			in_flight;		/* requests */
	bool		rate_limited;	/* events wait for the limit of the rate */
	double		share;			/* of the places that it may take, 0 to 1 */
} SharedFlight;

/* Why a relay cannot serve a subscription, or some of its partitions. */
typedef struct SharedTrouble
{
	int			relay;
	int64		subscription;
	char		error[SHARED_TROUBLE_MAX];
} SharedTrouble;

/* A relay of a database. */
typedef struct SharedRelay
{
	Latch	   *latch;			/* NULL: not running */
	int			flight_count;
	SharedFlight flights[SHARED_FLIGHTS_MAX];
	/* Not guarded: when this turn of its loop has begun; 0: it sleeps. */
	pg_atomic_uint64 turn_since;
	/* Likewise: the subscription that it is at; 0: none, or many. */
	pg_atomic_uint64 turn_at;
} SharedRelay;

/* The sequences whose numbers must not repeat (sequence.c). */
typedef enum SharedSequence
{
	SHARED_TOKENS,
	SHARED_POSITIONS,
	SHARED_STOCK_LOG,
	SHARED_SEQUENCES
} SharedSequence;

/* Statistics. */
typedef enum SharedCounter
{
	SHARED_CLAIMED,
	SHARED_REPLAYED,
	SHARED_IN_PROGRESS,
	SHARED_MISMATCHES,
	SHARED_TAKEOVERS,
	SHARED_EXPIRED,
	SHARED_EVICTED,
	SHARED_RESERVED,			/* of stock, from here on */
	SHARED_INSUFFICIENT,
	SHARED_QUEUED,
	SHARED_CONFIRMED,
	SHARED_CANCELLED,
	SHARED_LAPSED,
	SHARED_COUNTERS
} SharedCounter;

/*
 * One database.  Its entry stays at the same place for as long as the database
 * exists, so a session may keep the pointer to its own entry.
 */
typedef struct SharedDatabase
{
	/* Guarded by SharedState.lock. */
	Oid			database;		/* InvalidOid: the entry is free */
	Oid			owner;			/* role of its workers; InvalidOid: none */
	bool		check;			/* the launcher has to look again */
	TimestampTz check_at;		/* when check was set, or the entry was added */
	int			vacaters;		/* commands that keep workers out */
	bool		used;			/* sessions may keep a pointer to it */
	uint64		looks;			/* number of look-ups */

	/* Guarded by mutex. */
	slock_t		mutex;
	SharedWorker workers[SHARED_WORKER_SLOTS];
	SharedRelay relays[SHARED_RELAYS_MAX];
	int			trouble_count;
	SharedTrouble troubles[SHARED_TROUBLES_MAX];
	Oid			sequences[SHARED_SEQUENCES];	/* that highest belongs to */

	/* The highest number recorded for each sequence; 0: none. */
	pg_atomic_uint64 highest[SHARED_SEQUENCES];
	/* Number of ended enqueuing transactions, and of other wake-ups. */
	pg_atomic_uint64 ends;
	/* Enqueuing transactions with an asynchronous commit. */
	pg_atomic_uint64 async_begun;
	pg_atomic_uint64 async_ended;
	/* Where in the WAL the last commit with events ends (outbox/xacts.c). */
	pg_atomic_uint64 committed_upto;
	/* Transactions with events that were prepared, and whose end is noted. */
	pg_atomic_uint64 prepared_begun;
	pg_atomic_uint64 prepared_noted;
	/* Since when a relay waits for a synchronous standby; 0: none does. */
	pg_atomic_uint64 unreplicated_since;
	/* Transactions that may have changed a subscription. */
	pg_atomic_uint64 changes_begun;
	pg_atomic_uint64 changes_ended;
	/* Statistics, counted from the time "since". */
	pg_atomic_uint64 counters[SHARED_COUNTERS];
	pg_atomic_uint64 since;
	/* None lapses before, of items without a counter (stock/lapse.c). */
	pg_atomic_uint64 lapses_at;
	/* Does the filter know all names of reservations (stock/names.c)? */
	pg_atomic_uint64 names_complete;
	/* Number of times that rows with names were written another way. */
	pg_atomic_uint64 names_forgotten;
	/* Transactions that open closed reservations again (stock/forget.c). */
	pg_atomic_uint64 stock_reopened;
	/* Which queues of stock could be served, a QueueCall (stock/queue.h). */
	pg_atomic_uint32 queues_called;
	/* 1 and how many are left (stock/in_doubt.c); 0: not known. */
	pg_atomic_uint32 prepared_before_start;
	/* One bit per relay, set before it sleeps if an event could be sent. */
	pg_atomic_uint32 relays_armed;
	/* Sessions that wait for events; armed is 1 if there may be any. */
	pg_atomic_uint32 readers_armed;
	ConditionVariable readers;
} SharedDatabase;

/* An entry as the launcher copies it. */
typedef struct SharedDatabaseInfo
{
	Oid			database;
	Oid			owner;
	bool		check;
	bool		vacated;
	uint64		looks;
} SharedDatabaseInfo;

/* Requests the memory and its lock; called by shmem_request_hook. */
extern void shared_request(void);

/* Creates or attaches to the table; called by shmem_startup_hook. */
extern void shared_startup(void);

/* Is the library preloaded? */
extern bool shared_ready(void);

/* Raises an error unless the library is preloaded, which "what" needs. */
extern void shared_require(const char *what);

/* Finds or adds a database's entry; NULL: the table is full. */
extern SharedDatabase *shared_database(Oid database);

/* Finds a database's entry; NULL: it has none. */
extern SharedDatabase *shared_database_of(Oid database);

/*
 * Find or add the entry of this session's database.  If the table is full,
 * shared_my_database raises an error and shared_find_my_database returns NULL.
 * The latter also returns NULL if the library is not preloaded, which callers
 * of shared_my_database must have checked.
 */
extern SharedDatabase *shared_my_database(void);
extern SharedDatabase *shared_find_my_database(void);

/* As shared_find_my_database, but adds no entry. */
extern SharedDatabase *shared_existing_database(void);

/* As shared_find_my_database, but looks only once per session. */
extern SharedDatabase *shared_known_database(void);

/* Adds to a counter of this session's database, if it has an entry. */
extern void shared_count(SharedCounter counter, uint64 count);

/* Sets all counters to 0, also those of errors of workers. */
extern void shared_reset_counters(SharedDatabase *database);

/*
 * Frees the entry of a database that did not exist, unless it was looked up
 * since: another database may have the OID by now.
 */
extern void shared_forget_database(Oid database, uint64 looks);

/* Resets the entry of a database that is being dropped and has no sessions. */
extern void shared_drop_database(Oid database);

/* Records what discovery found: the role of the workers; InvalidOid: none. */
extern void shared_set_owner(Oid database, Oid owner);

/* Returns and clears the database that discovery finished; InvalidOid: none. */
extern Oid	shared_last_looked(void);

/* Makes the launcher look into a database again; false: the table is full. */
extern bool shared_check_database(Oid database);

/* When that was last called, or the entry was added. */
extern TimestampTz shared_last_check(SharedDatabase *database);

/* Keeps workers out of a database, or lets them in again; calls nest. */
extern void shared_vacate_database(Oid database, bool vacate);

/*
 * Copies all entries in use, at most SHARED_DATABASES_MAX, and clears their
 * check flags; returns how many.
 */
extern int	shared_take_databases(SharedDatabaseInfo *infos);

/* Registers the latch of the launcher, NULL when it exits; wakes it. */
extern void shared_set_launcher_latch(Latch *latch);
extern void shared_wake_launcher(void);

/* Adds to ends; wakes the armed relays, or all relays if in_any_case. */
extern void shared_wake_relays(SharedDatabase *database, bool in_any_case);

/* Wakes those in outbox_wait; shared_wake_relays does that, too. */
extern void shared_wake_readers(SharedDatabase *database);

/* Takes a worker slot; false: another process has it. */
extern bool shared_take_worker_slot(SharedDatabase *database,
									SharedWorkerSlot slot);
extern void shared_leave_worker_slot(SharedDatabase *database,
									 SharedWorkerSlot slot);

/* Wakes the worker in a slot, if there is one. */
extern void shared_wake_worker(SharedDatabase *database, SharedWorkerSlot slot);

/* Records an error of the worker in a slot. */
extern void shared_note_error(SharedDatabase *database, SharedWorkerSlot slot,
							  const char *message);

/* Records that the worker in a slot has done a round without an error. */
extern void shared_note_success(SharedDatabase *database,
								SharedWorkerSlot slot);
extern SharedWorker shared_copy_worker(SharedDatabase *database,
									   SharedWorkerSlot slot);

/*
 * Sets the latch of a relay that has started, NULL when it exits.  Wakes the
 * other relays, which divide the partitions again.
 */
extern void shared_set_relay_latch(SharedDatabase *database, int relay,
								   Latch *latch);

/* Returns this relay's rank among the running relays, and their number. */
extern int	shared_relay_rank(SharedDatabase *database, int relay, int *count);

/* Sets whether the end of an enqueuing transaction wakes this relay. */
extern void shared_arm_relay(SharedDatabase *database, int relay, bool arm);

/* Publishes a relay's requests in flight, at most SHARED_FLIGHTS_MAX. */
extern void shared_show_flights(SharedDatabase *database, int relay,
								const SharedFlight *flights, int count);

/* Copies what the relays have in flight; palloc'd.  Returns how many. */
extern int	shared_copy_flights(SharedDatabase *database,
								SharedFlight **flights);

/*
 * Publishes what a relay cannot serve; replaces what the relay has published
 * before.  Whatever exceeds SHARED_TROUBLES_MAX in total is left out.
 */
extern void shared_show_troubles(SharedDatabase *database, int relay,
								 const SharedTrouble *troubles, int count);

/* Copies what the relays cannot serve; palloc'd.  Returns how many. */
extern int	shared_copy_troubles(SharedDatabase *database,
								 SharedTrouble **troubles);

#endif							/* BASE_SHARED_H */
