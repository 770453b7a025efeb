/*
 * outbox_wait.c
 *		outbox_wait: sleeps until a subscription has something to fetch.
 *
 * It is a procedure, so that it can sleep without a snapshot (base/wait.c).
 * The commit of a transaction that has enqueued events, of outbox_ack, or of a
 * change of the subscription wakes it (xacts.c).
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/shared.h"
#include "base/wait.h"
#include "outbox/pull.h"

#define WAIT_TIMEOUT_MAX_S (24 * 60 * 60)
#define WAIT_LOOK_MS 5000		/* look again after so long in any case */
#define WAIT_PAUSE_MS 50		/* the longest pause after looks in vain */
#define WAIT_ROWS 50			/* of the log that are fetched at a time */
#define WAIT_FILTER_US 100000	/* CPU time of the filter in a look */
#define WAIT_CHUNKS_MAX 20		/* of a partition that are read in a look */

/* How far the log has nothing for a partition. */
typedef struct WaitPartition
{
	bool		known;
	int64		position;		/* as recorded when this was read */
	int64		token;
	OutboxCursor cursor;
} WaitPartition;

typedef struct Wait
{
	const text *name;
	MemoryContext context;		/* of what is kept between looks */
	WaitPartition partitions[PULL_PARTITIONS_MAX];
	/* Of one look: */
	PullSubscription subscription;
	FilterCounts filtered;
	TimestampTz again_at;		/* when there may be something to fetch */
	bool		found;
} Wait;

PG_FUNCTION_INFO_V1(outbox_wait);

static void
wait_again_at(Wait *wait, TimestampTz at)
{
	if (at != 0)
		wait->again_at = Min(wait->again_at, at);
}

/*
 * Takes a row of the log (OutboxSource).  If the filter takes long, there may
 * be something to fetch: outbox_fetch records what it has read, and this does
 * not.
 */
static bool
wait_take(OutboxChunk *chunk, uint64 row, void *arg)
{
	Wait	   *wait = arg;

	chunk->last = query_int64(row, PULL_POSITION);
	wait->found = pull_wants(&wait->subscription, row, &wait->filtered) ||
		wait->filtered.cpu_us > WAIT_FILTER_US;
	return wait->found;
}

static void
wait_keep_cursor(Wait *wait, WaitPartition *kept, const OutboxCursor *cursor)
{
	MemoryContext old = MemoryContextSwitchTo(wait->context);

	if (kept->cursor.stragglers != NULL)
		pfree(kept->cursor.stragglers);
	kept->cursor = outbox_copy_cursor(cursor);
	MemoryContextSwitchTo(old);
}

/*
 * Reads the log where the last look has ended, unless another session has
 * fetched from the partition meanwhile.
 */
static void
wait_read_log(Wait *wait, const OutboxHorizon *horizon,
			  const PullPartition *partition)
{
	WaitPartition *kept = &wait->partitions[partition->id.number];
	OutboxChunk chunk = {.after = partition->cursor, .cut = true};

	if (kept->known && kept->position == partition->cursor.position &&
		kept->token == partition->token)
		chunk.after = kept->cursor;
	for (int i = 0; i < WAIT_CHUNKS_MAX && chunk.cut && !wait->found; i++)
		chunk = pull_read(horizon, partition, &chunk.after, WAIT_ROWS,
						  wait_take, wait);
	if (wait->found)
		return;
	if (chunk.cut)
		wait_again_at(wait, GetCurrentTimestamp());
	wait_keep_cursor(wait, kept, &chunk.after);
	kept->known = true;
	kept->position = partition->cursor.position;
	kept->token = partition->token;
}

static void
wait_look_at(Wait *wait, const OutboxHorizon *horizon,
			 const PullPartition *partition)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz due_at;

	if (partition->leased_until > now)
	{
		wait_again_at(wait, partition->leased_until);
		return;
	}
	due_at = outbox_next_due_at(partition->id,
								query_int64_array(NULL, 0), PG_INT64_MAX);
	wait->found = partition->leased_until != 0 ||
		(due_at != 0 && due_at <= now && outbox_has_due(partition->id));
	wait_again_at(wait, due_at);
	if (wait->found)
		return;
	if (horizon->replicated)
		wait_read_log(wait, horizon, partition);
	else
		wait_again_at(wait, TimestampTzPlusMilliseconds(now,
														OUTBOX_STANDBY_MS));
}

/*
 * Sets found, or again_at.
 */
static void
wait_look_for_events(void *arg)
{
	Wait	   *wait = arg;
	OutboxHorizon horizon;
	PullPartition *partitions;
	int			count;

	wait->found = false;
	wait->filtered.cpu_us = 0;
	wait->again_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 WAIT_LOOK_MS);
	wait->subscription = pull_find(wait->name);
	if (!wait->subscription.active)
		return;
	horizon = outbox_horizon_begin();
	count = pull_read_partitions(&wait->subscription, &partitions);
	for (int i = 0; i < count && !wait->found; i++)
		wait_look_at(wait, &horizon, &partitions[i]);
	wait_again_at(wait, horizon.grace_ends_at);
	outbox_horizon_end(&horizon);
}

/*
 * Sleeps until a wake-up, again_at or until, unless a transaction has ended
 * since ends was read.  After looks in vain, a pause comes first: with many
 * commits that do not concern the subscription, those who wait would take all
 * the processors.
 */
static void
wait_sleep(const Wait *wait, SharedDatabase *database, uint64 ends,
		   TimestampTz until, int pause_ms)
{
	long		ms;

	Assert(!HaveRegisteredOrActiveSnapshot());
	if (pause_ms > 0)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause_ms,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}
	ConditionVariablePrepareToSleep(&database->readers);
	pg_atomic_write_u32(&database->readers_armed, 1);
	pg_memory_barrier();
	ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
										 Min(wait->again_at, until));
	if (ms > 0 && pg_atomic_read_u64(&database->ends) == ends)
		ConditionVariableTimedSleep(&database->readers, Min(ms, WAIT_LOOK_MS),
									PG_WAIT_EXTENSION);
	ConditionVariableCancelSleep();
}

static TimestampTz
wait_timeout_arg(FunctionCallInfo fcinfo)
{
	args_require(fcinfo, 1, "timeout");
	return args_time_after(GetCurrentTimestamp(), PG_GETARG_INTERVAL_P(1),
						   WAIT_TIMEOUT_MAX_S, "timeout", NULL);
}

/*
 * SQL: outbox_wait(name, timeout).
 */
Datum
outbox_wait(PG_FUNCTION_ARGS)
{
	SharedDatabase *database;
	Wait	   *wait = palloc0(sizeof(Wait));
	TimestampTz until;
	int			pause_ms = 0;

	wait->name = args_text(fcinfo, 0, "name");
	until = wait_timeout_arg(fcinfo);
	wait->context = CurrentMemoryContext;
	PreventCommandDuringRecovery("outbox_wait()");
	shared_require("the outbox");
	wait_release_snapshot("outbox_wait()");
	database = shared_my_database();
	for (;;)
	{
		uint64		ends = pg_atomic_read_u64(&database->ends);

		pg_memory_barrier();
		wait_look(wait_look_for_events, wait);
		if (wait->found || GetCurrentTimestamp() >= until)
			break;
		wait_sleep(wait, database, ends, until, pause_ms);
		pause_ms = Min(2 * pause_ms + 1, WAIT_PAUSE_MS);
	}
	PG_RETURN_VOID();
}
