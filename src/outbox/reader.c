/*
 * reader.c
 *		Reads the next events of a subscription from the log.
 *
 * First come the rows of stragglers that have ended meanwhile, then the rows
 * between the lane's position and the horizon's limit, both in the order of
 * their positions.  What the lane will be afterwards is computed here and
 * written down only when all that was read has been settled (settle.c): a
 * relay that dies in between reads it all again.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/query.h"
#include "outbox/reader.h"


/* Headers of the event replace those of the subscription, in whatever case. */
#define EVENT_COLUMNS \
	"SELECT e.position, e.key, coalesce(e.type, e.topic), e.payload," \
	" CASE WHEN s.headers IS NOT NULL OR e.headers IS NOT NULL THEN" \
	"  ARRAY(SELECT DISTINCT ON (lower(h.key)) h.key || ': ' || h.value FROM (" \
	"   SELECT 1, * FROM jsonb_each_text(e.headers) UNION ALL" \
	"   SELECT 2, * FROM jsonb_each_text(s.headers)) AS h(rank, key, value)" \
	"   ORDER BY lower(h.key), h.rank) END," \
	" to_char(e.created_at AT TIME ZONE 'UTC'," \
	"  'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),"

#define NEW_EVENT_COLUMNS EVENT_COLUMNS \
	" coalesce(e.deliver_at > clock_timestamp(), false)," \
	" s.ordered AND e.key IS NOT NULL," \
	" s.ordered AND EXISTS (SELECT FROM @extschema@.outbox_delivery d" \
	"  WHERE d.subscription = s.id AND d.key = e.key AND d.blocks_key)," \
	" 0 FROM @extschema@.outbox_subscription s, @extschema@.outbox_log e"

#define NEW_EVENT_FILTER \
	" AND @extschema@.outbox_topic_matches(s.topics, e.topic)" \
	" ORDER BY e.position"

static SavedQuery read_stragglers = {
	.sql = NEW_EVENT_COLUMNS
	" JOIN unnest($2, $3) AS k(xid, first)"
	" ON e.xid = k.xid AND e.position >= k.first"
	" WHERE s.id = $1 AND e.position >= $4 AND e.position <= $5"
	NEW_EVENT_FILTER,
	.types = {INT8OID, XID8ARRAYOID, INT8ARRAYOID, INT8OID, INT8OID}
};

static SavedQuery read_range = {
	.sql = NEW_EVENT_COLUMNS
	" WHERE s.id = $1 AND e.position > $2 AND e.position <= $3"
	NEW_EVENT_FILTER,
	.types = {INT8OID, INT8OID, INT8OID}
};

static SavedQuery read_due = {
	.sql = EVENT_COLUMNS
	" false, e.blocks_key, false, e.attempts"
	" FROM @extschema@.outbox_delivery e, @extschema@.outbox_subscription s"
	" WHERE e.subscription = $1 AND s.id = $1 AND e.state = 'waiting'"
	" AND e.due_at <= (SELECT clock_timestamp())"
	" ORDER BY e.due_at, e.position",
	.types = {INT8OID}
};

static SavedQuery next_due_at = {
	.sql = "SELECT due_at FROM @extschema@.outbox_delivery"
	" WHERE subscription = $1 AND state = 'waiting'"
	" ORDER BY due_at LIMIT 1",
	.types = {INT8OID}
};

/*
 * A column of type text[] as a NULL-terminated list.
 */
static char **
reader_text_list(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);
	Datum	   *elements = NULL;
	int			count = 0;
	char	  **list;

	if (!isnull)
		deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false,
						  TYPALIGN_INT, &elements, NULL, &count);
	list = palloc((count + 1) * sizeof(char *));
	for (int i = 0; i < count; i++)
		list[i] = TextDatumGetCString(elements[i]);
	list[count] = NULL;
	return list;
}

/*
 * A conversion needs a transaction, hence here and not when it is sent.
 */
static char *
reader_utf8_text(uint64 row, int column)
{
	char	   *text = query_text(row, column);

	return text == NULL ? NULL : pg_server_to_any(text, strlen(text), PG_UTF8);
}

static OutboxEvent
reader_event(uint64 row)
{
	OutboxEvent event;
	bool		isnull;

	event.position = query_int64(row, 1);
	event.key = query_text(row, 2);
	event.wire_key = reader_utf8_text(row, 2);
	event.type = reader_utf8_text(row, 3);
	event.payload = reader_utf8_text(row, 4);
	event.headers = reader_text_list(row, 5);
	event.created_at = query_text(row, 6);
	event.scheduled = DatumGetBool(query_datum(row, 7, &isnull));
	event.in_order = DatumGetBool(query_datum(row, 8, &isnull)) && !event.scheduled;
	event.blocked = DatumGetBool(query_datum(row, 9, &isnull)) && event.in_order;
	event.attempts = DatumGetInt32(query_datum(row, 10, &isnull));
	return event;
}

/*
 * Appends the rows of a query to the batch, until that is full.  Rows come one
 * by one, since each can be large.
 */
static void
reader_fetch(OutboxBatch *batch, SavedQuery *query, Datum *values,
			 MemoryContext context)
{
	Portal		portal = query_open(query, values, true);

	while (!batch->cut)
	{
		OutboxEvent *event = &batch->events[batch->count];
		MemoryContext old;

		SPI_cursor_fetch(portal, true, 1);
		if (SPI_processed == 0)
			break;
		old = MemoryContextSwitchTo(context);
		*event = reader_event(0);
		MemoryContextSwitchTo(old);
		SPI_freetuptable(SPI_tuptable);
		batch->count++;
		batch->bytes += strlen(event->payload);
		batch->cut = batch->count == OUTBOX_BATCH_MAX ||
			batch->bytes > OUTBOX_BATCH_BYTES_MAX;
	}
	SPI_cursor_close(portal);
}

static int64
reader_last_position(const OutboxBatch *batch)
{
	return batch->events[batch->count - 1].position;
}

/*
 * Reads the rows that ended stragglers have left behind the lane's position.
 */
static void
reader_fetch_stragglers(OutboxBatch *batch, int64 subscription,
						const OutboxStraggler *ended, int ended_count,
						MemoryContext context)
{
	Datum	   *xids = palloc(ended_count * sizeof(Datum));
	Datum	   *froms = palloc(ended_count * sizeof(Datum));
	int64		lowest = PG_INT64_MAX;
	Datum		values[5];

	for (int i = 0; i < ended_count; i++)
	{
		xids[i] = FullTransactionIdGetDatum(ended[i].xid);
		froms[i] = Int64GetDatum(ended[i].from);
		lowest = Min(lowest, ended[i].from);
	}
	values[0] = Int64GetDatum(subscription);
	values[1] = query_array8(xids, ended_count, XID8OID);
	values[2] = query_array8(froms, ended_count, INT8OID);
	values[3] = Int64GetDatum(lowest);
	values[4] = Int64GetDatum(batch->before.position);
	reader_fetch(batch, &read_stragglers, values, context);
}

static void
reader_fetch_range(OutboxBatch *batch, int64 subscription, int64 limit,
				   MemoryContext context)
{
	Datum		values[3];

	values[0] = Int64GetDatum(subscription);
	values[1] = Int64GetDatum(batch->before.position);
	values[2] = Int64GetDatum(limit);
	reader_fetch(batch, &read_range, values, context);
}

static bool
lane_has(const OutboxLane *lane, FullTransactionId xid)
{
	for (int i = 0; i < lane->straggler_count; i++)
	{
		if (FullTransactionIdEquals(lane->stragglers[i].xid, xid))
			return true;
	}
	return false;
}

static void
lane_add(OutboxLane *lane, FullTransactionId xid, int64 from)
{
	lane->stragglers[lane->straggler_count].xid = xid;
	lane->stragglers[lane->straggler_count++].from = from;
}

static OutboxLane
lane_copy(const OutboxLane *lane)
{
	OutboxLane	copy = *lane;

	copy.stragglers = palloc(lane->straggler_count * sizeof(OutboxStraggler) + 1);
	memcpy(copy.stragglers, lane->stragglers,
		   lane->straggler_count * sizeof(OutboxStraggler));
	return copy;
}

/*
 * Divides the lane's stragglers into those that are still open, which stay in
 * batch->after, and those that have ended.  Adds the transactions that are
 * passed now.
 */
static int
reader_sort_stragglers(OutboxBatch *batch, const OutboxHorizon *horizon,
					   int64 limit, OutboxStraggler *ended)
{
	const OutboxLane *before = &batch->before;
	int			ended_count = 0;

	for (int i = 0; i < before->straggler_count; i++)
	{
		OutboxStraggler straggler = before->stragglers[i];

		if (outbox_xid_is_open(straggler.xid, horizon->snapshot))
			lane_add(&batch->after, straggler.xid, straggler.from);
		else
			ended[ended_count++] = straggler;
	}
	for (int i = 0; i < horizon->straggler_count; i++)
	{
		OutboxOpen	open = horizon->stragglers[i];

		if (open.lo <= limit && !lane_has(before, open.xid))
			lane_add(&batch->after, open.xid, before->position + 1);
	}
	return ended_count;
}

static bool
reader_has_moved(const OutboxBatch *batch)
{
	const OutboxLane *before = &batch->before;
	const OutboxLane *after = &batch->after;

	return after->position != before->position ||
		after->straggler_count != before->straggler_count ||
		memcmp(after->stragglers, before->stragglers,
			   after->straggler_count * sizeof(OutboxStraggler)) != 0;
}

/*
 * An empty batch that starts from lane.
 */
static OutboxBatch
reader_new_batch(const OutboxLane *lane, int more_stragglers,
				 MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	OutboxBatch batch = {0};

	batch.events = palloc(OUTBOX_BATCH_MAX * sizeof(OutboxEvent));
	batch.before = lane_copy(lane);
	batch.after.stragglers = palloc((lane->straggler_count + more_stragglers + 1) *
									sizeof(OutboxStraggler));
	MemoryContextSwitchTo(old);
	return batch;
}

OutboxBatch
outbox_read_batch(const OutboxHorizon *horizon, int64 subscription,
				  const OutboxLane *lane, MemoryContext context)
{
	OutboxBatch batch = reader_new_batch(lane, horizon->straggler_count, context);
	OutboxStraggler *ended = palloc((lane->straggler_count + 1) *
									sizeof(OutboxStraggler));
	int64		readable = Max(lane->position,
							   Min(horizon->max_position, horizon->young_lo - 1));
	int64		limit = Min(readable, lane->position + OUTBOX_RANGE_MAX);
	int			ended_count = reader_sort_stragglers(&batch, horizon, limit, ended);

	batch.after.position = limit;
	if (ended_count > 0)
		reader_fetch_stragglers(&batch, subscription, ended, ended_count, context);
	if (batch.cut)
	{
		/* Stopped among the stragglers: they stay, and so does the position. */
		for (int i = 0; i < ended_count; i++)
			lane_add(&batch.after, ended[i].xid,
					 Max(ended[i].from, reader_last_position(&batch) + 1));
		batch.after.position = lane->position;
	}
	else if (limit > lane->position)
	{
		reader_fetch_range(&batch, subscription, limit, context);
		if (batch.cut)
			batch.after.position = reader_last_position(&batch);
	}
	batch.cut |= limit < readable;
	batch.moved = reader_has_moved(&batch);
	pfree(ended);
	return batch;
}

OutboxBatch
outbox_read_due(int64 subscription, MemoryContext context)
{
	OutboxLane	none = {0};
	OutboxBatch batch = reader_new_batch(&none, 0, context);
	Datum		values[1];

	values[0] = Int64GetDatum(subscription);
	reader_fetch(&batch, &read_due, values, context);
	return batch;
}

TimestampTz
outbox_next_due_at(int64 subscription)
{
	Datum		values[1];

	values[0] = Int64GetDatum(subscription);
	if (query_run(&next_due_at, values, NULL, true) == 0)
		return 0;
	return query_int64(0, 1);
}
