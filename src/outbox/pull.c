/*
 * pull.c
 *		Subscriptions that are read by outbox_fetch, and their partitions.
 *
 * No relay serves these.  A session fetches the next events of a partition as a
 * batch and records in the row of the partition where the batch ends, its token
 * and its lease.  outbox_ack moves the partition there.  So a success writes
 * that row twice, however many events the batch has.
 *
 * One batch of a partition is out at a time.  If its lease lapses, the next
 * session reads the same events again and gives the batch a new token; the old
 * one is refused.  The row of the partition is locked for every step.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/xid8.h"

#include "base/query.h"
#include "base/settings.h"
#include "base/shared.h"
#include "outbox/pull.h"
#include "outbox/subscription.h"
#include "relay/retry.h"

static SavedQuery find_subscription = {
	.sql = "SELECT s.id, s.url IS NULL, s.state = 'active', s.filter, s.partitions,"
	" ARRAY(SELECT CASE WHEN r.wait BETWEEN '0' AND '366 days'"
	"   THEN idempotency_internal.outbox_milliseconds(r.wait) END"
	"  FROM unnest(s.retry_schedule) WITH ORDINALITY AS r(wait, number)"
	"  ORDER BY r.number)"
	" FROM idempotency_internal.outbox_subscription s WHERE s.name = $1",
	.types = {TEXTOID}
};

#define PARTITION_COLUMNS \
	"SELECT p.number, p.position, p.stragglers, p.straggler_froms," \
	" p.moved_at < clock_timestamp() - interval '1 s'," \
	" p.token, p.leased_until, p.leased_position, p.leased_stragglers," \
	" p.leased_froms, p.leased_count, p.leased_events, p.lapsed_to" \
	" FROM idempotency_internal.outbox_partition p" \
	" WHERE p.subscription = $1"

static SavedQuery lock_free = {
	.sql = PARTITION_COLUMNS
	" AND p.number <> ALL ($2)"
	" AND (p.leased_until IS NULL OR p.leased_until <= clock_timestamp())"
	" ORDER BY p.token NULLS FIRST, p.number LIMIT 1"
	" FOR NO KEY UPDATE OF p SKIP LOCKED",
	.types = {INT8OID, INT4ARRAYOID}
};

static SavedQuery lock_token = {
	.sql = PARTITION_COLUMNS " AND p.token = $2 FOR NO KEY UPDATE OF p",
	.types = {INT8OID, INT8OID}
};

static SavedQuery read_partitions = {
	.sql = PARTITION_COLUMNS " ORDER BY p.number",
	.types = {INT8OID}
};

/*
 * Whether a position is in a batch: after the cursor of the partition, or of a
 * straggler of it.
 */
static SavedQuery read_new = {
	.sql = "SELECT e.position, e.key, s.ordered AND e.key IS NOT NULL, 0"
	OUTBOX_SUBSCRIBED("$1")
	" WHERE e.position = ANY ($3) AND e.position <= $4"
	" AND (e.position > $5 OR e.xid = ANY ($6))"
	OUTBOX_AND_WANTED("$2") " ORDER BY e.position",
	.types = {
		INT8OID, INT4OID, INT8ARRAYOID, INT8OID, INT8OID, XID8ARRAYOID
	}
};

static SavedQuery read_deferred = {
	.sql = "SELECT d.position, d.key, d.blocks_key, d.attempts"
	" FROM unnest($2) WITH ORDINALITY AS k(position, number)"
	" CROSS JOIN LATERAL (SELECT * FROM idempotency_internal.outbox_delivery d"
	"  WHERE d.subscription = $1 AND d.position = k.position OFFSET 0) d"
	" WHERE d.state IN ('waiting', 'parked')"
	" ORDER BY k.number",
	.types = {INT8OID, INT8ARRAYOID}
};

#define PULL_NEW_COLUMNS PULL_COLUMNS("1", OUTBOX_IS_SCHEDULED, " false") \
	" s.ordered AND e.key IS NOT NULL," OUTBOX_IS_BLOCKED ", e.xid"

static SavedQuery read_stragglers = {
	.sql = PULL_NEW_COLUMNS OUTBOX_SUBSCRIBED("$5") OUTBOX_FROM_STRAGGLERS
	OUTBOX_AND_WANTED("$6") OUTBOX_AND_NEW("$7") " ORDER BY e.position",
	.types = {
		XID8ARRAYOID, INT8ARRAYOID, INT8OID, INT8OID, INT8OID, INT4OID, INT8OID
	}
};

static SavedQuery read_range = {
	.sql = PULL_NEW_COLUMNS OUTBOX_SUBSCRIBED("$3") OUTBOX_FROM_RANGE
	OUTBOX_AND_WANTED("$4") OUTBOX_AND_NEW("$5") " ORDER BY e.position",
	.types = {INT8OID, INT8OID, INT8OID, INT4OID, INT8OID}
};

/*
 * In another isolation level, a query on our tables would not see what is
 * handed out, which is read with a later snapshot.
 */
void
pull_check_isolation(const char *function)
{
	settings_prevent_write(function);
	shared_require("the outbox");
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s needs the isolation level READ COMMITTED",
						function)));
}

static void
pull_check_home(PullSubscription *subscription)
{
	bool		any_subscription;

	subscription->identity = outbox_read_identity(&any_subscription);
	if (subscription->identity == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is held", subscription->name),
				 errdetail("This database is a copy of another one."),
				 errhint("See outbox_adopt().")));
}

PullSubscription
pull_find(const text *name)
{
	PullSubscription subscription = {0};
	Datum		values[1];
	Datum		filter;
	bool		isnull;

	subscription.name = text_to_cstring(name);
	values[0] = PointerGetDatum(name);
	if (query_run(&find_subscription, values, NULL, false) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist",
						subscription.name)));
	if (!DatumGetBool(query_datum(0, 2, &isnull)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" has a URL", subscription.name),
				 errdetail("A relay sends its events there."),
				 errhint("Make a subscription with url => NULL.")));
	subscription.id = query_int64(0, 1);
	subscription.active = DatumGetBool(query_datum(0, 3, &isnull));
	filter = query_datum(0, 4, &isnull);
	subscription.filter = isnull ? NULL : DatumGetJsonPathPCopy(filter);
	subscription.partitions = DatumGetInt32(query_datum(0, 5, &isnull));
	subscription.schedule_ms =
		query_int64_elements(0, 6, &subscription.schedule_count);
	pull_check_home(&subscription);
	return subscription;
}

static TimestampTz
pull_time(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);

	return isnull ? 0 : Max(DatumGetTimestampTz(value), 1);
}

static PullPartition
pull_partition(const PullSubscription *subscription, uint64 row)
{
	PullPartition partition = {0};
	bool		isnull;

	partition.id.subscription = subscription->id;
	partition.id.number = DatumGetInt32(query_datum(row, 1, &isnull));
	if (partition.id.number < 0 || partition.id.number >= PULL_PARTITIONS_MAX ||
		!outbox_cursor_from_row(row, 2, &partition.cursor))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("partition %d of subscription \"%s\" has no valid number or position",
						partition.id.number, subscription->name)));
	partition.resting = DatumGetBool(query_datum(row, 5, &isnull));
	partition.token = query_int64(row, 6);
	partition.leased_until = pull_time(row, 7);
	partition.deferred =
		!outbox_cursor_from_row(row, 8, &partition.after);
	partition.event_count = DatumGetInt32(query_datum(row, 11, &isnull));
	partition.events = query_int64_elements(row, 12, &partition.known_count);
	partition.lapsed_to = query_int64(row, 13);
	return partition;
}

bool
pull_lock_free(const PullSubscription *subscription, Datum skipped,
			   PullPartition *partition)
{
	Datum		values[2];

	values[0] = Int64GetDatum(subscription->id);
	values[1] = skipped;
	if (query_run(&lock_free, values, NULL, false) == 0)
		return false;
	*partition = pull_partition(subscription, 0);
	return true;
}

bool
pull_lock_token(const PullSubscription *subscription, int64 token,
				PullPartition *partition)
{
	Datum		values[2];

	values[0] = Int64GetDatum(subscription->id);
	values[1] = Int64GetDatum(token);
	if (query_run(&lock_token, values, NULL, false) == 0)
		return false;
	*partition = pull_partition(subscription, 0);
	return true;
}

int
pull_read_partitions(const PullSubscription *subscription,
					 PullPartition **partitions)
{
	Datum		values[1];
	uint64		count;

	values[0] = Int64GetDatum(subscription->id);
	count = query_run(&read_partitions, values, NULL, true);
	*partitions = palloc((count + 1) * sizeof(PullPartition));
	for (uint64 i = 0; i < count; i++)
		(*partitions)[i] = pull_partition(subscription, i);
	return (int) count;
}

OutboxChunk
pull_read(const OutboxHorizon *horizon, const PullPartition *partition,
		  const OutboxCursor *cursor, int rows,
		  bool (*take) (OutboxChunk *, uint64, void *), void *arg)
{
	OutboxSource source = {
		.stragglers = &read_stragglers,
		.range = &read_range,
		.id = partition->id,
		.extra = partition->lapsed_to,
		.rows = rows,
		.take = take,
		.arg = arg
	};

	return outbox_read(horizon, cursor, &source);
}

/*
 * Events of this transaction come when it has committed: it counts as open
 * (outbox_xid_is_open).
 */
bool
pull_wants(const PullSubscription *subscription, uint64 row,
		   FilterCounts *counts)
{
	FullTransactionId own = GetTopFullTransactionIdIfAny();
	bool		isnull;
	Datum		xid = query_datum(row, PULL_XID, &isnull);
	Datum		payload = query_datum(row, PULL_PAYLOAD, &isnull);
	Jsonb	   *copy;
	bool		passes;

	if (FullTransactionIdIsValid(own) &&
		FullTransactionIdEquals(DatumGetFullTransactionId(xid), own))
		return false;
	if (isnull || subscription->filter == NULL)
		return true;
	copy = DatumGetJsonbPCopy(payload);
	passes = filter_passes(subscription->filter, copy, counts);
	pfree(copy);
	return passes;
}

/*
 * What an attempt that has failed comes to.
 */
static OutboxResult
pull_failure(const PullSubscription *subscription,
			 const OutboxDelivery *delivery, const char *error)
{
	OutboxResult result = {.error = error};

	if (subscription->schedule_ms == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("column \"retry_schedule\" of subscription \"%s\" has no valid value",
						subscription->name)));
	result.attempts = Min(delivery->attempts, OUTBOX_ATTEMPTS_MAX - 1) + 1;
	result.delay_ms = retry_delay_ms(subscription->schedule_ms,
									 subscription->schedule_count,
									 result.attempts, 0,
									 pg_prng_double(&pg_global_prng_state));
	result.outcome = result.delay_ms < 0 ? OUTBOX_DEAD : OUTBOX_RETRY;
	return result;
}

void
pull_fail_new(const PullSubscription *subscription, OutboxPartitionId id,
			  OutboxDelivery *delivery, const char *error)
{
	OutboxResult result = pull_failure(subscription, delivery, error);

	outbox_settle_new(id, delivery, &result);
}

void
pull_fail_deferred(const PullSubscription *subscription, OutboxPartitionId id,
				   OutboxDelivery *delivery, const char *error)
{
	OutboxResult result = pull_failure(subscription, delivery, error);

	outbox_settle_due(id, delivery, &result);
	if (result.outcome == OUTBOX_DEAD && delivery->in_order)
		outbox_release_keys(id, list_make1(delivery));
}

/*
 * Makes deliveries of the rows in SPI_tuptable.  Of their events, only the
 * position and the key are set.
 */
static List *
pull_deliveries(uint64 count)
{
	List	   *deliveries = NIL;

	for (uint64 i = 0; i < count; i++)
	{
		OutboxDelivery *delivery = palloc0(sizeof(OutboxDelivery));
		bool		isnull;

		delivery->event = palloc0(sizeof(OutboxEvent));
		delivery->event->position = query_int64(i, 1);
		delivery->event->key = query_text_column(i, 2);
		delivery->in_order = DatumGetBool(query_datum(i, 3, &isnull)) &&
			delivery->event->key != NULL;
		delivery->attempts = DatumGetInt32(query_datum(i, 4, &isnull));
		deliveries = lappend(deliveries, delivery);
	}
	return deliveries;
}

List *
pull_read_new(const PullPartition *partition, Datum positions)
{
	const OutboxCursor *from = &partition->cursor;
	Datum	   *xids = palloc((from->straggler_count + 1) * sizeof(Datum));
	Datum		values[6];

	for (int i = 0; i < from->straggler_count; i++)
		xids[i] = FullTransactionIdGetDatum(from->stragglers[i].xid);
	values[0] = Int64GetDatum(partition->id.subscription);
	values[1] = Int32GetDatum(partition->id.number);
	values[2] = positions;
	values[3] = Int64GetDatum(partition->after.position);
	values[4] = Int64GetDatum(from->position);
	values[5] = query_array8(xids, from->straggler_count, XID8OID);
	return pull_deliveries(query_run(&read_new, values, NULL, false));
}

List *
pull_read_deferred(const PullPartition *partition, Datum positions)
{
	Datum		values[2];

	values[0] = Int64GetDatum(partition->id.subscription);
	values[1] = positions;
	return pull_deliveries(query_run(&read_deferred, values, NULL, false));
}
