/*
 * reader.c
 *		Reads the next events from the log, for one partition of a subscription
 *		or for all that follow a relay's head.
 *
 * The rows of stragglers that have ended come first, then the rows between the
 * partition's position and the limit, both in the order of positions.  The new
 * cursor of the partition is computed here, but recorded only when everything
 * that was read has been settled (settle.c): if the relay dies before, all of
 * it is read again.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/query.h"
#include "base/settings.h"
#include "outbox/reader.h"

/* Rows of a query that are fetched at a time, at most. */
#define READER_ROWS 50
#define READER_SLICE_MS 10		/* for one chunk, if there is a filter */

#define LOG_COLUMNS \
	"SELECT" OUTBOX_EVENT_COLUMNS(OUTBOX_IS_SCHEDULED, " false") ", e.topic," \
	" idempotency_internal.outbox_partition_number(" \
	"  e.key, e.position, " CppAsString2(OUTBOX_HASHES) ")" \
	" FROM idempotency_internal.outbox_event e"

static SavedQuery read_log_stragglers = {
	.sql = LOG_COLUMNS OUTBOX_FROM_STRAGGLERS " ORDER BY e.position",
	.types = {XID8ARRAYOID, INT8ARRAYOID, INT8OID, INT8OID}
};

static SavedQuery read_log_range = {
	.sql = LOG_COLUMNS OUTBOX_FROM_RANGE " ORDER BY e.position",
	.types = {INT8OID, INT8OID}
};

/* The last parameters are the subscription, the partition and again_to. */
#define NEW_EVENT_COLUMNS(subscription) \
	"SELECT" OUTBOX_EVENT_COLUMNS(OUTBOX_IS_SCHEDULED, " false") ", s.ordered," \
	OUTBOX_IS_BLOCKED ", 0" OUTBOX_SUBSCRIBED(subscription)

static SavedQuery read_stragglers = {
	.sql = NEW_EVENT_COLUMNS("$5") OUTBOX_FROM_STRAGGLERS
	OUTBOX_AND_WANTED("$6") OUTBOX_AND_NEW("$7") " ORDER BY e.position",
	.types = {
		XID8ARRAYOID, INT8ARRAYOID, INT8OID, INT8OID, INT8OID, INT4OID, INT8OID
	}
};

static SavedQuery read_range = {
	.sql = NEW_EVENT_COLUMNS("$3") OUTBOX_FROM_RANGE
	OUTBOX_AND_WANTED("$4") OUTBOX_AND_NEW("$5") " ORDER BY e.position",
	.types = {INT8OID, INT8OID, INT8OID, INT4OID, INT8OID}
};

static SavedQuery find_blocked = {
	.sql = "SELECT k.number FROM unnest($1, $2) WITH ORDINALITY AS k(subscription, key, number)"
	" WHERE (SELECT d.position FROM idempotency_internal.outbox_delivery d"
	"  WHERE d.subscription = k.subscription AND d.key = k.key AND d.blocks_key"
	"  LIMIT 1) IS NOT NULL",
	.types = {INT8ARRAYOID, TEXTARRAYOID}
};

#define DEFERRED_COLUMNS \
	"SELECT" OUTBOX_EVENT_COLUMNS(" false", OUTBOX_IS_CANCELLED) \
	", e.blocks_key, e.state = 'parked', e.attempts" \
	" FROM"

#define WAITING_COLUMNS DEFERRED_COLUMNS \
	" idempotency_internal.outbox_delivery e" \
	" WHERE e.subscription = $1 AND e.partition = $2 AND e.state = 'waiting'"

/* In all of the next queries, $3 is the last position that was passed. */
static SavedQuery read_due = {
	.sql = WAITING_COLUMNS
	" AND e.due_at <= (SELECT clock_timestamp())"
	" AND e.position <= $3 AND e.position <> ALL ($4)"
	OUTBOX_AND_DECIDED
	" ORDER BY e.due_at, e.position",
	.types = {INT8OID, INT4OID, INT8OID, INT8ARRAYOID}
};

/*
 * The first ones of each key.
 */
static SavedQuery read_parked = {
	.sql = DEFERRED_COLUMNS
	" unnest($2) AS k(key) CROSS JOIN LATERAL ("
	"  SELECT * FROM idempotency_internal.outbox_delivery d"
	"  WHERE d.subscription = $1 AND d.key = k.key AND d.blocks_key"
	"  AND d.state = 'parked' AND d.position <= $3"
	"  ORDER BY d.position LIMIT $4) AS e"
	" ORDER BY e.position",
	.types = {INT8OID, TEXTARRAYOID, INT8OID, INT4OID}
};

/*
 * Failures with some statuses concern the event only: the endpoint worked then,
 * too.  If the clock was set back, no time tells what has failed before the
 * endpoint worked again: all would be tried early, again and again.
 */
static SavedQuery read_early = {
	.sql = WAITING_COLUMNS
	" AND e.last_at < $5 AND $5 <= (SELECT clock_timestamp())"
	" AND e.due_at > (SELECT clock_timestamp())"
	" AND (e.last_status = ANY ($6)) IS NOT TRUE"
	" AND e.position <= $3 AND e.position <> ALL ($4)"
	" ORDER BY e.last_at NULLS FIRST, e.position",
	.types = {
		INT8OID, INT4OID, INT8OID, INT8ARRAYOID, TIMESTAMPTZOID, INT4ARRAYOID
	}
};

static SavedQuery read_longest_waiting = {
	.sql = WAITING_COLUMNS
	" AND e.position = (SELECT d.position FROM idempotency_internal.outbox_delivery d"
	"  WHERE d.subscription = $1 AND d.partition = $2 AND d.state = 'waiting'"
	"  AND d.position <= $3"
	"  AND (d.last_at IS NOT NULL OR (d.due_at <= clock_timestamp()"
	"   AND idempotency_internal.outbox_is_cancelled(d.position) IS FALSE))"
	"  ORDER BY d.last_at NULLS FIRST, d.position LIMIT 1)",
	.types = {INT8OID, INT4OID, INT8OID}
};

static SavedQuery find_due = {
	.sql = "SELECT FROM idempotency_internal.outbox_delivery e"
	" WHERE e.subscription = $1 AND e.partition = $2 AND e.state = 'waiting'"
	" AND e.due_at <= (SELECT clock_timestamp())" OUTBOX_AND_DECIDED " LIMIT 1",
	.types = {INT8OID, INT4OID}
};

static SavedQuery next_due_at = {
	.sql = "SELECT due_at FROM idempotency_internal.outbox_delivery"
	" WHERE subscription = $1 AND partition = $2 AND state = 'waiting'"
	" AND position <= $3 AND position <> ALL ($4) ORDER BY due_at LIMIT 1",
	.types = {INT8OID, INT4OID, INT8OID, INT8ARRAYOID}
};

typedef struct ReaderLimits
{
	int			events;
	Size		bytes;
	JsonPath   *filter;			/* NULL: none */
	Size		filtered;		/* bytes that it did not let pass */
	TimestampTz until;			/* with a filter, read no more after that */
} ReaderLimits;

static OutboxDelivery
reader_delivery(uint64 row)
{
	const int	first = OUTBOX_EVENT_COLUMN_COUNT + 1;
	OutboxDelivery delivery;
	bool		isnull;

	delivery.event = outbox_event_read(row);
	delivery.in_order = DatumGetBool(query_datum(row, first, &isnull)) &&
		delivery.event->key != NULL && !delivery.event->scheduled;
	delivery.blocked = DatumGetBool(query_datum(row, first + 1, &isnull)) &&
		delivery.in_order;
	delivery.attempts = DatumGetInt32(query_datum(row, first + 2, &isnull));
	delivery.attempts = Min(Max(delivery.attempts, 0), OUTBOX_ATTEMPTS_MAX);
	return delivery;
}

void
outbox_chunk_add(OutboxChunk *chunk, const OutboxDelivery *delivery)
{
	if (chunk->count == chunk->room)
	{
		chunk->room = Max(2 * chunk->room, OUTBOX_CHUNK_MIN);
		chunk->deliveries = chunk->deliveries == NULL ?
			palloc(chunk->room * sizeof(OutboxDelivery)) :
			repalloc(chunk->deliveries, chunk->room * sizeof(OutboxDelivery));
	}
	chunk->deliveries[chunk->count++] = *delivery;
	chunk->bytes += delivery->event->bytes;
}

/*
 * Does the filter let an event in SPI_tuptable pass?  One without a payload is
 * wrong, which others find.
 */
static bool
reader_filter_passes(OutboxChunk *chunk, uint64 row, ReaderLimits *limits)
{
	bool		isnull;
	Datum		payload;
	bool		passes;
	Jsonb	   *copy;

	if (limits->filter == NULL)
		return true;
	payload = query_datum(row, OUTBOX_EVENT_PAYLOAD, &isnull);
	if (isnull)
		return true;
	copy = DatumGetJsonbPCopy(payload);
	passes = filter_passes(limits->filter, copy, &chunk->filtered);
	if (!passes)
		limits->filtered += VARSIZE(copy);
	pfree(copy);
	return passes;
}

/*
 * A filter may take long for each of many events.
 */
static bool
reader_is_late(const ReaderLimits *limits)
{
	return limits->filter != NULL && GetCurrentTimestamp() >= limits->until;
}

static bool
reader_take_delivery(OutboxChunk *chunk, uint64 row, void *arg)
{
	ReaderLimits *limits = arg;

	chunk->last = query_int64(row, 1);
	if (reader_filter_passes(chunk, row, limits))
	{
		OutboxDelivery delivery = reader_delivery(row);

		outbox_chunk_add(chunk, &delivery);
	}
	return chunk->count >= limits->events ||
		chunk->bytes + limits->filtered > limits->bytes ||
		reader_is_late(limits);
}

/*
 * Reads rows of a query until the chunk is full.  Rows that were fetched and
 * not taken are read again later.  Large payloads are not in the rows, so some
 * rows do not take much memory.
 */
static void
reader_fetch(OutboxChunk *chunk, SavedQuery *query, Datum *values,
			 const OutboxSource *source)
{
	Portal		portal = query_open(query, values, true);
	uint64		count;

	Assert(source->rows > 0);
	while (!chunk->cut && (count = query_fetch(portal, source->rows)) > 0)
	{
		SPITupleTable *rows = SPI_tuptable;

		for (uint64 row = 0; row < count && !chunk->cut; row++)
			chunk->cut = source->take(chunk, row, source->arg);
		SPI_freetuptable(rows);
	}
	SPI_cursor_close(portal);
}

/*
 * Reads the rows of ended stragglers up to the cursor's position, or in the
 * first OUTBOX_RANGE_MAX positions.  Returns the last position that it reads.
 */
static int64
reader_fetch_left_behind(OutboxChunk *chunk, const OutboxSource *source)
{
	Datum	   *xids = palloc(chunk->ended_count * sizeof(Datum));
	Datum	   *froms = palloc(chunk->ended_count * sizeof(Datum));
	int64		lowest = PG_INT64_MAX;
	int64		last = chunk->before.position;
	Datum		values[7];

	for (int i = 0; i < chunk->ended_count; i++)
	{
		xids[i] = FullTransactionIdGetDatum(chunk->ended[i].xid);
		froms[i] = Int64GetDatum(chunk->ended[i].from);
		lowest = Min(lowest, chunk->ended[i].from);
	}
	if (last - lowest >= OUTBOX_RANGE_MAX)
		last = lowest + OUTBOX_RANGE_MAX - 1;
	values[0] = query_array8(xids, chunk->ended_count, XID8OID);
	values[1] = query_array8(froms, chunk->ended_count, INT8OID);
	values[2] = Int64GetDatum(lowest);
	values[3] = Int64GetDatum(last);
	values[4] = Int64GetDatum(source->id.subscription);
	values[5] = Int32GetDatum(source->id.number);
	values[6] = Int64GetDatum(source->extra);
	reader_fetch(chunk, source->stragglers, values, source);
	return last;
}

static void
reader_fetch_range(OutboxChunk *chunk, const OutboxSource *source, int64 limit)
{
	Datum		values[5];

	Assert(limit <= chunk->before.position + OUTBOX_RANGE_MAX);
	values[0] = Int64GetDatum(chunk->before.position);
	values[1] = Int64GetDatum(limit);
	values[2] = Int64GetDatum(source->id.subscription);
	values[3] = Int32GetDatum(source->id.number);
	values[4] = Int64GetDatum(source->extra);
	reader_fetch(chunk, source->range, values, source);
}

static void
cursor_add(OutboxCursor *cursor, FullTransactionId xid, int64 from)
{
	cursor->stragglers[cursor->straggler_count].xid = xid;
	cursor->stragglers[cursor->straggler_count++].from = from;
}

/*
 * Divides the cursor's stragglers into those that are still open, which stay in
 * chunk->after, and those that have ended.  Adds the open transactions that the
 * cursor passes now.
 */
static void
reader_sort_stragglers(OutboxChunk *chunk, const OutboxHorizon *horizon,
					   int64 limit)
{
	const OutboxCursor *before = &chunk->before;

	for (int i = 0; i < before->straggler_count; i++)
	{
		OutboxStraggler straggler = before->stragglers[i];

		if (outbox_xid_is_open(straggler.xid, horizon->snapshot))
			cursor_add(&chunk->after, straggler.xid, straggler.from);
		else
			chunk->ended[chunk->ended_count++] = straggler;
	}
	for (int i = 0; i < horizon->straggler_count; i++)
	{
		OutboxXact	xact = horizon->stragglers[i];

		if (xact.lo <= limit && outbox_cursor_find(before, xact.xid) == NULL)
			cursor_add(&chunk->after, xact.xid, before->position + 1);
	}
	Assert(chunk->after.straggler_count + chunk->ended_count <=
		   before->straggler_count + horizon->straggler_count);
}

/*
 * Returns an empty chunk that starts at a cursor.
 */
static OutboxChunk
reader_new_chunk(const OutboxCursor *cursor, int more_stragglers)
{
	int			stragglers = cursor->straggler_count + more_stragglers + 1;
	OutboxChunk chunk = {0};

	chunk.before = outbox_copy_cursor(cursor);
	chunk.after.stragglers = palloc(stragglers * sizeof(OutboxStraggler));
	chunk.ended = palloc(stragglers * sizeof(OutboxStraggler));
	return chunk;
}

/*
 * Computes the new cursor if the chunk ends before all rows were read; last is
 * the last position that was read.  If it ends among the rows of stragglers,
 * the cursor keeps ended stragglers and its position.  Otherwise it moves to
 * the last event.  In both cases a transaction may be recorded as a straggler
 * without need, which is harmless.
 */
static void
reader_stop_cursor(OutboxChunk *chunk, int64 last)
{
	chunk->after.straggler_count = chunk->still_open;
	if (last > chunk->before.position)
	{
		chunk->after.position = last;
		return;
	}
	for (int i = 0; i < chunk->ended_count; i++)
		cursor_add(&chunk->after, chunk->ended[i].xid,
				   Max(chunk->ended[i].from, last + 1));
	chunk->after.position = chunk->before.position;
}

static int64
reader_readable(const OutboxHorizon *horizon, const OutboxCursor *cursor)
{
	return Max(Min(horizon->max_position, horizon->young_lo - 1),
			   cursor->position);
}

OutboxChunk
outbox_read(const OutboxHorizon *horizon, const OutboxCursor *cursor,
			const OutboxSource *source)
{
	OutboxChunk chunk = reader_new_chunk(cursor, horizon->straggler_count);
	int64		readable = reader_readable(horizon, cursor);
	int64		left_behind_to = cursor->position;
	int64		limit;

	limit = cursor->position +
		Min(readable - cursor->position, OUTBOX_RANGE_MAX);
	reader_sort_stragglers(&chunk, horizon, limit);
	chunk.still_open = chunk.after.straggler_count;
	chunk.after.position = limit;
	if (chunk.ended_count > 0)
		left_behind_to = reader_fetch_left_behind(&chunk, source);
	if (!chunk.cut && left_behind_to == cursor->position &&
		limit > cursor->position)
		reader_fetch_range(&chunk, source, limit);
	if (chunk.cut)
		reader_stop_cursor(&chunk, chunk.last);
	else if (left_behind_to < cursor->position)
		reader_stop_cursor(&chunk, left_behind_to);
	chunk.cut |= left_behind_to < cursor->position || limit < readable;
	Assert(chunk.after.position >= cursor->position);
	Assert(chunk.after.position <= readable);
	chunk.moved = !outbox_cursors_equal(&chunk.before, &chunk.after, true);
	return chunk;
}

OutboxChunk
outbox_read_chunk(const OutboxHorizon *horizon, OutboxPartitionId id,
				  JsonPath *filter, const OutboxCursor *cursor, int64 again_to,
				  int max_events, Size max_bytes)
{
	ReaderLimits limits = {
		.events = max_events, .bytes = max_bytes, .filter = filter,
		.until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											 READER_SLICE_MS)
	};
	OutboxSource source = {
		.stragglers = &read_stragglers,
		.range = &read_range,
		.id = id,
		.extra = again_to,
		.rows = Min(max_events, READER_ROWS),
		.take = reader_take_delivery,
		.arg = &limits
	};

	return outbox_read(horizon, cursor, &source);
}

typedef struct ReaderLog
{
	OutboxTake	take;
	void	   *arg;
} ReaderLog;

static bool
reader_take_log_row(OutboxChunk *chunk, uint64 number, void *arg)
{
	const ReaderLog *log = arg;
	const int	first = OUTBOX_EVENT_COLUMN_COUNT + 1;
	OutboxLogRow row;
	bool		isnull;

	row.number = number;
	row.position = query_int64(number, 1);
	row.topic = query_datum(number, first, &isnull);
	row.has_topic = !isnull;
	row.payload = query_datum(number, OUTBOX_EVENT_PAYLOAD, &isnull);
	row.has_payload = !isnull;
	row.hash = DatumGetInt32(query_datum(number, first + 1, &isnull));
	chunk->last = row.position;
	return log->take(log->arg, &row);
}

OutboxChunk
outbox_read_log(const OutboxHorizon *horizon, const OutboxCursor *cursor,
				OutboxTake take, void *arg)
{
	ReaderLog	log = {take, arg};
	OutboxSource source = {
		.stragglers = &read_log_stragglers,
		.range = &read_log_range,
		.rows = READER_ROWS,
		.take = reader_take_log_row,
		.arg = &log
	};

	return outbox_read(horizon, cursor, &source);
}

OutboxCursor
outbox_cursor_at_end(const OutboxHorizon *horizon)
{
	OutboxCursor none = {0};
	OutboxChunk chunk = reader_new_chunk(&none, horizon->straggler_count);

	chunk.after.position = reader_readable(horizon, &none);
	for (int i = 0; i < horizon->straggler_count; i++)
	{
		OutboxXact	xact = horizon->stragglers[i];

		if (xact.lo <= chunk.after.position)
			cursor_add(&chunk.after, xact.xid, xact.lo);
	}
	return chunk.after;
}

OutboxChunk
outbox_empty_part(const OutboxChunk *whole)
{
	OutboxChunk part = *whole;
	int			stragglers = whole->after.straggler_count + whole->ended_count;
	Size		ended_size = whole->ended_count * sizeof(OutboxStraggler);

	part.deliveries = NULL;
	part.room = part.count = 0;
	part.bytes = 0;
	part.filtered = (FilterCounts)
	{
		0
	};
	part.before = outbox_copy_cursor(&whole->before);
	part.after.stragglers =
		memcpy(palloc((stragglers + 1) * sizeof(OutboxStraggler)),
			   whole->after.stragglers,
			   whole->after.straggler_count * sizeof(OutboxStraggler));
	part.ended = memcpy(palloc(ended_size + 1), whole->ended, ended_size);
	return part;
}

void
outbox_find_blocked(OutboxPartitionId *ids, OutboxDelivery **deliveries,
					int count)
{
	Datum	   *subscriptions = palloc(count * sizeof(Datum) + 1);
	Datum	   *keys = palloc(count * sizeof(Datum) + 1);
	Datum		values[2];
	uint64		found;

	if (count == 0)
		return;
	for (int i = 0; i < count; i++)
	{
		subscriptions[i] = Int64GetDatum(ids[i].subscription);
		keys[i] = CStringGetTextDatum(deliveries[i]->event->key);
	}
	values[0] = query_array8(subscriptions, count, INT8OID);
	values[1] = PointerGetDatum(construct_array(keys, count, TEXTOID, -1,
												false, TYPALIGN_INT));
	found = query_run(&find_blocked, values, NULL, true);
	for (uint64 i = 0; i < found; i++)
		deliveries[query_int64(i, 1) - 1]->blocked = true;
}

void
outbox_cut_chunk(OutboxChunk *chunk, int count)
{
	Assert(count > 0 && count < chunk->count);
	chunk->count = count;
	chunk->cut = true;
	reader_stop_cursor(chunk, chunk->deliveries[count - 1].event->position);
}

static OutboxChunk
reader_read_deferred(SavedQuery *query, Datum *values, Size max_bytes)
{
	OutboxCursor none = {0};
	OutboxChunk chunk = reader_new_chunk(&none, 0);
	ReaderLimits limits = {.events = OUTBOX_CHUNK_MAX, .bytes = max_bytes};
	OutboxSource source = {
		.rows = READER_ROWS, .take = reader_take_delivery, .arg = &limits
	};

	reader_fetch(&chunk, query, values, &source);
	return chunk;
}

Datum
outbox_delivery_keys(List *deliveries)
{
	int			count = list_length(deliveries);
	Datum	   *keys = palloc(count * sizeof(Datum));

	for (int i = 0; i < count; i++)
	{
		const OutboxDelivery *delivery = list_nth(deliveries, i);

		keys[i] = CStringGetTextDatum(delivery->event->key);
	}
	return PointerGetDatum(construct_array(keys, count, TEXTOID, -1, false,
										   TYPALIGN_INT));
}

/*
 * Appends the parked events behind those of a chunk.  If the log is read again,
 * there may be others that are not passed yet.
 */
static void
reader_fetch_parked(OutboxChunk *chunk, OutboxPartitionId id, int64 passed,
					Size max_bytes)
{
	List	   *blocking = NIL;
	ReaderLimits limits = {.events = PG_INT32_MAX, .bytes = max_bytes};
	OutboxSource source = {
		.rows = READER_ROWS, .take = reader_take_delivery, .arg = &limits
	};
	int			limit;
	Datum		values[4];

	for (int i = 0; i < chunk->count; i++)
	{
		if (chunk->deliveries[i].in_order)
			blocking = lappend(blocking, &chunk->deliveries[i]);
	}
	if (blocking == NIL || chunk->bytes > max_bytes)
		return;
	limit = Max(OUTBOX_CHAINS_MAX / list_length(blocking), OUTBOX_CHAIN_MIN);
	values[0] = Int64GetDatum(id.subscription);
	values[1] = outbox_delivery_keys(blocking);
	values[2] = Int64GetDatum(passed);
	values[3] = Int32GetDatum(limit);
	chunk->cut = false;
	reader_fetch(chunk, &read_parked, values, &source);
	if (!chunk->cut && passed == PG_INT64_MAX)
		chunk->chain_max = limit;
}

OutboxChunk
outbox_read_due(OutboxPartitionId id, Datum positions, int64 passed,
				Size max_bytes)
{
	Datum		values[4];
	OutboxChunk chunk;

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = Int64GetDatum(passed);
	values[3] = positions;
	chunk = reader_read_deferred(&read_due, values, max_bytes);
	reader_fetch_parked(&chunk, id, passed, max_bytes);
	return chunk;
}

OutboxChunk
outbox_read_early(OutboxPartitionId id, Datum positions, int64 passed,
				  TimestampTz recovered_at, Datum event_statuses,
				  Size max_bytes)
{
	Datum		values[6];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = Int64GetDatum(passed);
	values[3] = positions;
	values[4] = TimestampTzGetDatum(recovered_at);
	values[5] = event_statuses;
	return reader_read_deferred(&read_early, values, max_bytes);
}

OutboxChunk
outbox_read_longest_waiting(OutboxPartitionId id, int64 passed)
{
	Datum		values[3];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = Int64GetDatum(passed);
	return reader_read_deferred(&read_longest_waiting, values, 0);
}

TimestampTz
outbox_next_due_at(OutboxPartitionId id, Datum positions, int64 passed)
{
	Datum		values[4];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = Int64GetDatum(passed);
	values[3] = positions;
	if (query_run(&next_due_at, values, NULL, true) == 0)
		return 0;
	return Max(query_int64(0, 1), 1);	/* 0 would mean none */
}

bool
outbox_has_due(OutboxPartitionId id)
{
	Datum		values[2];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	return query_run(&find_due, values, NULL, true) > 0;
}
