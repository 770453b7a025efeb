/*
 * shared.h
 *		The databases that have the extension, in shared memory.
 */
#ifndef BASE_SHARED_H
#define BASE_SHARED_H

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#define SHARED_DATABASES_MAX 128

#define SHARED_RELAYS_MAX 8		/* of one database */
#define SHARED_FLIGHTS_MAX 64	/* lanes of one relay that can be watched */
#define SHARED_TROUBLES_MAX 32	/* its stuck subscriptions, likewise */
#define SHARED_TROUBLE_MAX 160	/* bytes of what is said of one */
#define SHARED_ERROR_MAX 160	/* bytes of the last error of a worker */

/* The workers of a database: one in each slot. */
typedef enum SharedWorkerSlot
{
	SHARED_SWEEPER,
	SHARED_RELAY,				/* the first of them */
	SHARED_WORKER_SLOTS = SHARED_RELAY + SHARED_RELAYS_MAX
} SharedWorkerSlot;

/* What is known of the workers of a slot, one after another. */
typedef struct SharedWorker
{
	pid_t		pid;			/* of the one that runs; 0: none does */
	int64		errors;			/* that they have logged, and warnings */
	TimestampTz last_error_at;
	char		last_error[SHARED_ERROR_MAX];
} SharedWorker;

/* What a relay has on its way for a lane. */
typedef struct SharedFlight
{
	int64		subscription;
	int			in_flight;
} SharedFlight;

/* Why a relay cannot serve a subscription, or some of its lanes. */
typedef struct SharedTrouble
{
	int			relay;
	int64		subscription;
	char		error[SHARED_TROUBLE_MAX];
} SharedTrouble;

/* A relay of a database. */
typedef struct SharedRelay
{
	Latch	   *latch;			/* NULL: it does not run */
	int			flight_count;
	SharedFlight flights[SHARED_FLIGHTS_MAX];
} SharedRelay;

/* Whose numbers must not repeat. */
typedef enum SharedSequence
{
	SHARED_TOKENS,
	SHARED_POSITIONS,
	SHARED_STOCK_LOG,
	SHARED_SEQUENCES
} SharedSequence;

/* What is counted of claims. */
typedef enum SharedCounter
{
	SHARED_CLAIMED,
	SHARED_REPLAYED,
	SHARED_IN_PROGRESS,
	SHARED_MISMATCHES,
	SHARED_TAKEOVERS,
	SHARED_EXPIRED,
	SHARED_COUNTERS
} SharedCounter;

/*
 * One database.  An entry keeps its place for as long as the database exists,
 * so a session may hold on to the pointer to its own.
 */
typedef struct SharedDatabase
{
	/* Guarded by the lock of the table. */
	Oid			database;		/* InvalidOid: the entry is free */
	Oid			owner;			/* of the extension; InvalidOid: it has none */
	bool		check;			/* the launcher has to look again */
	int			vacaters;		/* commands that need it without workers */
	bool		used;			/* by others, who may point here for good */
	uint64		looks;			/* how often somebody has looked it up */

	/* Guarded by mutex. */
	slock_t		mutex;
	SharedWorker workers[SHARED_WORKER_SLOTS];
	SharedRelay relays[SHARED_RELAYS_MAX];
	int			trouble_count;
	SharedTrouble troubles[SHARED_TROUBLES_MAX];
	Oid			sequences[SHARED_SEQUENCES];	/* that highest is about */

	/* What sequences have handed out; never above that. */
	pg_atomic_uint64 highest[SHARED_SEQUENCES];
	/* How many enqueuing transactions have ended, and other news. */
	pg_atomic_uint64 ends;
	/* Of them, those that commit without waiting for the disk. */
	pg_atomic_uint64 async_begun;
	pg_atomic_uint64 async_ended;
	/* Since the time below, which is set once. */
	pg_atomic_uint64 counters[SHARED_COUNTERS];
	TimestampTz since;

	/*
	 * A bit for each relay, set just before it sleeps, if it could take
	 * events.
	 */
	pg_atomic_uint32 relays_armed;
} SharedDatabase;

/* What the launcher copies out. */
typedef struct SharedDatabaseInfo
{
	Oid			database;
	Oid			owner;
	bool		check;
	bool		vacated;
	uint64		looks;
} SharedDatabaseInfo;

/* Asks for the memory and its lock; called at shmem_request time. */
extern void shared_request(void);

/* Creates or attaches; called at shmem_startup time. */
extern void shared_startup(void);

/* Is the library preloaded? */
extern bool shared_ready(void);

/* Raises an error with a hint unless the library is preloaded. */
extern void shared_require(const char *what);

/* The entry of a database, made if it is not there; NULL: the table is full. */
extern SharedDatabase *shared_database(Oid database);

/*
 * The entry of this session's database.  The first raises an error if there is
 * no room, the second returns NULL, also if the library is not preloaded.
 */
extern SharedDatabase *shared_my_database(void);
extern SharedDatabase *shared_find_my_database(void);

/* As the second, but looks once in a session's life. */
extern SharedDatabase *shared_known_database(void);

/* Adds to a counter of this session's database, if there is a place for it. */
extern void shared_count(SharedCounter counter, uint64 count);

/*
 * Lets go of the entry of a database that did not exist, unless somebody has
 * looked it up since: another database may have the OID by now.
 */
extern void shared_forget_database(Oid database, uint64 looks);

/* Forgets a database that is being dropped: nobody is in it. */
extern void shared_drop_database(Oid database);

/* Notes what a look into a database found; InvalidOid: no extension. */
extern void shared_set_owner(Oid database, Oid owner);

/* The database that was looked into since the last call; InvalidOid: none. */
extern Oid	shared_last_looked(void);

/* The launcher shall look into the database again; false: the table is full. */
extern bool shared_check_database(Oid database);

/* Keeps workers out of a database, or ends that; calls nest. */
extern void shared_vacate_database(Oid database, bool vacate);

/*
 * Copies all entries in use, at most SHARED_DATABASES_MAX, clearing their check
 * marks; returns how many.
 */
extern int	shared_take_databases(SharedDatabaseInfo *infos);

/* Where a change for the launcher is announced; NULL to sign off. */
extern void shared_set_launcher_latch(Latch *latch);
extern void shared_wake_launcher(void);

/* Counts an end; wakes the relays that are armed, or all in any case. */
extern void shared_wake_relays(SharedDatabase *database, bool in_any_case);

/* Takes a slot in a database; false: somebody else has it. */
extern bool shared_take_worker_slot(SharedDatabase *database,
									SharedWorkerSlot slot);
extern void shared_leave_worker_slot(SharedDatabase *database,
									 SharedWorkerSlot slot);

/* Notes an error of the worker in a slot. */
extern void shared_note_error(SharedDatabase *database, SharedWorkerSlot slot,
							  const char *message);
extern SharedWorker shared_copy_worker(SharedDatabase *database,
									   SharedWorkerSlot slot);

/*
 * A relay is there, and can be reached by the latch; NULL to sign off.  Either
 * wakes the others, which share out their work anew.
 */
extern void shared_set_relay_latch(SharedDatabase *database, int relay,
								   Latch *latch);

/* Which of the relays that are there this one is, and of how many. */
extern int	shared_relay_rank(SharedDatabase *database, int relay, int *count);

/* Says, or no longer, that the end of a transaction is to wake a relay. */
extern void shared_arm_relay(SharedDatabase *database, int relay, bool arm);

/* What a relay has on its way; as much of it as there is room for is shown. */
extern void shared_show_flights(SharedDatabase *database, int relay,
								const SharedFlight *flights, int count);

/* What the relays have on their way; palloc'd.  Returns how many. */
extern int	shared_copy_flights(SharedDatabase *database,
								SharedFlight **flights);

/*
 * What a relay cannot serve, instead of what it has said before; as much of it
 * as there is room for is shown.
 */
extern void shared_show_troubles(SharedDatabase *database, int relay,
								 const SharedTrouble *troubles, int count);

/* What the relays cannot serve; palloc'd.  Returns how many. */
extern int	shared_copy_troubles(SharedDatabase *database,
								 SharedTrouble **troubles);

#endif							/* BASE_SHARED_H */
