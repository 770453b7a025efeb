/*
 * faults.c
 *		Makes a statement, or a worker, fail at a chosen point.
 *
 * A library for the server that fault_points has prepared.  Such a server
 * calls a hook before each allocation, at each check for interrupts and before
 * each heavyweight lock.
 *
 *		SET faults.allocation = 7		the seventh allocation from now on fails
 *		SET faults.own = 7				the same, of those that the extension makes
 *		SET faults.interrupt = 7		the seventh check cancels the statement
 *		SET faults.terminate = 7		... ends the session
 *		SET faults.lock = 7				the seventh lock fails as by lock_timeout
 *		SHOW faults.allocation			0: it has failed
 *
 * faults.worker_allocation and the like are chances, one in so many, for the
 * workers of extension idempotency; faults.worker_again is the one with which
 * the next allocation fails, too; faults.seed makes a run repeatable.
 *
 * With faults.strict_locks, memory is not allocated, and no heavyweight lock
 * taken, by a process that holds a lightweight lock of the extension: an error
 * there would have others wait for as long as its transaction takes to abort.
 */
#include "postgres.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <limits.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

/* The numbers are those of fault_points, but for the last two. */
typedef enum FaultKind
{
	FAULT_ALLOCATION,
	FAULT_INTERRUPT,
	FAULT_LOCK,
	FAULT_TERMINATE,
	FAULT_OWN
} FaultKind;

#define FAULT_KINDS 5
#define FRAMES_MAX 100
#define OWN_FRAMES_MAX 10		/* from an allocation to its caller */
#define KNOWN_MAX 10007
#define FAULT_CHANCE_MAX 100000000

/* Whose function an address is in. */
typedef enum FaultCaller
{
	CALLER_ALLOCATES,			/* this library, or a function for memory */
	CALLER_EXTENSION,
	CALLER_SERVER
} FaultCaller;

static const char *const names[FAULT_KINDS] = {
	"allocation", "interrupt", "lock", "terminate", "own"
};

static int	countdown[FAULT_KINDS];
static int	worker_chance[FAULT_KINDS];
static int	worker_again;
static int	seed;
static bool strict_locks;
static pg_prng_state chance;

extern void _PG_init(void);

/*
 * One in so many, in a worker of ours.  If memory is short, the next allocation
 * may fail too, which is that of the handler.
 */
static bool
faults_strikes_worker(FaultKind kind)
{
	static bool seeded = false;
	static bool struck = false;
	int			one_in;

	if (worker_chance[kind] == 0 || MyBgworkerEntry == NULL ||
		strcmp(MyBgworkerEntry->bgw_library_name, "idempotency") != 0)
		return false;
	if (!seeded)
		pg_prng_seed(&chance, (uint64) seed * 1000003 + MyProcPid);
	seeded = true;
	one_in = struck && kind == FAULT_ALLOCATION && worker_again != 0 ?
		worker_again : worker_chance[kind];
	struck = pg_prng_uint64_range(&chance, 1, one_in) == 1;
	return struck;
}

/*
 * Functions of the server that are not prepared for errors: statistics, the
 * beginning and end of a transaction or subtransaction, and COMMIT PREPARED,
 * which may fail when it is done.
 */
static bool
faults_server_is_unprepared(const char *function)
{
	static const char *const ends[] = {
		"AbortCurrentTransaction", "AbortOutOfAnyTransaction",
		"BeginInternalSubTransaction", "CommitTransactionCommand",
		"ReleaseCurrentSubTransaction",
		"RollbackAndReleaseCurrentSubTransaction", "StartTransactionCommand"
	};

	if (strncmp(function, "pgstat_", strlen("pgstat_")) == 0 ||
		strcmp(function, "FinishPreparedTransaction") == 0)
		return true;
	if (IsTransactionState())
		return false;
	for (int i = 0; i < (int) lengthof(ends); i++)
	{
		if (strcmp(function, ends[i]) == 0)
			return true;
	}
	return false;
}

/*
 * A lock without memory for its owners stays in the session's table until the
 * end of the transaction, and is followed by the next one who takes it after a
 * savepoint (PostgreSQL 15: LockAcquireExtended, "in case next line fails").
 */
static bool
faults_breaks_locks(FaultKind kind, const char *function)
{
	return kind == FAULT_ALLOCATION &&
		strcmp(function, "LockAcquireExtended") == 0;
}

/*
 * Where the server is not prepared, only what it calls of the extension fails.
 * Further out, there are hooks of ours.
 */
static bool
faults_may_strike(FaultKind kind)
{
	void	   *frames[FRAMES_MAX];
	int			count = backtrace(frames, FRAMES_MAX);
	Dl_info		info;

	if (CritSectionCount != 0 || !IsUnderPostmaster)
		return false;
	for (int i = 0; i < count; i++)
	{
		if (dladdr(frames[i], &info) == 0 || info.dli_fname == NULL)
			continue;
		if (strstr(info.dli_fname, "/idempotency.so") != NULL)
			return true;
		if (info.dli_sname != NULL &&
			(faults_server_is_unprepared(info.dli_sname) ||
			 faults_breaks_locks(kind, info.dli_sname)))
			return false;
	}
	return IsTransactionState();
}

/*
 * Looking up an address takes long, so the answers are kept.
 */
static FaultCaller
faults_caller(void *address)
{
	static struct
	{
		void	   *address;
		FaultCaller caller;
	}			known[KNOWN_MAX];
	int			at = (uintptr_t) address % KNOWN_MAX;
	FaultCaller caller = CALLER_SERVER;
	Dl_info		info;

	if (known[at].address == address)
		return known[at].caller;
	if (dladdr(address, &info) == 0 || info.dli_fname == NULL ||
		strstr(info.dli_fname, "/faults.so") != NULL)
		caller = CALLER_ALLOCATES;
	else if (strstr(info.dli_fname, "/idempotency.so") != NULL)
		caller = CALLER_EXTENSION;
	else if (info.dli_sname != NULL &&
			 (strstr(info.dli_sname, "palloc") != NULL ||
			  strncmp(info.dli_sname, "MemoryContext", strlen("MemoryContext")) == 0))
		caller = CALLER_ALLOCATES;
	known[at].address = address;
	known[at].caller = caller;
	return caller;
}

/*
 * Is memory allocated by a function of the extension itself?
 */
static bool
faults_is_own(void)
{
	void	   *frames[OWN_FRAMES_MAX];
	int			count = backtrace(frames, OWN_FRAMES_MAX);

	for (int i = 0; i < count; i++)
	{
		FaultCaller caller = faults_caller(frames[i]);

		if (caller != CALLER_ALLOCATES)
			return caller == CALLER_EXTENSION;
	}
	return false;
}

/*
 * Counts; true if it is time to fail.
 */
static bool
faults_strikes(FaultKind kind)
{
	if (countdown[kind] > 1)
		countdown[kind]--;
	else if (countdown[kind] == 1 && faults_may_strike(kind))
	{
		countdown[kind] = 0;
		return true;
	}
	return faults_strikes_worker(kind) && faults_may_strike(kind);
}

/*
 * A name is locked until its row is written, which allocates memory
 * (stock/names.c).
 */
static void
faults_find_lock(LWLock *lock, LWLockMode mode, void *name)
{
	const char *tranche = GetLWLockIdentifier(PG_WAIT_LWLOCK, lock->tranche);

	if (strncmp(tranche, "idempotency", strlen("idempotency")) == 0 &&
		strcmp(tranche, "idempotency stock names") != 0)
		*(const char **) name = tranche;
}

/*
 * An error once for each lock that is held: it is released afterwards.
 */
static void
faults_check_locks(const char *what)
{
	static bool reported = false;
	const char *name = NULL;

	if (!strict_locks || CritSectionCount != 0)
		return;
	ForEachLWLockHeldByMe(faults_find_lock, &name);
	if (name == NULL)
		reported = false;
	else if (!reported)
	{
		reported = true;
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("%s while lock \"%s\" is held", what, name)));
	}
}

/*
 * At a check for interrupts.
 */
static void
faults_interrupt(void)
{
	if (InterruptHoldoffCount != 0 || QueryCancelHoldoffCount != 0)
		return;
	if (faults_strikes(FAULT_INTERRUPT))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceling statement by a fault")));
	if (faults_strikes(FAULT_TERMINATE))
	{
		ProcDiePending = true;
		InterruptPending = true;
	}
}

static void
faults_at_point(int point)
{
	if (point == FAULT_INTERRUPT)
		faults_interrupt();
	else if (point == FAULT_LOCK)
	{
		faults_check_locks("a heavyweight lock is taken");
		if (InterruptHoldoffCount == 0 && faults_strikes(FAULT_LOCK))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("canceling statement due to lock timeout, by a fault")));
	}
	else if (CurrentMemoryContext != ErrorContext)
	{
		faults_check_locks("memory is allocated");
		if (faults_strikes(FAULT_ALLOCATION) ||
			(countdown[FAULT_OWN] != 0 && faults_is_own() &&
			 faults_strikes(FAULT_OWN)))
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of memory, by a fault")));
	}
}

void
_PG_init(void)
{
	for (int i = 0; i < FAULT_KINDS; i++)
	{
		DefineCustomIntVariable(psprintf("faults.%s", names[i]),
								"The n-th of these fails; 0: none.", NULL,
								&countdown[i], 0, 0, INT_MAX,
								PGC_USERSET, 0, NULL, NULL, NULL);
		DefineCustomIntVariable(psprintf("faults.worker_%s", names[i]),
								"One in so many fails in a worker; 0: none.", NULL,
								&worker_chance[i], 0, 0, FAULT_CHANCE_MAX,
								PGC_SIGHUP, 0, NULL, NULL, NULL);
	}
	DefineCustomIntVariable("faults.worker_again",
							"After one in so many failures, the next allocation fails, too; 0: none.", NULL,
							&worker_again, 0, 0, FAULT_CHANCE_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("faults.seed", "Repeats a run.", NULL,
							&seed, 0, 0, INT_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("faults.strict_locks",
							 "Nothing that may fail is done with a lock of the extension.", NULL,
							 &strict_locks, false, PGC_SUSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("faults");
	fault_hook = faults_at_point;
}
