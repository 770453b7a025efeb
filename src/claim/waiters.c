/*
 * waiters.c
 *		Sessions that wait for keys (idem_wait), and transactions that wake
 *		them.
 *
 * Keys are divided into buckets by a hash.  A transaction remembers the buckets
 * of the keys that it writes, and at its end wakes the waiters of those.  If no
 * bucket of its keys is armed, that costs a memory barrier and a read.
 *
 *   waiter:  arm the bucket; read its number of ends; look; enter the list;
 *            sleep, unless the number has changed
 *   writer:  its end is visible; if the bucket is armed, disarm it, add to the
 *            number, and wake the list
 *
 * So a waiter that looks too early finds that the number has changed, or is in
 * the list.  No callback runs at COMMIT PREPARED; a waiter looks again after a
 * while in any case.
 *
 * Without the library being preloaded there is no shared memory, and waiters
 * only sleep.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "base/callback.h"
#include "claim/waiters.h"

#define WAITERS_BUCKETS 64		/* one bit of a word each */

typedef struct WaitersState
{
	pg_atomic_uint64 armed;		/* a bit for each bucket */
	pg_atomic_uint64 ends[WAITERS_BUCKETS];
	ConditionVariable lists[WAITERS_BUCKETS];
} WaitersState;

static WaitersState *state = NULL;

/* Buckets of the keys that the current transaction has written. */
static uint64 written = 0;

void
waiters_request(void)
{
	RequestAddinShmemSpace(sizeof(WaitersState));
}

void
waiters_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	state = ShmemInitStruct("idempotency waiters", sizeof(WaitersState),
							&found);
	if (!found)
	{
		pg_atomic_init_u64(&state->armed, 0);
		for (int i = 0; i < WAITERS_BUCKETS; i++)
		{
			pg_atomic_init_u64(&state->ends[i], 0);
			ConditionVariableInit(&state->lists[i]);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

static void
waiters_wake(void)
{
	uint64		wanted;

	CALLBACK_BEGIN();
	pg_memory_barrier();
	wanted = pg_atomic_read_u64(&state->armed) & written;
	for (int i = 0; wanted != 0 && i < WAITERS_BUCKETS; i++)
	{
		uint64		bit = UINT64CONST(1) << i;

		if ((wanted & bit) == 0)
			continue;
		pg_atomic_fetch_and_u64(&state->armed, ~bit);
		pg_atomic_fetch_add_u64(&state->ends[i], 1);
		ConditionVariableBroadcast(&state->lists[i]);
	}
	CALLBACK_END();
}

/*
 * Runs after the end of the transaction is visible.
 */
static void
waiters_transaction_ended(XactEvent event, void *arg)
{
	if (written == 0)
		return;
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		waiters_wake();
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		written = 0;
}

/*
 * What a savepoint has written is free again when it is rolled back.
 */
static void
waiters_subtransaction_ended(SubXactEvent event, SubTransactionId sub,
							 SubTransactionId parent, void *arg)
{
	if (written != 0 && event == SUBXACT_EVENT_ABORT_SUB)
		waiters_wake();
}

static uint32
waiters_hash(const text *value)
{
	return DatumGetUInt32(hash_any((unsigned char *) VARDATA_ANY(value),
								   VARSIZE_ANY_EXHDR(value)));
}

static int
waiters_bucket(const KeyName *name)
{
	uint32		hash = hash_combine(waiters_hash(name->key),
									waiters_hash(name->scope));

	return hash_combine(hash, MyDatabaseId) % WAITERS_BUCKETS;
}

/*
 * Either call allocates memory and may fail, and none may be made twice.
 */
static void
waiters_register_callbacks(void)
{
	static bool transactions = false;
	static bool subtransactions = false;

	if (!transactions)
		RegisterXactCallback(waiters_transaction_ended, NULL);
	transactions = true;
	if (!subtransactions)
		RegisterSubXactCallback(waiters_subtransaction_ended, NULL);
	subtransactions = true;
}

void
waiters_note(const KeyName *name)
{
	if (state == NULL)
		return;
	waiters_register_callbacks();
	written |= UINT64CONST(1) << waiters_bucket(name);
}

Waiter
waiters_arm(const KeyName *name)
{
	Waiter		waiter = {.bucket = waiters_bucket(name)};

	if (state == NULL)
		return waiter;
	pg_atomic_fetch_or_u64(&state->armed, UINT64CONST(1) << waiter.bucket);
	waiter.ends = pg_atomic_read_u64(&state->ends[waiter.bucket]);
	pg_memory_barrier();
	return waiter;
}

void
waiters_sleep(const Waiter *waiter, long ms)
{
	Assert(!HaveRegisteredOrActiveSnapshot());
	if (state == NULL)
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		return;
	}
	ConditionVariablePrepareToSleep(&state->lists[waiter->bucket]);
	if (pg_atomic_read_u64(&state->ends[waiter->bucket]) == waiter->ends)
		ConditionVariableTimedSleep(&state->lists[waiter->bucket], ms,
									PG_WAIT_EXTENSION);
	ConditionVariableCancelSleep();
}
