/*
 * feed.c
 *		A feed: a partition of a subscription, as this relay serves it: what is
 *		in flight, what is read next, and when nothing may be sent.
 *
 * Chunks of new events are read ahead, so that a slow request does not hold up
 * those behind it.  A batch is a chunk in flight (batch.c).  The batches of new
 * events form a queue: each begins where the one before it ends.  They are
 * recorded in this order, several at once if possible, as one move of the
 * partition.  Batches of due deferred deliveries are independent of the queue.
 *
 * When sending has to stop (the subscription was paused or altered, the
 * endpoint fails as a whole, or the partition goes to another relay), events
 * that have not been sent are given back: batches are dropped or cut from the
 * end of the queue on, and read again later.  If the partition was moved by
 * another session, everything that was read is discarded.  Unless the
 * subscription was only altered, nothing is read until all requests in flight
 * have ended.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/query.h"
#include "relay/feed.h"

/* The most events of a partition that are read but not recorded yet. */
#define FEED_AHEAD_MAX 2000
/* The most batches that these can be in. */
#define FEED_BATCHES_MAX 64
/* The most batches of deferred deliveries of a partition. */
#define FEED_DUE_BATCHES_MAX 8
/* Rows of new batches after which no further batch is recorded as a whole. */
#define FEED_ROWS_MAX 500
/* When to try locked rows again. */
#define FEED_BUSY_MS 100

Feed *
feed_create(OutboxPartitionId id, Endpoint *endpoint)
{
	Feed	   *feed = palloc0(sizeof(Feed));

	feed->id = id;
	feed->endpoint = endpoint;
	endpoint->feeds = lappend(endpoint->feeds, feed);
	return feed;
}

void
feed_free(Feed *feed)
{
	Assert(feed_is_idle(feed) && feed->in_flight == 0);
	if (feed->owned)
		outbox_disown_partition(feed->id);
	feed->endpoint->feeds = list_delete_ptr(feed->endpoint->feeds, feed);
	pfree(feed);
}

static Batch *
feed_first_batch(const Feed *feed)
{
	return feed->new_batches == NIL ? NULL : linitial(feed->new_batches);
}

static Batch *
feed_last_batch(const Feed *feed)
{
	return feed->new_batches == NIL ? NULL : llast(feed->new_batches);
}

bool
feed_is_idle(const Feed *feed)
{
	return feed->new_batches == NIL && feed->due_batches == NIL;
}

Size
feed_bytes(const Feed *feed)
{
	Size		bytes = 0;
	ListCell   *cell;

	foreach(cell, feed->new_batches)
		bytes += batch_bytes(lfirst(cell));
	foreach(cell, feed->due_batches)
		bytes += batch_bytes(lfirst(cell));
	return bytes;
}

static int
feed_undecided(List *batches)
{
	int			undecided = 0;
	ListCell   *cell;

	foreach(cell, batches)
		undecided += batch_undecided(lfirst(cell));
	return undecided;
}

bool
feed_is_quiet(const Feed *feed)
{
	return feed_undecided(feed->new_batches) == 0 &&
		feed_undecided(feed->due_batches) == 0;
}

/*
 * Are there few enough undecided events to read more?
 */
static bool
feed_has_room(const Feed *feed, int undecided)
{
	return undecided <
		feed->endpoint->max_in_flight + OUTBOX_CHUNK_MAX / 2;
}

static bool
feed_can_take_events(const Feed *feed)
{
	const Breaker *breaker = &feed->endpoint->breaker;
	int			ahead = 0;
	ListCell   *cell;

	if (!feed->active || !feed->owned || feed->draining)
		return false;
	if (breaker->open)
		return breaker->idle && endpoint_is_quiet(feed->endpoint);
	foreach(cell, feed->new_batches)
		ahead += batch_count(lfirst(cell));
	return ahead < FEED_AHEAD_MAX &&
		list_length(feed->new_batches) < FEED_BATCHES_MAX &&
		feed_has_room(feed, feed_undecided(feed->new_batches));
}

bool
feed_wants_events(const Feed *feed)
{
	return !trouble_present(&feed->trouble) && feed_can_take_events(feed);
}

bool
feed_can_probe(const Feed *feed)
{
	return feed->active && feed->owned && !feed->draining &&
		feed_is_idle(feed) && !trouble_present(&feed->trouble);
}

bool
feed_can_settle(const Feed *feed)
{
	ListCell   *cell;

	if (feed->owned && !feed->gone && endpoint_wants_settle(feed->endpoint))
		return true;
	if (feed->new_batches && batch_is_finished(feed_first_batch(feed)))
		return true;
	foreach(cell, feed->new_batches)
	{
		if (batch_has_news(lfirst(cell)) && !feed->discarding)
			return true;
	}
	foreach(cell, feed->due_batches)
	{
		if (batch_is_finished(lfirst(cell)) ||
			(batch_has_news(lfirst(cell)) && !feed->gone))
			return true;
	}
	return false;
}

bool
feed_wants_pass(const Feed *feed)
{
	if (feed->busy_until != 0 || trouble_present(&feed->trouble))
		return false;
	return feed_can_settle(feed) || (feed->more && feed_wants_events(feed));
}

TimestampTz
feed_next_timer(const Feed *feed)
{
	TimestampTz next = feed->busy_until;

	if (trouble_present(&feed->trouble))
	{
		if (next != 0)
			return next;
		return feed->active || feed_can_settle(feed) ?
			feed->trouble.wait.until : 0;
	}
	if (!feed->active || feed->draining ||
		(feed->endpoint->breaker.open && !feed->endpoint->breaker.idle))
		return next;
	return backoff_earlier(next, feed->next_due_at);
}

/*
 * From the end of the queue on, events that have not been sent are dropped.
 * Those before the last event that was sent or recorded are parked.
 */
void
feed_give_back(Feed *feed)
{
	ListCell   *cell;

	while (feed->new_batches != NIL && !batch_cut(feed_last_batch(feed)))
	{
		batch_free(feed_last_batch(feed));
		feed->new_batches = list_delete_last(feed->new_batches);
	}
	foreach(cell, feed->new_batches)
		batch_stop(lfirst(cell));
	foreach(cell, feed->due_batches)
		batch_stop(lfirst(cell));
}

void
feed_stop(Feed *feed)
{
	feed_give_back(feed);
	feed->draining = true;
}

void
feed_shorten(Feed *feed, int left_ms)
{
	ListCell   *cell;

	foreach(cell, feed->new_batches)
		batch_shorten(lfirst(cell), left_ms);
	foreach(cell, feed->due_batches)
		batch_shorten(lfirst(cell), left_ms);
}

/*
 * Deferred deliveries go first, since they are older.
 */
int
feed_send(Feed *feed, int limit, const char *identity)
{
	int			room = Min(feed->endpoint->max_in_flight - feed->in_flight,
						   limit);
	int			sent = 0;
	ListCell   *cell;

	if (trouble_present(&feed->trouble))
		return 0;
	foreach(cell, feed->due_batches)
		sent += batch_send(lfirst(cell), room - sent, identity);
	foreach(cell, feed->new_batches)
		sent += batch_send(lfirst(cell), room - sent, identity);
	feed->in_flight += sent;
	return sent;
}

/*
 * Locks a partition without waiting.  An open transaction that has changed one
 * subscription must not delay the others.
 */
static OutboxLock
feed_lock(Feed *feed, int64 *position)
{
	OutboxLock	lock = outbox_lock_partition(feed->id, position);

	if (lock == OUTBOX_BUSY)
		feed->busy_until =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(), FEED_BUSY_MS);
	return lock;
}

static void
feed_discard(Feed *feed)
{
	feed_stop(feed);
	feed->discarding = true;
}

/*
 * Counts the batches at the head of the queue that can be recorded as a whole.
 * If they need many rows, some are left for the next pass.
 */
static int
feed_count_heads(const Feed *feed)
{
	int			heads = 0;
	int64		rows = 0;
	ListCell   *cell;

	foreach(cell, feed->new_batches)
	{
		const Batch *batch = lfirst(cell);

		if (!batch_is_finished(batch) ||
			(rows > FEED_ROWS_MAX && !feed->discarding))
			break;
		heads++;
		rows += batch_count(batch) - batch_delivered(batch);
	}
	return heads;
}

/*
 * Moves the partition past the batches that are recorded as a whole.
 */
static void
feed_move(Feed *feed)
{
	Batch	   *last = NULL;
	int64		delivered = 0;

	for (int i = 0; i < feed->heads; i++)
	{
		last = list_nth(feed->new_batches, i);
		delivered += batch_delivered(last);
	}
	if (last != NULL && !feed->discarding)
		outbox_move_partition(feed->id, batch_cursor_after(last), delivered);
}

/*
 * Frees the batches that were recorded as a whole.  One of deferred deliveries
 * may have been stopped, and what it did not send is to be read again.
 */
static void
feed_free_finished(Feed *feed)
{
	ListCell   *cell;

	while (feed->heads-- > 0)
	{
		batch_free(feed_first_batch(feed));
		feed->new_batches = list_delete_first(feed->new_batches);
	}
	if (feed->new_batches != NIL)
		batch_is_first(feed_first_batch(feed));
	foreach(cell, feed->due_batches)
	{
		Batch	   *batch = lfirst(cell);

		if (!batch_is_finished(batch))
			continue;
		feed->due_batches = foreach_delete_current(feed->due_batches, cell);
		batch_free(batch);
		feed->tried_early = 0;
	}
}

/*
 * Records what can be recorded of all batches, and the whole of those at the
 * head of the queue.  Deferred deliveries come first: a new event that waits
 * must see whether one of its key is left.  The partition's row is written even
 * if the partition does not move: a session that deletes the subscription with
 * an older snapshot, which does not show the new rows, then fails and leaves
 * none of them behind.
 */
static void
feed_settle_batches(Feed *feed)
{
	ListCell   *cell;
	int64		delivered = 0;
	bool		ahead = false;

	foreach(cell, feed->due_batches)
		delivered += batch_settle(lfirst(cell),
								  batch_is_finished(lfirst(cell)));
	foreach(cell, feed->new_batches)
	{
		Batch	   *batch = lfirst(cell);
		bool		at_head = foreach_current_index(cell) < feed->heads;

		if (feed->discarding)
			break;
		ahead |= !at_head && batch_has_news(batch);
		if (at_head || batch_has_news(batch))
			(void) batch_settle(batch, at_head);
	}
	if (ahead || delivered > 0)
		outbox_count_delivered(feed->id, delivered);
}

/*
 * Called after the commit of what feed_settle_batches has written.
 */
static void
feed_settled_batches(Feed *feed)
{
	ListCell   *cell;

	foreach(cell, feed->new_batches)
	{
		Batch	   *batch = lfirst(cell);
		bool		at_head = foreach_current_index(cell) < feed->heads;

		if (feed->discarding)
			break;
		if (at_head || batch_has_news(batch))
			batch_settled(batch, at_head, feed->due_batches);
	}
	foreach(cell, feed->due_batches)
		batch_settled(lfirst(cell), batch_is_finished(lfirst(cell)), NIL);
}

static void
feed_settle_breaker(Feed *feed)
{
	if (!endpoint_wants_settle(feed->endpoint))
		return;
	feed->breaker_settled = endpoint_settle(feed->endpoint);
	if (!feed->breaker_settled)
		feed->busy_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													   FEED_BUSY_MS);
}

bool
feed_is_to_settle(Feed *feed, TimestampTz now)
{
	feed->busy_until = 0;
	return feed_can_settle(feed) && !trouble_waits(&feed->trouble, now);
}

int
feed_rows(const Feed *feed)
{
	int			rows = 1;
	ListCell   *cell;

	foreach(cell, feed->new_batches)
		rows += batch_rows(lfirst(cell));
	foreach(cell, feed->due_batches)
		rows += batch_rows(lfirst(cell));
	return Min(rows, FEED_ROWS_MAX);
}

void
feed_settle(Feed *feed)
{
	int64		position;

	feed->breaker_settled = false;
	feed->lock = feed_lock(feed, &position);
	if (feed->lock == OUTBOX_BUSY)
		return;
	feed->gone = feed->lock == OUTBOX_GONE;
	if (feed->gone ||
		(feed->new_batches &&
		 position != batch_cursor_before(feed_first_batch(feed))->position))
		feed_discard(feed);
	feed->heads = feed_count_heads(feed);
	if (feed->gone)
		return;
	feed_settle_batches(feed);
	feed_settle_breaker(feed);
	feed_move(feed);
}

void
feed_settled(Feed *feed)
{
	if (feed->lock == OUTBOX_BUSY)
		return;
	if (feed->lock == OUTBOX_LOCKED)
		feed_settled_batches(feed);
	if (feed->breaker_settled)
		endpoint_settled(feed->endpoint);
	feed_free_finished(feed);
}

static char **
feed_copy_headers(char **headers)
{
	int			count = 0;
	char	  **copy;

	while (headers[count] != NULL)
		count++;
	copy = palloc((count + 1) * sizeof(char *));
	for (int i = 0; i < count; i++)
		copy[i] = pstrdup(headers[i]);
	copy[count] = NULL;
	return copy;
}

/*
 * Starts a batch in its memory, which is current: the chunk and a copy of the
 * subscription.
 */
static Batch *
feed_start_batch(Feed *feed, const OutboxSubscription *subscription,
				 OutboxChunk chunk, BatchKind kind)
{
	OutboxSubscription copy = *subscription;
	size_t		schedule_size = copy.schedule_count * sizeof(int64);

	copy.name = pstrdup(subscription->name);
	copy.url = pstrdup(subscription->url);
	copy.secret = pstrdup(subscription->secret);
	if (subscription->old_secret)
		copy.old_secret = pstrdup(subscription->old_secret);
	copy.headers = feed_copy_headers(subscription->headers);
	copy.schedule_ms = memcpy(palloc(schedule_size),
							  subscription->schedule_ms, schedule_size);
	memset(&copy.cursor, 0, sizeof(copy.cursor));
	return batch_start(&copy, chunk, kind, feed_last_batch(feed),
					   feed->due_batches, feed);
}

static List *
feed_append_batch(List *batches, Batch *batch, MemoryContext context,
				  MemoryContext parent)
{
	MemoryContext old = MemoryContextSwitchTo(parent);

	batches = lappend(batches, batch);
	MemoryContextSwitchTo(old);
	MemoryContextSetParent(context, parent);
	return batches;
}

/*
 * Creates the memory context of a batch.  It is freed with the current context
 * unless feed_append_batch keeps it, since reading may fail.
 */
static MemoryContext
feed_batch_context(void)
{
	return AllocSetContextCreate(CurrentMemoryContext, "idempotency batch",
								 ALLOCSET_DEFAULT_SIZES);
}

/*
 * Reads at most max_events new events.  If the partition moves without events,
 * that is recorded at once, or together with the last batch.  Returns whether
 * there are events.
 */
static bool
feed_read_new(Feed *feed, const OutboxSubscription *subscription,
			  const OutboxHorizon *horizon, BatchKind kind, int max_events,
			  MemoryContext parent)
{
	MemoryContext context = feed_batch_context();
	MemoryContext old = MemoryContextSwitchTo(context);
	Batch	   *last = feed_last_batch(feed);
	const OutboxCursor *cursor = &subscription->cursor;
	OutboxChunk chunk;
	Batch	   *batch = NULL;
	int64		position;

	if (last)
		cursor = batch_cursor_after(last);
	chunk = outbox_read_chunk(horizon, feed->id, cursor, max_events,
							  feed->max_bytes);
	feed->more = chunk.cut;
	if (chunk.count > 0)
		batch = feed_start_batch(feed, subscription, chunk, kind);
	MemoryContextSwitchTo(old);
	if (batch)
	{
		feed->new_batches = feed_append_batch(feed->new_batches, batch,
											  context, parent);
		return true;
	}
	if (chunk.moved && last)
		batch_extend(last, &chunk.after);
	else if (chunk.moved &&
			 feed_lock(feed, &position) == OUTBOX_LOCKED &&
			 position == cursor->position)
		outbox_move_partition(feed->id, &chunk.after, 0);
	MemoryContextDelete(context);
	return false;
}

/*
 * Returns the positions of deferred deliveries in flight, as an array.
 */
static Datum
feed_due_positions(Feed *feed)
{
	List	   *events = NIL;
	Datum	   *positions;
	ListCell   *cell;

	foreach(cell, feed->due_batches)
		events = batch_open_events(lfirst(cell), events);
	positions = palloc((list_length(events) + 1) * sizeof(Datum));
	foreach(cell, events)
	{
		const OutboxEvent *event = lfirst(cell);

		positions[foreach_current_index(cell)] = Int64GetDatum(event->position);
	}
	return query_array8(positions, list_length(events), INT8OID);
}

static Datum
feed_event_statuses(void)
{
	Datum		statuses[RETRY_EVENT_STATUSES];

	for (int i = 0; i < RETRY_EVENT_STATUSES; i++)
		statuses[i] = Int32GetDatum(retry_event_statuses[i]);
	return PointerGetDatum(construct_array(statuses, RETRY_EVENT_STATUSES,
										   INT4OID, sizeof(int32), true,
										   TYPALIGN_INT));
}

static bool
feed_read_waiting(Feed *feed, const OutboxSubscription *subscription,
				  BatchKind kind, MemoryContext parent)
{
	Datum		on_their_way = feed_due_positions(feed);
	MemoryContext context = feed_batch_context();
	MemoryContext old = MemoryContextSwitchTo(context);
	OutboxChunk chunk;
	Batch	   *batch = NULL;

	if (kind == BATCH_DUE)
		chunk = outbox_read_due(feed->id, on_their_way, feed->max_bytes);
	else if (kind == BATCH_EARLY)
		chunk = outbox_read_early(feed->id, on_their_way,
								  subscription->recovered_at,
								  feed_event_statuses(), feed->max_bytes);
	else
		chunk = outbox_read_longest_waiting(feed->id);
	if (chunk.count > 0)
		batch = feed_start_batch(feed, subscription, chunk, kind);
	MemoryContextSwitchTo(old);
	if (batch == NULL)
	{
		MemoryContextDelete(context);
		return false;
	}
	if (batch_is_finished(batch) && !batch_has_news(batch))
	{
		batch_free(batch);
		return false;
	}
	feed->due_batches = feed_append_batch(feed->due_batches, batch, context,
										  parent);
	return true;
}

static void
feed_note_next_due(Feed *feed)
{
	Datum		taken = feed_due_positions(feed);

	feed->next_due_at = outbox_next_due_at(feed->id, taken);
}

/*
 * Reads events that failed before the endpoint worked again, although they are
 * not due yet.  Returns whether there may be more of them.
 */
static bool
feed_read_early(Feed *feed, const OutboxSubscription *subscription,
				MemoryContext context)
{
	if (feed->tried_early == subscription->recovered_at)
		return false;
	if (feed_read_waiting(feed, subscription, BATCH_EARLY, context))
		return true;
	feed->tried_early = subscription->recovered_at;
	return false;
}

/*
 * What has been answered is recorded before more is read: the rows of parked
 * events do not tell which of them were delivered.  Parked events that wait for
 * others do not keep those of other keys from being read.
 */
static bool
feed_can_take_due(const Feed *feed)
{
	int			unchained = 0;
	ListCell   *cell;

	foreach(cell, feed->due_batches)
		unchained += batch_unchained(lfirst(cell));
	return !feed_can_settle(feed) && feed_has_room(feed, unchained) &&
		list_length(feed->due_batches) < FEED_DUE_BATCHES_MAX;
}

static void
feed_read_due(Feed *feed, const OutboxSubscription *subscription,
			  MemoryContext context)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		early;

	feed->next_due_at = 0;
	if (!feed_can_take_due(feed))
		return;
	early = feed_read_early(feed, subscription, context);
	feed_note_next_due(feed);
	if (feed->next_due_at != 0 && feed->next_due_at <= now)
	{
		if (feed_read_waiting(feed, subscription, BATCH_DUE, context))
			feed_note_next_due(feed);
		else
			feed->next_due_at = TimestampTzPlusMilliseconds(now, FEED_BUSY_MS);
	}
	if (early)
		feed->next_due_at = now;
}

static bool
feed_probe_new(Feed *feed, const OutboxSubscription *subscription,
			   const OutboxHorizon *horizon, MemoryContext context)
{
	return feed_read_new(feed, subscription, horizon, BATCH_PROBE_NEW, 1,
						 context) &&
		!batch_is_finished(feed_last_batch(feed));
}

/*
 * Sends one event to an endpoint that fails: a waiting one and a new one in
 * turn.  A new event that is parked does not count.  Returns whether another
 * partition has to be asked for an event.
 */
static bool
feed_probe(Feed *feed, const OutboxSubscription *subscription,
		   const OutboxHorizon *horizon, MemoryContext context)
{
	Endpoint   *endpoint = feed->endpoint;
	TimestampTz now = GetCurrentTimestamp();
	bool		found;

	if (!endpoint_may_probe(endpoint, feed, now))
		return false;
	found = endpoint->breaker.probe_new &&
		feed_probe_new(feed, subscription, horizon, context);
	if (!found)
		found = feed_read_waiting(feed, subscription, BATCH_PROBE_DUE, context);
	if (!found && feed_is_idle(feed))
		found = feed_probe_new(feed, subscription, horizon, context);
	if (!found)
		feed_note_next_due(feed);
	endpoint_probed(endpoint, !feed_is_idle(feed), now);
	return feed_is_idle(feed) && !endpoint->breaker.idle;
}

/*
 * Waits until another partition frees memory, which takes a pass.
 */
static void
feed_put_off(Feed *feed)
{
	Breaker    *breaker = &feed->endpoint->breaker;

	feed->more = false;
	feed->next_due_at = 0;
	if (breaker->open)
		breaker->probe.until =
			Max(breaker->probe.until,
				TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											FEED_BUSY_MS));
}

bool
feed_read(Feed *feed, const OutboxSubscription *subscription,
		  const OutboxHorizon *horizon, MemoryContext context)
{
	Breaker    *breaker = &feed->endpoint->breaker;
	Batch	   *first = feed_first_batch(feed);

	if (first && !feed->discarding &&
		batch_cursor_before(first)->position != subscription->cursor.position)
		feed_discard(feed);
	if (feed_is_idle(feed) && !breaker->trip_wanted)
		feed->draining = feed->discarding = false;

	if (feed->max_bytes == 0)
	{
		feed_put_off(feed);
		return false;
	}
	if (breaker->open)
		return feed_probe(feed, subscription, horizon, context);
	if (feed_can_take_events(feed))
		(void) feed_read_new(feed, subscription, horizon, BATCH_NEW,
							 OUTBOX_CHUNK_MAX, context);
	if (!feed->draining)
		feed_read_due(feed, subscription, context);
	return feed->busy_until == 0 && feed->more && feed_can_take_events(feed);
}
