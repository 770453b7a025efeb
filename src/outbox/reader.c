/*
 * reader.c
 *		Reads the next events of a subscription from the log.
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

#define NEW_EVENT_COLUMNS \
	"SELECT" OUTBOX_EVENT_COLUMNS("e.deliver_at") ", s.ordered," \
	" s.ordered AND EXISTS (SELECT FROM idempotency_internal.outbox_delivery d" \
	"  WHERE d.subscription = s.id AND d.key = e.key AND d.blocks_key)," \
	" 0 FROM idempotency_internal.outbox_subscription s, idempotency_internal.outbox_event e"

#define NEW_EVENT_FILTER \
	" AND idempotency_internal.outbox_is_wanted(s.topics, e.topic)" \
	" AND (s.partitions = 1 OR $2 = idempotency_internal.outbox_partition_number(" \
	"  e.key, e.position, s.partitions))" \
	" ORDER BY e.position"

static SavedQuery read_stragglers = {
	.sql = NEW_EVENT_COLUMNS
	" JOIN unnest($3, $4) AS k(xid, first)"
	" ON e.xid = k.xid AND e.position >= k.first"
	" WHERE s.id = $1 AND e.position >= $5 AND e.position <= $6"
	NEW_EVENT_FILTER,
	.types = {INT8OID, INT4OID, XID8ARRAYOID, INT8ARRAYOID, INT8OID, INT8OID}
};

static SavedQuery read_range = {
	.sql = NEW_EVENT_COLUMNS
	" WHERE s.id = $1 AND e.position > $3 AND e.position <= $4"
	NEW_EVENT_FILTER,
	.types = {INT8OID, INT4OID, INT8OID, INT8OID}
};

#define DEFERRED_COLUMNS \
	"SELECT" OUTBOX_EVENT_COLUMNS("NULL") \
	", e.blocks_key, e.state = 'parked', e.attempts" \
	" FROM"

#define WAITING_COLUMNS DEFERRED_COLUMNS \
	" idempotency_internal.outbox_delivery e" \
	" WHERE e.subscription = $1 AND e.partition = $2 AND e.state = 'waiting'"

static SavedQuery read_due = {
	.sql = WAITING_COLUMNS
	" AND e.due_at <= (SELECT clock_timestamp()) AND e.position <> ALL ($3)"
	" ORDER BY e.due_at, e.position",
	.types = {INT8OID, INT4OID, INT8ARRAYOID}
};

/*
 * The first ones of each key.
 */
static SavedQuery read_parked = {
	.sql = DEFERRED_COLUMNS
	" unnest($2) AS k(key) CROSS JOIN LATERAL ("
	"  SELECT * FROM idempotency_internal.outbox_delivery d"
	"  WHERE d.subscription = $1 AND d.key = k.key AND d.blocks_key"
	"  AND d.state = 'parked' ORDER BY d.position LIMIT $3) AS e"
	" ORDER BY e.position",
	.types = {INT8OID, TEXTARRAYOID, INT4OID}
};

/*
 * Failures with some statuses concern the event only: the endpoint worked then,
 * too.
 */
static SavedQuery read_early = {
	.sql = WAITING_COLUMNS
	" AND e.last_at < $4 AND e.due_at > (SELECT clock_timestamp())"
	" AND (e.last_status = ANY ($5)) IS NOT TRUE"
	" AND e.position <> ALL ($3)"
	" ORDER BY e.last_at NULLS FIRST, e.position",
	.types = {INT8OID, INT4OID, INT8ARRAYOID, TIMESTAMPTZOID, INT4ARRAYOID}
};

static SavedQuery read_longest_waiting = {
	.sql = WAITING_COLUMNS
	" AND e.position = (SELECT d.position FROM idempotency_internal.outbox_delivery d"
	"  WHERE d.subscription = $1 AND d.partition = $2 AND d.state = 'waiting'"
	"  AND (d.last_at IS NOT NULL OR d.due_at <= clock_timestamp())"
	"  ORDER BY d.last_at NULLS FIRST, d.position LIMIT 1)",
	.types = {INT8OID, INT4OID}
};

static SavedQuery next_due_at = {
	.sql = "SELECT due_at FROM idempotency_internal.outbox_delivery"
	" WHERE subscription = $1 AND partition = $2 AND state = 'waiting'"
	" AND position <> ALL ($3) ORDER BY due_at LIMIT 1",
	.types = {INT8OID, INT4OID, INT8ARRAYOID}
};

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

/*
 * Returns the place of the next delivery; the array doubles when it is full.
 */
static OutboxDelivery *
reader_next_delivery(OutboxChunk *chunk)
{
	if (chunk->count == chunk->room)
	{
		chunk->room *= 2;
		chunk->deliveries = repalloc(chunk->deliveries,
									 chunk->room * sizeof(OutboxDelivery));
	}
	return &chunk->deliveries[chunk->count];
}

/*
 * Appends the rows of a query to the chunk until it is full.  Rows are fetched
 * one by one, since each can be large.
 */
static void
reader_fetch(OutboxChunk *chunk, SavedQuery *query, Datum *values,
			 int max_events, Size max_bytes)
{
	Portal		portal = query_open(query, values, true);

	while (!chunk->cut && query_fetch(portal))
	{
		OutboxDelivery *delivery = reader_next_delivery(chunk);

		*delivery = reader_delivery(0);
		SPI_freetuptable(SPI_tuptable);
		chunk->count++;
		chunk->bytes += delivery->event->bytes;
		chunk->cut = chunk->count >= max_events || chunk->bytes > max_bytes;
	}
	SPI_cursor_close(portal);
}

/*
 * Reads the rows of ended stragglers up to the cursor's position, or in the
 * first OUTBOX_RANGE_MAX positions.  Returns the last position that it reads.
 */
static int64
reader_fetch_left_behind(OutboxChunk *chunk, OutboxPartitionId id,
						 int max_events, Size max_bytes)
{
	Datum	   *xids = palloc(chunk->ended_count * sizeof(Datum));
	Datum	   *froms = palloc(chunk->ended_count * sizeof(Datum));
	int64		lowest = PG_INT64_MAX;
	int64		last = chunk->before.position;
	Datum		values[6];

	for (int i = 0; i < chunk->ended_count; i++)
	{
		xids[i] = FullTransactionIdGetDatum(chunk->ended[i].xid);
		froms[i] = Int64GetDatum(chunk->ended[i].from);
		lowest = Min(lowest, chunk->ended[i].from);
	}
	if (last - lowest >= OUTBOX_RANGE_MAX)
		last = lowest + OUTBOX_RANGE_MAX - 1;
	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = query_array8(xids, chunk->ended_count, XID8OID);
	values[3] = query_array8(froms, chunk->ended_count, INT8OID);
	values[4] = Int64GetDatum(lowest);
	values[5] = Int64GetDatum(last);
	reader_fetch(chunk, &read_stragglers, values, max_events, max_bytes);
	chunk->left_behind = chunk->count;
	return last;
}

static void
reader_fetch_range(OutboxChunk *chunk, OutboxPartitionId id, int64 limit,
				   int max_events, Size max_bytes)
{
	Datum		values[4];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = Int64GetDatum(chunk->before.position);
	values[3] = Int64GetDatum(limit);
	reader_fetch(chunk, &read_range, values, max_events, max_bytes);
}

static bool
cursor_has(const OutboxCursor *cursor, FullTransactionId xid)
{
	for (int i = 0; i < cursor->straggler_count; i++)
	{
		if (FullTransactionIdEquals(cursor->stragglers[i].xid, xid))
			return true;
	}
	return false;
}

static void
cursor_add(OutboxCursor *cursor, FullTransactionId xid, int64 from)
{
	cursor->stragglers[cursor->straggler_count].xid = xid;
	cursor->stragglers[cursor->straggler_count++].from = from;
}

OutboxCursor
outbox_copy_cursor(const OutboxCursor *cursor)
{
	OutboxCursor copy = *cursor;

	copy.stragglers =
		palloc(cursor->straggler_count * sizeof(OutboxStraggler) + 1);
	for (int i = 0; i < cursor->straggler_count; i++)
		copy.stragglers[i] = cursor->stragglers[i];
	return copy;
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

		if (xact.lo <= limit && !cursor_has(before, xact.xid))
			cursor_add(&chunk->after, xact.xid, before->position + 1);
	}
}

static bool
reader_has_moved(const OutboxChunk *chunk)
{
	const OutboxCursor *before = &chunk->before;
	const OutboxCursor *after = &chunk->after;

	return after->position != before->position ||
		after->straggler_count != before->straggler_count ||
		memcmp(after->stragglers, before->stragglers,
			   after->straggler_count * sizeof(OutboxStraggler)) != 0;
}

/*
 * Returns an empty chunk that starts at a cursor.
 */
static OutboxChunk
reader_new_chunk(const OutboxCursor *cursor, int more_stragglers)
{
	int			stragglers = cursor->straggler_count + more_stragglers + 1;
	OutboxChunk chunk = {0};

	chunk.room = OUTBOX_CHUNK_MIN;
	chunk.deliveries = palloc(chunk.room * sizeof(OutboxDelivery));
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
	if (chunk->count > chunk->left_behind)
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
reader_last_position(const OutboxChunk *chunk)
{
	return chunk->deliveries[chunk->count - 1].event->position;
}

OutboxChunk
outbox_read_chunk(const OutboxHorizon *horizon, OutboxPartitionId id,
				  const OutboxCursor *cursor, int max_events, Size max_bytes)
{
	OutboxChunk chunk = reader_new_chunk(cursor, horizon->straggler_count);
	int64		readable = Min(horizon->max_position, horizon->young_lo - 1);
	int64		left_behind_to = cursor->position;
	int64		limit;

	readable = Max(readable, cursor->position);
	limit = cursor->position +
		Min(readable - cursor->position, OUTBOX_RANGE_MAX);
	reader_sort_stragglers(&chunk, horizon, limit);
	chunk.still_open = chunk.after.straggler_count;
	chunk.after.position = limit;
	if (chunk.ended_count > 0)
		left_behind_to = reader_fetch_left_behind(&chunk, id, max_events,
												  max_bytes);
	if (!chunk.cut && left_behind_to == cursor->position &&
		limit > cursor->position)
		reader_fetch_range(&chunk, id, limit, max_events, max_bytes);
	if (chunk.cut)
		reader_stop_cursor(&chunk, reader_last_position(&chunk));
	else if (left_behind_to < cursor->position)
		reader_stop_cursor(&chunk, left_behind_to);
	chunk.cut |= left_behind_to < cursor->position || limit < readable;
	chunk.moved = reader_has_moved(&chunk);
	return chunk;
}

void
outbox_cut_chunk(OutboxChunk *chunk, int count)
{
	Assert(count > 0 && count < chunk->count);
	chunk->count = count;
	chunk->cut = true;
	reader_stop_cursor(chunk, reader_last_position(chunk));
}

static OutboxChunk
reader_read_deferred(SavedQuery *query, Datum *values, Size max_bytes)
{
	OutboxCursor none = {0};
	OutboxChunk chunk = reader_new_chunk(&none, 0);

	reader_fetch(&chunk, query, values, OUTBOX_CHUNK_MAX, max_bytes);
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
 * Appends the parked events behind those of a chunk.
 */
static void
reader_fetch_parked(OutboxChunk *chunk, OutboxPartitionId id, Size max_bytes)
{
	List	   *blocking = NIL;
	int			limit;
	Datum		values[3];

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
	values[2] = Int32GetDatum(limit);
	chunk->cut = false;
	reader_fetch(chunk, &read_parked, values, PG_INT32_MAX, max_bytes);
	if (!chunk->cut)
		chunk->chain_max = limit;
}

OutboxChunk
outbox_read_due(OutboxPartitionId id, Datum positions, Size max_bytes)
{
	Datum		values[3];
	OutboxChunk chunk;

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = positions;
	chunk = reader_read_deferred(&read_due, values, max_bytes);
	reader_fetch_parked(&chunk, id, max_bytes);
	return chunk;
}

OutboxChunk
outbox_read_early(OutboxPartitionId id, Datum positions,
				  TimestampTz recovered_at, Datum event_statuses,
				  Size max_bytes)
{
	Datum		values[5];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = positions;
	values[3] = TimestampTzGetDatum(recovered_at);
	values[4] = event_statuses;
	return reader_read_deferred(&read_early, values, max_bytes);
}

OutboxChunk
outbox_read_longest_waiting(OutboxPartitionId id)
{
	Datum		values[2];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	return reader_read_deferred(&read_longest_waiting, values, 0);
}

TimestampTz
outbox_next_due_at(OutboxPartitionId id, Datum positions)
{
	Datum		values[3];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = positions;
	if (query_run(&next_due_at, values, NULL, true) == 0)
		return 0;
	return Max(query_int64(0, 1), 1);	/* 0 would mean none */
}
