/*
 * horizon.c
 *		How far the log can be read so that nothing committed is skipped.
 *
 * A transaction that is open now may commit rows at positions below rows that
 * are already visible.  The relay waits for it for OUTBOX_GRACE_MS and then
 * goes past it, but records it as a straggler and reads its rows when it has
 * ended.
 *
 * The order of the steps matters: first the highest position is read, then the
 * set of open enqueuing transactions (xacts.c) is copied, then those that are
 * prepared are added, then one snapshot is taken by which everything else is
 * decided.  A transaction that has drawn a position up to the highest one moves
 * from the set, perhaps over being prepared, to its end, and is met in one of
 * the three.  Model: test/models/prepared_events.pml.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/prepared.h"
#include "base/query.h"
#include "outbox/reader.h"

/* How long a synchronous standby is waited for at most, and how often. */
#define HORIZON_STANDBY_MAX_MS 100
#define HORIZON_STANDBY_LOOK_US 1000

/* Were all asynchronous commits durable when durable_begun had begun? */
static bool durable_known = false;
static uint64 durable_begun;

static SavedQuery read_max_position = {
	.sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END"
	" FROM idempotency_internal.outbox_position_seq"
};

/*
 * Returns where the WAL ends that has everything that can be visible now.  At
 * the start of a page the insert position is after the page header, where
 * nothing has been written yet, so the page header is left out.
 */
static XLogRecPtr
horizon_wal_end(void)
{
	XLogRecPtr	upto = GetXLogInsertRecPtr();
	uint32		into_segment = XLogSegmentOffset(upto, wal_segment_size);

	if (into_segment == SizeOfXLogLongPHD)
		upto -= SizeOfXLogLongPHD;
	else if (into_segment % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		upto -= SizeOfXLogShortPHD;
	return upto;
}

/*
 * With synchronous_commit = off a crash can undo a visible commit, and an
 * event of such a transaction must not be sent.  So enqueuing transactions
 * that commit asynchronously are counted, before they commit and after their
 * commit is visible.  If all that had begun when the snapshot was taken had
 * ended before, no flush is necessary until another one begins.
 */
static void
horizon_make_durable(uint64 async_ended)
{
	uint64		async_begun = xacts_async_begun();

	Assert(async_ended <= async_begun);
	if (durable_known && async_begun == durable_begun)
		return;
	XLogFlush(horizon_wal_end());
	durable_known = async_begun == async_ended;
	durable_begun = async_begun;
}

/*
 * Returns where the last commit with events ends that the snapshot shows, or a
 * later place.  A commit is noted when its transaction leaves the set.  It was
 * not, or not yet, if a transaction of the set is not open in the snapshot, if
 * it was prepared, or if it was before the start.
 */
static XLogRecPtr
horizon_committed_upto(const OutboxHorizon *horizon, int open_count,
					   bool any_prepared)
{
	bool		known = !any_prepared;

	for (int i = 0; i < open_count; i++)
		known &= outbox_xid_is_open(horizon->stragglers[i].xid,
									horizon->snapshot);
	if (!known)
	{
		xacts_note_committed(horizon_wal_end());
		XLogFlush(xacts_committed_upto());
	}
	return xacts_committed_upto();
}

static XLogRecPtr
horizon_confirmed(void)
{
	XLogRecPtr	confirmed;

	LWLockAcquire(SyncRepLock, LW_SHARED);
	confirmed = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH];
	LWLockRelease(SyncRepLock);
	return confirmed;
}

/*
 * Has a synchronous standby the WAL up to there?  While it makes progress, this
 * waits for it: there may be no moment at which it has all commits.
 */
static bool
horizon_is_replicated(XLogRecPtr upto)
{
	TimestampTz begin = GetCurrentTimestamp();
	TimestampTz moved = begin;
	XLogRecPtr	before = horizon_confirmed();
	XLogRecPtr	confirmed = before;

	while (confirmed < upto)
	{
		TimestampTz now = GetCurrentTimestamp();

		if (confirmed != before)
			moved = now;
		if (TimestampDifferenceExceeds(moved, now, OUTBOX_STANDBY_MS) ||
			TimestampDifferenceExceeds(begin, now, HORIZON_STANDBY_MAX_MS))
			return false;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(HORIZON_STANDBY_LOOK_US);
		before = confirmed;
		confirmed = horizon_confirmed();
	}
	return true;
}

/*
 * Has a synchronous standby all commits that the snapshot shows?  Usually it
 * has, since a commit waits for it before the commit is visible.  It may not if
 * synchronous_commit is local or off, if that wait was cancelled, if the commit
 * was that of an apply worker, or after a restart.  A failover would undo such
 * a commit, and an event of it must not be sent.
 */
static void
horizon_await_standby(OutboxHorizon *horizon, int open_count,
					  uint64 prepared_begun, bool any_left)
{
	bool		any_prepared;
	XLogRecPtr	upto;

	horizon->replicated = true;
	if (SyncRepStandbyNames == NULL || SyncRepStandbyNames[0] == '\0')
		return;
	any_prepared = any_left || xacts_any_prepared(prepared_begun);
	upto = horizon_committed_upto(horizon, open_count, any_prepared);
	if (!any_left)
		xacts_note_prepared(prepared_begun);
	horizon->replicated = horizon_is_replicated(upto);
}

/*
 * A transaction id that this cluster has not assigned yet comes from a restored
 * dump; that transaction has ended in another cluster.
 */
bool
outbox_xid_is_open(FullTransactionId xid, Snapshot snapshot)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint64		age;

	if (!FullTransactionIdIsNormal(xid) ||
		!FullTransactionIdPrecedes(xid, next))
		return false;
	if (FullTransactionIdEquals(xid, GetTopFullTransactionIdIfAny()))
		return true;			/* the snapshot does not show it as open */
	age = U64FromFullTransactionId(next) - U64FromFullTransactionId(xid);
	if (age > PG_INT32_MAX)
		return false;
	return XidInMVCCSnapshot(XidFromFullTransactionId(xid), snapshot);
}

/*
 * Keeps those transactions that are open in the snapshot and may hold positions
 * up to the highest one.
 */
static void
horizon_find_stragglers(OutboxHorizon *horizon, int open_count, TimestampTz now)
{
	horizon->young_lo = PG_INT64_MAX;
	for (int i = 0; i < open_count; i++)
	{
		OutboxXact	xact = horizon->stragglers[i];
		TimestampTz ends_at = TimestampTzPlusMilliseconds(xact.entered_at,
														  OUTBOX_GRACE_MS);

		if (xact.lo > horizon->max_position ||
			!outbox_xid_is_open(xact.xid, horizon->snapshot))
			continue;
		Assert(horizon->straggler_count <= i);
		horizon->stragglers[horizon->straggler_count++] = xact;
		if (ends_at <= now || xact.entered_at > now)
			continue;			/* in the latter case, the clock was set back */
		horizon->young_lo = Min(horizon->young_lo, xact.lo);
		if (horizon->grace_ends_at == 0 || ends_at < horizon->grace_ends_at)
			horizon->grace_ends_at = ends_at;
	}
}

/*
 * Adds an open transaction that has no slot, unless it had one.  The bound of
 * its first position is not known.  It was open for long enough.
 */
static void
horizon_add(OutboxHorizon *horizon, int *open_count, FullTransactionId xid)
{
	OutboxXact	xact = {.xid = xid, .lo = 1, .entered_at = DT_NOBEGIN};

	for (int i = 0; i < *open_count; i++)
	{
		if (FullTransactionIdEquals(horizon->stragglers[i].xid, xid))
			return;
	}
	horizon->stragglers = repalloc(horizon->stragglers,
								   mul_size(*open_count + 1,
											sizeof(OutboxXact)));
	horizon->stragglers[(*open_count)++] = xact;
}

/*
 * Returns whether there are any.
 */
static bool
horizon_add_prepared(OutboxHorizon *horizon, int *open_count, bool *unknown)
{
	PreparedXact *prepared;
	int			count;

	count = prepared_holders(catalog_get()->outbox_position_seq, &prepared,
							 unknown);
	for (int i = 0; i < count; i++)
		horizon_add(horizon, open_count, prepared[i].xid);
	return count > 0 || *unknown;
}

/*
 * If a prepared transaction could not be identified, it can be any that is open
 * in the snapshot: one that it lists, or a newer one, below that id.
 */
static void
horizon_add_all(OutboxHorizon *horizon, int *open_count, FullTransactionId next)
{
	Snapshot	snapshot = horizon->snapshot;
	FullTransactionId latest = ReadNextFullTransactionId();
	FullTransactionId xid = next;

	for (uint32 i = 0; i < snapshot->xcnt; i++)
		horizon_add(horizon, open_count,
					prepared_full_xid(latest, snapshot->xip[i]));
	for (;;)
	{
		FullTransactionIdRetreat(&xid);
		if (TransactionIdPrecedes(XidFromFullTransactionId(xid),
								  snapshot->xmax))
			break;
		horizon_add(horizon, open_count, xid);
	}
}

OutboxHorizon
outbox_horizon_begin(void)
{
	OutboxHorizon horizon = {0};
	uint64		async_ended;
	uint64		prepared_begun;
	FullTransactionId next;
	TimestampTz now;
	int			open_count;
	bool		unknown;
	bool		any_left;

	PushActiveSnapshot(GetLatestSnapshot());
	query_run(&read_max_position, NULL, NULL, true);
	horizon.max_position = query_int64(0, 1);
	PopActiveSnapshot();

	pg_memory_barrier();
	open_count = xacts_copy(&horizon.stragglers);
	async_ended = xacts_async_ended();
	pg_memory_barrier();
	prepared_begun = xacts_prepared_begun();
	pg_memory_barrier();
	any_left = horizon_add_prepared(&horizon, &open_count, &unknown);
	next = ReadNextFullTransactionId();
	pg_memory_barrier();

	PushActiveSnapshot(GetLatestSnapshot());
	horizon.snapshot = GetActiveSnapshot();
	pg_memory_barrier();
	now = GetCurrentTimestamp();
	horizon_make_durable(async_ended);
	if (unknown)
		horizon_add_all(&horizon, &open_count, next);
	horizon_await_standby(&horizon, open_count, prepared_begun, any_left);
	horizon_find_stragglers(&horizon, open_count, now);
	Assert((horizon.grace_ends_at == 0) == (horizon.young_lo == PG_INT64_MAX));
	return horizon;
}

void
outbox_horizon_end(OutboxHorizon *horizon)
{
	Assert(GetActiveSnapshot() == horizon->snapshot);
	PopActiveSnapshot();
	pfree(horizon->stragglers);
}
