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
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/query.h"
#include "base/settings.h"
#include "outbox/payload.h"
#include "outbox/reader.h"

/*
 * Constraints refuse such events, but constraints can be dropped.
 */
#define WRONG_COLUMN \
	" CASE" \
	UNLESS("isfinite(e.created_at)", "created_at") \
	UNLESS("octet_length(e.topic) BETWEEN 1 AND 255", "topic") \
	UNLESS("e.key IS NULL OR octet_length(e.key) <= 255", "key") \
	UNLESS("e.type IS NULL OR octet_length(e.type) <= 255", "type") \
	UNLESS("e.payload IS NOT NULL", "payload") \
	UNLESS("e.headers IS NULL OR jsonb_typeof(e.headers) = 'object'", "headers") \
	" END,"

/*
 * Headers of the event replace those of the subscription; case does not
 * matter.  The payload stays jsonb, since its text has to be measured before it
 * is built.
 */
#define EVENT_COLUMNS \
	"SELECT e.position, e.key, coalesce(e.type, e.topic), e.payload," \
	" CASE WHEN s.headers IS NOT NULL OR e.headers IS NOT NULL THEN" \
	"  ARRAY(SELECT DISTINCT ON (lower(h.key)) h.key || ': ' || h.value FROM (" \
	"   SELECT 1, * FROM jsonb_each_text(CASE WHEN jsonb_typeof(e.headers) = 'object' THEN e.headers END)" \
	"   UNION ALL" \
	"   SELECT 2, * FROM jsonb_each_text(s.headers)) AS h(rank, key, value)" \
	"   ORDER BY lower(h.key), h.rank) END," \
	" to_char(e.created_at AT TIME ZONE 'UTC'," \
	"  'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), e.created_at," \
	WRONG_COLUMN

#define NEW_EVENT_COLUMNS EVENT_COLUMNS \
	" coalesce(e.deliver_at > clock_timestamp(), false)," \
	" s.ordered AND e.key IS NOT NULL," \
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

#define DEFERRED_COLUMNS EVENT_COLUMNS \
	" false, e.blocks_key, e.state = 'parked', e.attempts" \
	" FROM idempotency_internal.outbox_subscription s,"

#define WAITING_COLUMNS DEFERRED_COLUMNS \
	" idempotency_internal.outbox_delivery e" \
	" WHERE e.subscription = $1 AND e.partition = $2 AND s.id = $1" \
	" AND e.state = 'waiting'"

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
	" WHERE s.id = $1 ORDER BY e.position",
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

/*
 * Returns a column of type text[] as a NULL-terminated list.
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
 * Converts to UTF-8.  That needs a transaction, so it is done here and not when
 * the event is sent.
 */
static char *
reader_utf8_text(uint64 row, int column)
{
	char	   *string = query_text(row, column);
	char	   *converted;

	if (string == NULL)
		return NULL;
	converted = pg_server_to_any(string, strlen(string), PG_UTF8);
	if (converted != string)
		pfree(string);
	return converted;
}

/*
 * Returns a column of type timestamptz in microseconds since 1970.  For
 * infinity the number has no meaning.
 */
static uint64
reader_microseconds(uint64 row, int column)
{
	bool		isnull;
	TimestampTz at = DatumGetTimestampTz(query_datum(row, column, &isnull));

	return (uint64) at +
		(uint64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
}

/*
 * Returns the text of a payload in UTF-8, or NULL if it is null or too large.
 * Frees all other memory that the conversion takes.
 */
static char *
reader_payload(uint64 row, int column, bool *too_large)
{
	const Size	limit = (Size) SETTINGS_OUTBOX_PAYLOAD_MAX_MB * 1024 * 1024;
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);
	MemoryContext scratch;
	MemoryContext old;
	Jsonb	   *payload;
	char	   *string = NULL;

	*too_large = false;
	if (isnull)
		return NULL;
	scratch = AllocSetContextCreate(CurrentMemoryContext, "idempotency payload",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(scratch);
	payload = DatumGetJsonbP(value);
	if (payload_text_fits(payload, limit))
	{
		string = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
		string = pg_server_to_any(string, strlen(string), PG_UTF8);
	}
	MemoryContextSwitchTo(old);
	*too_large = string == NULL || strlen(string) > limit;
	string = *too_large ? NULL : pstrdup(string);
	MemoryContextDelete(scratch);
	return string;
}

static OutboxEvent
reader_event(uint64 row)
{
	OutboxEvent event;
	bool		too_large;
	bool		isnull;

	event.position = query_int64(row, 1);
	event.key = query_text(row, 2);
	event.wire_key = reader_utf8_text(row, 2);
	event.type = reader_utf8_text(row, 3);
	event.payload = reader_payload(row, 4, &too_large);
	event.headers = reader_text_list(row, 5);
	event.created_at = query_text(row, 6);
	event.created_us = reader_microseconds(row, 7);
	event.wrong = query_text(row, 8);
	event.scheduled = DatumGetBool(query_datum(row, 9, &isnull));
	event.in_order = DatumGetBool(query_datum(row, 10, &isnull)) &&
		event.key != NULL && !event.scheduled;
	event.blocked = DatumGetBool(query_datum(row, 11, &isnull)) &&
		event.in_order;
	event.attempts = DatumGetInt32(query_datum(row, 12, &isnull));
	event.attempts = Min(Max(event.attempts, 0), OUTBOX_ATTEMPTS_MAX);
	if (too_large)
		event.wrong = "the payload is too large";
	return event;
}

/*
 * Payload and headers are the only large parts.
 */
static Size
reader_event_bytes(const OutboxEvent *event)
{
	Size		bytes = sizeof(OutboxEvent);

	if (event->payload != NULL)
		bytes += strlen(event->payload);
	for (char **header = event->headers; *header != NULL; header++)
		bytes += strlen(*header);
	return bytes;
}

/*
 * Returns the place of the next event; the array doubles when it is full.
 */
static OutboxEvent *
reader_next_event(OutboxChunk *chunk)
{
	if (chunk->count == chunk->room)
	{
		chunk->room *= 2;
		chunk->events = repalloc(chunk->events,
								 chunk->room * sizeof(OutboxEvent));
	}
	return &chunk->events[chunk->count];
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
		OutboxEvent *event = reader_next_event(chunk);

		*event = reader_event(0);
		SPI_freetuptable(SPI_tuptable);
		chunk->count++;
		chunk->bytes += reader_event_bytes(event);
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
	chunk.events = palloc(chunk.room * sizeof(OutboxEvent));
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
		reader_stop_cursor(&chunk, chunk.events[chunk.count - 1].position);
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
	reader_stop_cursor(chunk, chunk->events[count - 1].position);
}

static OutboxChunk
reader_read_deferred(SavedQuery *query, Datum *values, Size max_bytes)
{
	OutboxCursor none = {0};
	OutboxChunk chunk = reader_new_chunk(&none, 0);

	reader_fetch(&chunk, query, values, OUTBOX_CHUNK_MAX, max_bytes);
	return chunk;
}

/*
 * Returns the keys of these events (OutboxEvent *) as an array of text.
 */
Datum
outbox_event_keys(List *events)
{
	int			count = list_length(events);
	Datum	   *keys = palloc(count * sizeof(Datum));

	for (int i = 0; i < count; i++)
	{
		const OutboxEvent *event = list_nth(events, i);

		keys[i] = CStringGetTextDatum(event->key);
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
		if (chunk->events[i].in_order)
			blocking = lappend(blocking, &chunk->events[i]);
	}
	if (blocking == NIL || chunk->bytes > max_bytes)
		return;
	limit = Max(OUTBOX_CHAINS_MAX / list_length(blocking), OUTBOX_CHAIN_MIN);
	values[0] = Int64GetDatum(id.subscription);
	values[1] = outbox_event_keys(blocking);
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
