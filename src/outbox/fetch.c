/*
 * fetch.c
 *		outbox_fetch: hands out the next events of a subscription that is read.
 *
 * Deferred deliveries that are due come first, and the parked ones behind them.
 * Otherwise the log is read as a relay reads it (horizon.c, reader.c).  What
 * must not be handed out now becomes a deferred delivery, as it does in a
 * relay: events whose time has not come, and those behind another event of
 * their key.  Those that have expired become dead letters.
 *
 * If the lease of a batch lapses, its events are handed out in smaller batches,
 * so that an event that makes its reader fail does not hold up the others for
 * ever.  When it is alone, the lapse is a failed attempt.
 *
 * Events of the transaction itself are left out.  They are read when it has
 * committed, since it counts as open (outbox_xid_is_open).
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/sequence.h"
#include "base/shared.h"
#include "outbox/pull.h"

#define FETCH_EVENTS_MAX 10000	/* the highest max_events */
#define FETCH_LEASE_MAX_S (366 * 24 * 60 * 60)
#define FETCH_BYTES_MAX (8 * 1024 * 1024)	/* of payloads in a batch */
#define FETCH_ROWS 500			/* of the log that are fetched at a time */
#define FETCH_CHUNKS_MAX 20		/* that a call reads and finds nothing in */
#define FETCH_ASIDE_MAX 500		/* events that a chunk sets aside */
#define FETCH_FILTER_US 1000000 /* CPU time of the filter in a call, */
#define FETCH_SHARE_US 100000	/* of which each partition has a part, but not
								 * less than this */
#define FETCH_FILTERED_US 10000 /* the same, after which it is recorded what
								 * was read */
#define FETCH_STRIDE 1000		/* positions without an event that are
								 * recorded at once */

/*
 * Has the partition passed an event?  $4 to $6 are its cursor.  A batch of the
 * log that has lapsed has made deferred deliveries, and its events are read
 * again.  If one of these was delivered and deleted before, it would be handed
 * out twice.
 */
#define FETCH_AND_PASSED \
	" AND e.position <= $4 AND NOT coalesce((" \
	"  SELECT bool_or(l.position >= k.first)" \
	"  FROM idempotency_internal.outbox_event l" \
	"  JOIN unnest($5, $6) AS k(xid, first) ON l.xid = k.xid" \
	"  WHERE l.position = e.position), false)"

/*
 * Those that are due, and then the parked ones of their keys.
 */
static SavedQuery fetch_due = {
	.sql = "WITH due AS MATERIALIZED (SELECT *"
	"  FROM idempotency_internal.outbox_delivery e"
	"  WHERE e.subscription = $1 AND e.partition = $2 AND e.state = 'waiting'"
	"  AND e.due_at <= (SELECT clock_timestamp())" OUTBOX_AND_DECIDED
	FETCH_AND_PASSED
	"  ORDER BY e.due_at, e.position LIMIT $3),"
	" behind AS (SELECT p.* FROM due"
	"  CROSS JOIN LATERAL (SELECT * FROM idempotency_internal.outbox_delivery e"
	"   WHERE e.subscription = $1 AND e.key = due.key AND e.blocks_key"
	"   AND e.state = 'parked'" FETCH_AND_PASSED
	"   ORDER BY e.position LIMIT $3) p"
	"  WHERE due.blocks_key)"
	" " PULL_COLUMNS("least(e.attempts, 2147483646) + 1", " false",
					 OUTBOX_IS_CANCELLED)
	" e.blocks_key, false, NULL"
	" FROM (SELECT * FROM due UNION ALL SELECT * FROM behind) e"
	" ORDER BY e.state DESC,"
	"  CASE WHEN e.state = 'waiting' THEN e.due_at END, e.position LIMIT $3",
	.types = {
		INT8OID, INT4OID, INT4OID, INT8OID, XID8ARRAYOID, INT8ARRAYOID
	}
};

/* $3 to $5, and $8 to $10: a cursor, and where the batch ends. */
static SavedQuery write_lease = {
	.sql = "UPDATE idempotency_internal.outbox_partition"
	" SET position = $3, stragglers = $4, straggler_froms = $5, token = $6,"
	"  leased_until = $7, leased_position = $8, leased_stragglers = $9,"
	"  leased_froms = $10, leased_count = $11, leased_events = $12,"
	"  lapsed_to = $13, filtered = filtered + $14,"
	"  filter_errors = filter_errors + $15,"
	"  rate = CASE WHEN $11 > 0 THEN rate"
	"   ELSE idempotency_internal.outbox_rate(rate, moved_at) END,"
	"  moved_at = CASE WHEN $11 > 0 THEN moved_at ELSE clock_timestamp() END"
	" WHERE subscription = $1 AND number = $2",
	.types = {
		INT8OID, INT4OID, INT8OID, XID8ARRAYOID, INT8ARRAYOID, INT8OID,
		TIMESTAMPTZOID, INT8OID, XID8ARRAYOID, INT8ARRAYOID, INT4OID,
		INT8ARRAYOID, INT8OID, INT8OID, INT8OID
	}
};

/* An event that is not handed out. */
typedef struct FetchAside
{
	OutboxDelivery delivery;
	OutboxResult result;
} FetchAside;

typedef struct Fetch
{
	PullSubscription subscription;
	int			max_events;
	TimestampTz leased_until;
	ReturnSetInfo *result;
	int64		token;			/* 0: not drawn yet */
	/* Of one partition: */
	PullPartition partition;
	int			limit;			/* of events */
	int			count;			/* of events handed out */
	int64	   *positions;		/* of these, with room for limit */
	Size		bytes;
	List	   *aside;			/* of FetchAside * */
	FilterCounts filtered;
} Fetch;

PG_FUNCTION_INFO_V1(outbox_fetch);

static Datum
fetch_event_id(const Fetch *fetch, int64 position, Datum created_at)
{
	int64		created_us = DatumGetTimestampTz(created_at) +
		(int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;

	return CStringGetTextDatum(psprintf("msg_%s_" INT64_FORMAT "_" INT64_FORMAT,
										fetch->subscription.identity,
										position, created_us));
}

/*
 * Puts the event in a row of SPI_tuptable into the result.
 */
static void
fetch_hand_out(Fetch *fetch, uint64 row)
{
	static const int columns[] = {
		PULL_TOPIC, PULL_KEY, PULL_TYPE, PULL_PAYLOAD, PULL_HEADERS,
		PULL_CREATED_AT, PULL_ATTEMPT
	};
	const int	first = 3;
	Datum		values[10];
	bool		nulls[10] = {false};
	int64		position = query_int64(row, PULL_POSITION);

	Assert(fetch->count < fetch->limit);
	if (fetch->token == 0)
		fetch->token = sequence_next(SHARED_TOKENS,
									 catalog_get()->idem_token_seq, 0);
	for (int i = 0; i < (int) lengthof(columns); i++)
		values[first + i] = query_datum(row, columns[i], &nulls[first + i]);
	values[0] = Int64GetDatum(fetch->token);
	values[1] = Int64GetDatum(position);
	values[2] = fetch_event_id(fetch, position, values[first + 5]);
	tuplestore_putvalues(fetch->result->setResult, fetch->result->setDesc,
						 values, nulls);
	pfree(DatumGetPointer(values[2]));
	fetch->bytes += toast_raw_datum_size(values[first + 3]);
	fetch->positions[fetch->count++] = position;
}

/*
 * Returns whether the event in a row of SPI_tuptable must not be handed out
 * now, and remembers it if so.
 */
static bool
fetch_set_aside(Fetch *fetch, uint64 row)
{
	const char *wrong = query_text_column(row, PULL_WRONG);
	bool		isnull;
	bool		scheduled;
	bool		blocked;
	bool		cancelled;
	FetchAside *aside;

	scheduled = DatumGetBool(query_datum(row, PULL_SCHEDULED, &isnull));
	blocked = DatumGetBool(query_datum(row, PULL_BLOCKED, &isnull));
	cancelled = DatumGetBool(query_datum(row, PULL_CANCELLED, &isnull));
	if (wrong == NULL && !scheduled && !blocked && !cancelled)
		return false;
	aside = palloc0(sizeof(FetchAside));
	aside->delivery.event = palloc0(sizeof(OutboxEvent));
	aside->delivery.event->position = query_int64(row, PULL_POSITION);
	aside->delivery.event->key = query_text_column(row, PULL_KEY);
	aside->delivery.in_order = !scheduled &&
		DatumGetBool(query_datum(row, PULL_IN_ORDER, &isnull));
	aside->result.error = wrong;
	aside->result.uncounted = true;
	if (cancelled)
		aside->result.outcome = OUTBOX_CANCELLED;
	else if (wrong != NULL)
		aside->result.outcome = OUTBOX_DEAD;
	else
		aside->result.outcome = scheduled ? OUTBOX_SCHEDULED : OUTBOX_PARKED;
	fetch->aside = lappend(fetch->aside, aside);
	return true;
}

/*
 * If a timeout ended a call that reads many partitions, nothing of what it has
 * read would be recorded.
 */
static int64
fetch_filter_share_us(const Fetch *fetch)
{
	return Max(FETCH_FILTER_US / fetch->subscription.partitions,
			   FETCH_SHARE_US);
}

static bool
fetch_is_full(const Fetch *fetch)
{
	return fetch->count >= fetch->limit || fetch->bytes > FETCH_BYTES_MAX ||
		list_length(fetch->aside) >= FETCH_ASIDE_MAX ||
		fetch->filtered.cpu_us > fetch_filter_share_us(fetch);
}

/*
 * Takes a row that was read from the log (OutboxSource).
 */
static bool
fetch_take(OutboxChunk *chunk, uint64 row, void *arg)
{
	Fetch	   *fetch = arg;

	chunk->last = query_int64(row, PULL_POSITION);
	if (pull_wants(&fetch->subscription, row, &fetch->filtered) &&
		!fetch_set_aside(fetch, row))
		fetch_hand_out(fetch, row);
	return fetch_is_full(fetch);
}

/*
 * Records what becomes of events that were set aside.
 */
static void
fetch_settle_aside(Fetch *fetch, void (*settle) (OutboxPartitionId,
												 const OutboxDelivery *,
												 const OutboxResult *))
{
	for (int i = 0; i < list_length(fetch->aside); i++)
	{
		FetchAside *aside = list_nth(fetch->aside, i);

		settle(fetch->partition.id, &aside->delivery, &aside->result);
	}
	list_free(fetch->aside);
	fetch->aside = NIL;
}

static void
fetch_set_cursor(Datum *values, char *nulls, const OutboxCursor *cursor)
{
	if (cursor == NULL)
		memset(nulls, 'n', 3);
	else
		outbox_cursor_values(values, cursor);
}

static void
fetch_count_no_filtered(Fetch *fetch)
{
	fetch->filtered = (FilterCounts)
	{
		0
	};
}

/*
 * Writes the row of the partition: its cursor, and the batch that ends at
 * "after", or has deferred deliveries if that is NULL.
 */
static void
fetch_write(const Fetch *fetch, const OutboxCursor *cursor,
			const OutboxCursor *after)
{
	const PullPartition *partition = &fetch->partition;
	bool		leased = fetch->count > 0;
	Datum		values[15];
	char		nulls[16] = "               ";

	Assert(!leased || fetch->token != 0);
	Assert(cursor->position >= partition->cursor.position);
	Assert(after == NULL || after->position >= cursor->position);
	values[0] = Int64GetDatum(partition->id.subscription);
	values[1] = Int32GetDatum(partition->id.number);
	fetch_set_cursor(&values[2], &nulls[2], cursor);
	/* The token of a batch that has lapsed is refused from now on. */
	values[5] = Int64GetDatum(leased ? fetch->token : partition->token);
	nulls[5] = leased || (partition->token != 0 && partition->leased_until == 0)
		? ' ' : 'n';
	values[6] = TimestampTzGetDatum(fetch->leased_until);
	nulls[6] = leased ? ' ' : 'n';
	fetch_set_cursor(&values[7], &nulls[7], leased ? after : NULL);
	values[10] = Int32GetDatum(fetch->count);
	values[11] = query_int64_array(fetch->positions, fetch->count);
	nulls[11] = leased && (after == NULL || fetch->count == 1) ? ' ' : 'n';
	values[12] = Int64GetDatum(partition->lapsed_to);
	values[13] = Int64GetDatum(fetch->filtered.filtered);
	values[14] = Int64GetDatum(fetch->filtered.errors);
	query_run(&write_lease, values, nulls, false);
}

/*
 * Hands out deferred deliveries that are due.
 */
static bool
fetch_deferred(Fetch *fetch)
{
	Datum		values[6];
	uint64		found;

	values[0] = Int64GetDatum(fetch->partition.id.subscription);
	values[1] = Int32GetDatum(fetch->partition.id.number);
	values[2] = Int32GetDatum(fetch->limit);
	outbox_cursor_values(&values[3], &fetch->partition.cursor);
	found = query_run(&fetch_due, values, NULL, false);
	for (uint64 row = 0; row < found && !fetch_is_full(fetch); row++)
	{
		if (!fetch_set_aside(fetch, row))
			fetch_hand_out(fetch, row);
	}
	SPI_freetuptable(SPI_tuptable);
	fetch_settle_aside(fetch, outbox_settle_due);
	if (fetch->count == 0)
		return false;
	fetch_write(fetch, &fetch->partition.cursor, NULL);
	return true;
}

/*
 * A partition that has nothing to hand out is recorded now and then: a row that
 * is written at each fetch would cost more than reading the same positions
 * again, unless the filter has taken long.  A delivery that is due may wait for
 * the partition to pass it.
 */
static bool
fetch_must_record(const Fetch *fetch, const OutboxCursor *cursor)
{
	const PullPartition *partition = &fetch->partition;
	const OutboxCursor *before = &partition->cursor;

	if (partition->leased_until != 0 ||
		fetch->filtered.cpu_us > FETCH_FILTERED_US ||
		cursor->position - before->position >= FETCH_STRIDE)
		return true;
	return !outbox_cursors_equal(before, cursor, true) &&
		(partition->resting || outbox_has_due(partition->id));
}

/*
 * Hands out events of the log.  If there are none, the partition has moved, and
 * may have passed deliveries that are due.
 */
static bool
fetch_new(Fetch *fetch)
{
	PullPartition *partition = &fetch->partition;
	OutboxHorizon horizon = outbox_horizon_begin();
	OutboxChunk chunk = {.after = partition->cursor, .cut = true};
	bool		set_aside = false;

	if (!horizon.replicated)
	{
		outbox_horizon_end(&horizon);
		return false;
	}
	for (int i = 0; i < FETCH_CHUNKS_MAX && chunk.cut && fetch->count == 0 &&
		 !fetch_is_full(fetch); i++)
	{
		chunk = pull_read(&horizon, partition, &chunk.after,
						  Min(fetch->limit, FETCH_ROWS), fetch_take, fetch);
		set_aside |= fetch->aside != NIL;
		fetch_settle_aside(fetch, outbox_settle_new);
	}
	outbox_horizon_end(&horizon);
	if (fetch->count > 0)
		fetch_write(fetch, &chunk.before, &chunk.after);
	else if (set_aside || fetch_must_record(fetch, &chunk.after))
	{
		fetch_write(fetch, &chunk.after, NULL);
		partition->cursor = chunk.after;
		fetch_count_no_filtered(fetch);
		return fetch_deferred(fetch);
	}
	return fetch->count > 0;
}

/*
 * The lease of a batch of one event has lapsed, which is a failed attempt.
 */
static void
fetch_fail_lapsed(Fetch *fetch)
{
	PullPartition *partition = &fetch->partition;
	const char *error = "the lease ran out";
	Datum		positions = query_int64_array(partition->events, 1);
	List	   *deliveries;

	if (partition->deferred)
	{
		deliveries = pull_read_deferred(partition, positions);
		if (deliveries != NIL)
			pull_fail_deferred(&fetch->subscription, partition->id,
							   linitial(deliveries), error);
		return;
	}
	deliveries = pull_read_new(partition, positions);
	if (deliveries != NIL)
		pull_fail_new(&fetch->subscription, partition->id,
					  linitial(deliveries), error);
}

/*
 * Reads a partition.  Returns whether it had something to hand out.
 */
static bool
fetch_partition(Fetch *fetch)
{
	PullPartition *partition = &fetch->partition;

	fetch->limit = fetch->max_events;
	fetch->bytes = 0;
	fetch_count_no_filtered(fetch);
	if (partition->leased_until != 0)
	{
		if (!partition->deferred)
			partition->lapsed_to = Max(partition->lapsed_to,
									   partition->after.position);
		if (partition->event_count > 1)
			fetch->limit = Min(fetch->limit, partition->event_count / 2);
		else if (partition->known_count == 1)
			fetch_fail_lapsed(fetch);
	}
	return fetch_deferred(fetch) || fetch_new(fetch);
}

/*
 * Reads the free partitions in turn until one has something.
 */
static void
fetch_batch(Fetch *fetch)
{
	const PullSubscription *subscription = &fetch->subscription;
	Datum	   *skipped = palloc(subscription->partitions * sizeof(Datum));
	int			count = 0;
	ArrayType  *array = construct_empty_array(INT4OID);

	while (count < subscription->partitions &&
		   pull_lock_free(subscription, PointerGetDatum(array),
						  &fetch->partition))
	{
		if (fetch_partition(fetch))
			return;
		skipped[count++] = Int32GetDatum(fetch->partition.id.number);
		array = construct_array(skipped, count, INT4OID, sizeof(int32), true,
								TYPALIGN_INT);
	}
}

static int
fetch_max_events_arg(FunctionCallInfo fcinfo)
{
	int			max_events;

	args_require(fcinfo, 1, "max_events");
	max_events = PG_GETARG_INT32(1);
	if (max_events < 1 || max_events > FETCH_EVENTS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_events must be from 1 to %d", FETCH_EVENTS_MAX)));
	return max_events;
}

/*
 * SQL: outbox_fetch(name, max_events, lease), the next events of a
 * subscription.
 */
Datum
outbox_fetch(PG_FUNCTION_ARGS)
{
	Fetch	   *fetch;
	text	   *name;

	pull_check_isolation("outbox_fetch()");
	InitMaterializedSRF(fcinfo, 0);
	name = args_text(fcinfo, 0, "name");
	fetch = palloc0(sizeof(Fetch));
	fetch->max_events = fetch_max_events_arg(fcinfo);
	args_require(fcinfo, 2, "lease");
	fetch->leased_until = args_time_after(GetCurrentTimestamp(),
										  PG_GETARG_INTERVAL_P(2),
										  FETCH_LEASE_MAX_S, "lease", NULL);
	fetch->result = (ReturnSetInfo *) fcinfo->resultinfo;
	fetch->positions = palloc(fetch->max_events * sizeof(int64));
	xacts_wake_readers(XACTS_FETCHED);
	SPI_connect();
	fetch->subscription = pull_find(name);
	if (fetch->subscription.active)
		fetch_batch(fetch);
	SPI_finish();
	return (Datum) 0;
}
