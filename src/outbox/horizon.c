/*
 * horizon.c
 *		How far the log can be read so that nothing committed is skipped.
 *
 * A transaction that is open now may commit rows at positions below those that
 * are visible already.  The relay waits for it during a short grace, and then
 * passes it, but writes it down as a straggler and comes back for its rows
 * when it has ended.
 *
 * The order of the steps is the whole point: the highest position, then the
 * register, then one snapshot that everything else is judged by.  A position
 * up to the highest was taken by a transaction that is in the register, or
 * had ended before the register was read, and so before the snapshot.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/query.h"
#include "outbox/reader.h"

/* All commits of earlier transactions are durable, as of some time ago. */
static FullTransactionId durable_before;
static TimestampTz durable_at = 0;

static SavedQuery read_max_position = {
	.sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END"
	" FROM @extschema@.outbox_position_seq"
};

/*
 * Makes everything durable that can be visible now.  At the very start of a
 * page the insert position stands behind the page's header, where nothing has
 * been written yet.
 */
static void
horizon_flush(void)
{
	XLogRecPtr	upto = GetXLogInsertRecPtr();
	uint32		into_segment = XLogSegmentOffset(upto, wal_segment_size);

	if (into_segment == SizeOfXLogLongPHD)
		upto -= SizeOfXLogLongPHD;
	else if (into_segment % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		upto -= SizeOfXLogShortPHD;
	XLogFlush(upto);
}

/*
 * From time to time everything is made durable, so that nobody asks about the
 * commits of long ago: the server forgets them.
 */
static void
horizon_note_durable(Snapshot snapshot)
{
	FullTransactionId next = ReadNextFullTransactionId();
	TimestampTz now = GetCurrentTimestamp();
	uint32		age = XidFromFullTransactionId(next) - snapshot->xmin;

	if (durable_at != 0 &&
		!TimestampDifferenceExceeds(durable_at, now, OUTBOX_DURABLE_MS))
		return;
	horizon_flush();
	durable_at = now;
	durable_before = FullTransactionIdFromU64(U64FromFullTransactionId(next) - age);
}

/*
 * With synchronous_commit off a crash can undo what is visible already.  The
 * server knows where in the WAL the commits of late stand.
 */
void
outbox_make_durable(const FullTransactionId *xids, int count)
{
	FullTransactionId next = ReadNextFullTransactionId();
	XLogRecPtr	upto = InvalidXLogRecPtr;

	for (int i = 0; i < count; i++)
	{
		XLogRecPtr	commit;

		if (FullTransactionIdPrecedes(xids[i], durable_before) ||
			!FullTransactionIdPrecedes(xids[i], next))
			continue;
		commit = TransactionIdGetCommitLSN(XidFromFullTransactionId(xids[i]));
		upto = Max(upto, commit);
	}
	if (!XLogRecPtrIsInvalid(upto))
		XLogFlush(upto);
}

/*
 * Is a transaction open in the snapshot?  One that this cluster has yet to
 * start came with a restored dump, and has ended elsewhere.
 */
bool
outbox_xid_is_open(FullTransactionId xid, Snapshot snapshot)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint64		age;

	if (FullTransactionIdEquals(xid, GetTopFullTransactionIdIfAny()))
		return true;			/* though the snapshot does not say so */
	if (!FullTransactionIdPrecedes(xid, next))
		return false;
	age = U64FromFullTransactionId(next) - U64FromFullTransactionId(xid);
	if (age > PG_INT32_MAX)
		return false;
	return XidInMVCCSnapshot(XidFromFullTransactionId(xid), snapshot);
}

/*
 * Keeps of the register what is open in the snapshot and may hold positions
 * up to the highest.
 */
static void
horizon_find_stragglers(OutboxHorizon *horizon, int open_count)
{
	TimestampTz now = GetCurrentTimestamp();

	horizon->young_lo = PG_INT64_MAX;
	for (int i = 0; i < open_count; i++)
	{
		OutboxOpen	open = horizon->stragglers[i];
		TimestampTz ends_at = TimestampTzPlusMilliseconds(open.registered_at,
														  OUTBOX_GRACE_MS);

		if (open.lo > horizon->max_position ||
			!outbox_xid_is_open(open.xid, horizon->snapshot))
			continue;
		horizon->stragglers[horizon->straggler_count++] = open;
		if (ends_at <= now)
			continue;
		horizon->young_lo = Min(horizon->young_lo, open.lo);
		if (horizon->grace_ends_at == 0 || ends_at < horizon->grace_ends_at)
			horizon->grace_ends_at = ends_at;
	}
}

OutboxHorizon
outbox_horizon_begin(void)
{
	OutboxHorizon horizon = {0};
	int			open_count;

	PushActiveSnapshot(GetLatestSnapshot());
	query_run(&read_max_position, NULL, NULL, true);
	horizon.max_position = query_int64(0, 1);
	PopActiveSnapshot();

	pg_memory_barrier();
	open_count = register_copy(&horizon.stragglers);
	pg_memory_barrier();

	PushActiveSnapshot(GetLatestSnapshot());
	horizon.snapshot = GetActiveSnapshot();
	horizon_note_durable(horizon.snapshot);
	horizon_find_stragglers(&horizon, open_count);
	return horizon;
}

void
outbox_horizon_end(OutboxHorizon *horizon)
{
	Assert(GetActiveSnapshot() == horizon->snapshot);
	PopActiveSnapshot();
	pfree(horizon->stragglers);
}
