/*
 * xacts.c
 *		The open transactions that have enqueued events, and positions.
 *
 * Positions come from a sequence, so a lower position may commit later than a
 * higher one.  To skip nothing, the relay must know the open transactions.  So
 * each top-level transaction enters itself here, with a lower bound of its
 * first position, before it draws a position, and leaves after its end is
 * visible.  The order of these steps keeps events from being lost:
 *
 *   enter:  assign the top-level xid; write the slot; only then nextval
 *   leave:  the end of the transaction is visible (the callback runs after
 *           that); clear the slot; count the end; wake the armed relays
 *
 * Subtransactions neither enter nor leave.  A transaction that is prepared
 * leaves, too: then the lock that nextval took on the sequence of positions
 * tells of it (base/prepared.c), as it does after a restart.  It is counted
 * before it leaves, since nobody may note where its commit ends in the WAL.
 *
 * Each backend has one slot, which only that backend writes; a spinlock in the
 * slot keeps readers from seeing half an entry.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "base/callback.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/sequence.h"
#include "base/shared.h"
#include "outbox/xacts.h"

typedef struct XactSlot
{
	slock_t		mutex;
	Oid			database;		/* InvalidOid: the slot is empty */
	OutboxXact	xact;
} XactSlot;

static XactSlot *slots = NULL;

/* State of the current transaction. */
static bool entered = false;
static bool wake_at_commit = false;
static XactsReader reader = XACTS_NOT_READING;
static bool async = false;		/* counted as begun, but not yet as ended */
static bool changing = false;	/* likewise as a change */
static int64 lower_bound;
static bool callback_registered = false;

static Size
xacts_size(void)
{
	return mul_size(MaxBackends, sizeof(XactSlot));
}

void
xacts_request(void)
{
	RequestAddinShmemSpace(xacts_size());
}

void
xacts_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	slots = ShmemInitStruct("idempotency outbox transactions", xacts_size(),
							&found);
	if (!found)
	{
		memset(slots, 0, xacts_size());
		for (int i = 0; i < MaxBackends; i++)
			SpinLockInit(&slots[i].mutex);
	}
	LWLockRelease(AddinShmemInitLock);
}

static void
xacts_leave(void)
{
	XactSlot   *slot = &slots[compat_my_proc_number()];

	Assert(entered && slot->database == MyDatabaseId);
	SpinLockAcquire(&slot->mutex);
	slot->database = InvalidOid;
	SpinLockRelease(&slot->mutex);
	entered = false;
}

/*
 * Called before the commit, when synchronous_commit cannot change any more.
 */
static void
xacts_note_async(void)
{
	Assert(!async);
	async = synchronous_commit == SYNCHRONOUS_COMMIT_OFF;
	if (async)
		pg_atomic_fetch_add_u64(&shared_my_database()->async_begun, 1);
}

uint64
xacts_async_begun(void)
{
	return pg_atomic_read_u64(&shared_my_database()->async_begun);
}

uint64
xacts_async_ended(void)
{
	return pg_atomic_read_u64(&shared_my_database()->async_ended);
}

/*
 * A relay that sees what this transaction has written must know that it has to
 * look for changes, so they are counted before the commit.
 */
static void
xacts_note_change(void)
{
	if (changing)
		return;
	changing = true;
	pg_atomic_fetch_add_u64(&shared_my_database()->changes_begun, 1);
}

uint64
xacts_changes_begun(void)
{
	return pg_atomic_read_u64(&shared_my_database()->changes_begun);
}

uint64
xacts_changes_ended(void)
{
	return pg_atomic_read_u64(&shared_my_database()->changes_ended);
}

XLogRecPtr
xacts_committed_upto(void)
{
	return pg_atomic_read_u64(&shared_my_database()->committed_upto);
}

void
xacts_note_committed(XLogRecPtr upto)
{
	pg_atomic_uint64 *place = &shared_my_database()->committed_upto;
	uint64		known = pg_atomic_read_u64(place);

	while (known < upto &&
		   !pg_atomic_compare_exchange_u64(place, &known, upto))
		;
}

/*
 * XACT_EVENT_COMMIT and XACT_EVENT_ABORT come after the end of the transaction
 * is visible to new snapshots.
 */
static void
xacts_callback(XactEvent event, void *arg)
{
	bool		news = wake_at_commit;
	bool		was_entered = entered;

	CALLBACK_BEGIN();
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (entered)
				xacts_note_async();
			if (wake_at_commit)
				xacts_note_change();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			if (entered || wake_at_commit)
				xacts_note_committed(XactLastCommitEnd);
			if (async)
				pg_atomic_fetch_add_u64(&shared_my_database()->async_ended, 1);
			async = false;
			if (changing)
				pg_atomic_fetch_add_u64(&shared_my_database()->changes_ended,
										1);
			changing = false;
			if (entered)
				xacts_leave();
			wake_at_commit = false;
			if (was_entered || news)
				shared_wake_relays(shared_my_database(), news);
			else if (reader == XACTS_ACKNOWLEDGED ||
					 (reader == XACTS_FETCHED && event == XACT_EVENT_ABORT))
				shared_wake_readers(shared_my_database());
			reader = XACTS_NOT_READING;
			break;
		case XACT_EVENT_PREPARE:
			Assert(!async && !changing);
			if (entered || wake_at_commit)
				pg_atomic_fetch_add_u64(&shared_my_database()->prepared_begun,
										1);
			if (entered)
				xacts_leave();
			wake_at_commit = false;
			reader = XACTS_NOT_READING;
			break;
		default:
			break;
	}
	CALLBACK_END();
}

/*
 * Prepares what the callback needs, while an error is still possible.
 */
static void
xacts_prepare_callback(void)
{
	shared_require("the outbox");
	(void) shared_my_database();
	if (!callback_registered)
		RegisterXactCallback(xacts_callback, NULL);
	callback_registered = true;
}

static void
xacts_write_slot(FullTransactionId xid, int64 lo)
{
	XactSlot   *slot = &slots[compat_my_proc_number()];
	TimestampTz now = GetCurrentTimestamp();

	Assert(!OidIsValid(slot->database));
	Assert(FullTransactionIdIsNormal(xid) && lo > 0);
	SpinLockAcquire(&slot->mutex);
	slot->database = MyDatabaseId;
	slot->xact.xid = xid;
	slot->xact.lo = lo;
	slot->xact.entered_at = now;
	SpinLockRelease(&slot->mutex);
	entered = true;
	lower_bound = lo;
}

/*
 * Enters this transaction into its slot, unless it is there already.
 */
static void
xacts_enter(void)
{
	FullTransactionId xid;
	int64		highest;

	if (entered)
		return;
	xacts_prepare_callback();
	xid = GetTopFullTransactionId();
	highest = sequence_highest(SHARED_POSITIONS,
							   catalog_get()->outbox_position_seq);
	xacts_write_slot(xid, 1 + highest);
	/* Write the slot before drawing a position. */
	pg_memory_barrier();
}

/*
 * The position must not be below the bound in the slot: the relay could skip
 * it.
 */
int64
xacts_next_position(void)
{
	xacts_enter();
	Assert(entered && TransactionIdIsValid(GetTopTransactionIdIfAny()));
	return sequence_next(SHARED_POSITIONS, catalog_get()->outbox_position_seq,
						 lower_bound - 1);
}

void
xacts_wake_at_commit(void)
{
	if (!shared_ready())
		return;
	xacts_prepare_callback();
	wake_at_commit = true;
}

void
xacts_wake_readers(XactsReader done)
{
	xacts_prepare_callback();
	reader = Max(reader, done);
}

void
xacts_end_prepared(void)
{
	if (shared_existing_database() == NULL)
		return;
	xacts_wake_at_commit();
	xacts_note_change();
}

uint64
xacts_prepared_begun(void)
{
	return pg_atomic_read_u64(&shared_my_database()->prepared_begun);
}

bool
xacts_any_prepared(uint64 begun)
{
	SharedDatabase *database = shared_my_database();
	uint64		noted = pg_atomic_read_u64(&database->prepared_noted);

	pg_read_barrier();			/* xacts_committed_upto is read after this */
	return begun != noted;
}

void
xacts_note_prepared(uint64 begun)
{
	pg_atomic_uint64 *place = &shared_my_database()->prepared_noted;
	uint64		known = pg_atomic_read_u64(place);

	Assert(begun <= xacts_prepared_begun());
	while (known < begun &&
		   !pg_atomic_compare_exchange_u64(place, &known, begun))
		;
}

int
xacts_copy(OutboxXact **xacts)
{
	int			count = 0;

	*xacts = palloc(mul_size(MaxBackends, sizeof(OutboxXact)));
	for (int i = 0; i < MaxBackends; i++)
	{
		XactSlot   *slot = &slots[i];

		SpinLockAcquire(&slot->mutex);
		if (slot->database == MyDatabaseId)
			(*xacts)[count++] = slot->xact;
		SpinLockRelease(&slot->mutex);
	}
	return count;
}
