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
 * another session, everything that was read is discarded.  In both cases
 * nothing is read until all requests in flight have ended.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/pg_prng.h"
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
/* When to try locked rows again. */
#define FEED_BUSY_MS 100

Feed *
feed_create(OutboxPartitionId id)
{
	Feed	   *feed = palloc0(sizeof(Feed));

	feed->id = id;
	breaker_init(&feed->breaker);
	return feed;
}

void
feed_free(Feed *feed)
{
	Assert(feed_is_idle(feed));
	if (feed->owned)
		outbox_disown_partition(feed->id);
	pfree(feed);
}

void
feed_set_name(Feed *feed, const OutboxSubscription *subscription)
{
	if (subscription->name != NULL)
		strlcpy(feed->name, subscription->name, sizeof(feed->name));
	else
		snprintf(feed->name, sizeof(feed->name), "%lld",
				 (long long) feed->id.subscription);
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

int
feed_in_flight(const Feed *feed)
{
	int			in_flight = 0;
	ListCell   *cell;

	foreach(cell, feed->new_batches)
		in_flight += batch_in_flight(lfirst(cell));
	foreach(cell, feed->due_batches)
		in_flight += batch_in_flight(lfirst(cell));
	return in_flight;
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

/*
 * Are there few enough undecided events to read more?
 */
static bool
feed_has_room(const Feed *feed, List *batches)
{
	int			enough = feed->max_in_flight + OUTBOX_CHUNK_MAX / 2;

	return feed_undecided(batches) < enough;
}

static bool
feed_can_take_events(const Feed *feed)
{
	int			ahead = 0;
	ListCell   *cell;

	if (!feed->active || !feed->owned || feed->draining)
		return false;
	if (feed->breaker.open)
		return feed->breaker.idle && feed_is_idle(feed);
	foreach(cell, feed->new_batches)
		ahead += batch_count(lfirst(cell));
	return ahead < FEED_AHEAD_MAX &&
		list_length(feed->new_batches) < FEED_BATCHES_MAX &&
		feed_has_room(feed, feed->new_batches);
}

bool
feed_wants_events(const Feed *feed)
{
	return !trouble_present(&feed->trouble) && feed_can_take_events(feed);
}

bool
feed_can_settle(const Feed *feed)
{
	ListCell   *cell;

	if (!feed->gone &&
		(feed->breaker.trip_wanted || feed->breaker.reset_wanted))
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

static TimestampTz
feed_earlier(TimestampTz one, TimestampTz other)
{
	if (one == 0 || other == 0)
		return Max(one, other);
	return Min(one, other);
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
	if (!feed->active || feed->draining)
		return next;
	if (!feed->breaker.open)
		return feed_earlier(next, feed->next_due_at);
	if (!feed_is_idle(feed))
		return next;
	if (!feed->breaker.idle)
		return feed_earlier(next, feed->breaker.probe.until);
	return feed_earlier(next, feed->next_due_at);
}

/*
 * From the end of the queue on, events that have not been sent are dropped.
 * Those before the last event that was sent or recorded are parked.
 */
void
feed_stop(Feed *feed)
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
	feed->draining = true;
}

void
feed_take_response(const HttpResponse *response)
{
	BatchAnswer answer = batch_take_response(response);
	Feed	   *feed = answer.owner;
	Breaker    *breaker = &feed->breaker;

	if (answer.class == RETRY_DONE)
		breaker_success(breaker, feed->max_in_flight);
	else if (answer.blames_event)
		breaker_works(breaker);
	else
		breaker_failure(breaker, answer.first_attempt, answer.overloaded,
						answer.retry_after_s, GetCurrentTimestamp());
	if (!feed->draining &&
		(answer.class == RETRY_GONE || breaker->trip_wanted))
		feed_stop(feed);
}

/*
 * Deferred deliveries go first, since they are older.
 */
void
feed_send(Feed *feed, int limit, const char *identity)
{
	int			room = Min(feed->max_in_flight, feed->breaker.window);
	int			sent = 0;
	ListCell   *cell;

	if (trouble_present(&feed->trouble))
		return;
	room = Min(room - feed_in_flight(feed), limit);
	foreach(cell, feed->due_batches)
		sent += batch_send(lfirst(cell), room - sent, identity);
	foreach(cell, feed->new_batches)
		sent += batch_send(lfirst(cell), room - sent, identity);
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
 * Moves the partition past the finished batches at the head of the queue.
 */
static void
feed_move(Feed *feed)
{
	Batch	   *last = NULL;
	int64		delivered = 0;
	ListCell   *cell;

	foreach(cell, feed->new_batches)
	{
		if (!batch_is_finished(lfirst(cell)))
			break;
		last = lfirst(cell);
		delivered += batch_delivered(last);
	}
	if (last != NULL && !feed->discarding)
		outbox_move_partition(feed->id, batch_cursor_after(last), delivered);
}

/*
 * Frees the batches that were recorded as a whole.
 */
static void
feed_free_finished(Feed *feed)
{
	ListCell   *cell;

	while (feed->new_batches != NIL &&
		   batch_is_finished(feed_first_batch(feed)))
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
	}
}

/*
 * Records what can be recorded of all batches, and the whole of the finished
 * batches at the head of the queue.  The partition's row is written even if the
 * partition does not move: a session that deletes the subscription with an
 * older snapshot, which does not show the new rows, then fails and leaves none
 * of them behind.
 */
static void
feed_settle_batches(Feed *feed)
{
	ListCell   *cell;
	int64		delivered = 0;
	bool		at_head = true;
	bool		ahead = false;

	foreach(cell, feed->new_batches)
	{
		Batch	   *batch = lfirst(cell);

		if (feed->discarding)
			break;
		at_head &= batch_is_finished(batch);
		ahead |= !at_head && batch_has_news(batch);
		if (at_head || batch_has_news(batch))
			(void) batch_settle(batch, at_head);
	}
	foreach(cell, feed->due_batches)
		delivered += batch_settle(lfirst(cell),
								  batch_is_finished(lfirst(cell)));
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
	bool		at_head = true;

	foreach(cell, feed->new_batches)
	{
		Batch	   *batch = lfirst(cell);

		if (feed->discarding)
			break;
		at_head &= batch_is_finished(batch);
		if (at_head || batch_has_news(batch))
			batch_settled(batch, at_head);
	}
	foreach(cell, feed->due_batches)
		batch_settled(lfirst(cell), batch_is_finished(lfirst(cell)));
}

/*
 * Records that the endpoint fails as a whole, or works again.  All partitions
 * of the subscription get the new state when they read the subscription.
 */
static bool
feed_settle_breaker(Feed *feed)
{
	const Breaker *breaker = &feed->breaker;

	if (!breaker->trip_wanted && !breaker->reset_wanted)
		return false;
	if (outbox_set_failing(feed->id.subscription, breaker->trip_wanted))
		return true;
	feed->busy_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												   FEED_BUSY_MS);
	return false;
}

static void
feed_settled_breaker(Feed *feed)
{
	Breaker    *breaker = &feed->breaker;
	bool		failing = breaker->trip_wanted;

	breaker->trip_wanted = false;
	breaker->reset_wanted = false;
	if (failing)
		ereport(LOG,
				(errmsg("the endpoint of subscription \"%s\" fails", feed->name),
				 errdetail("%d events in a row were not delivered. Only probes are sent until one of them is accepted.",
						   BREAKER_FAILURES)));
	else
		ereport(LOG,
				(errmsg("the endpoint of subscription \"%s\" works again", feed->name)));
}

bool
feed_is_to_settle(Feed *feed, TimestampTz now)
{
	feed->busy_until = 0;
	return feed_can_settle(feed) && !trouble_waits(&feed->trouble, now);
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
	if (feed->gone)
		return;
	feed_settle_batches(feed);
	feed->breaker_settled = feed_settle_breaker(feed);
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
		feed_settled_breaker(feed);
	feed_free_finished(feed);
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
	copy.schedule_ms = memcpy(palloc(schedule_size),
							  subscription->schedule_ms, schedule_size);
	memset(&copy.cursor, 0, sizeof(copy.cursor));
	return batch_start(&copy, chunk, kind, feed_last_batch(feed), feed);
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
		events = batch_positions(lfirst(cell), events);
	positions = palloc((list_length(events) + 1) * sizeof(Datum));
	foreach(cell, events)
	{
		const OutboxEvent *event = lfirst(cell);

		positions[foreach_current_index(cell)] = Int64GetDatum(event->position);
	}
	return query_array8(positions, list_length(events), INT8OID);
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
	else
		chunk = outbox_read_longest_waiting(feed->id);
	if (chunk.count > 0)
		batch = feed_start_batch(feed, subscription, chunk, kind);
	MemoryContextSwitchTo(old);
	if (batch == NULL || (batch_is_finished(batch) && !batch_has_news(batch)))
	{
		MemoryContextDelete(context);
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

static void
feed_read_due(Feed *feed, const OutboxSubscription *subscription,
			  MemoryContext context)
{
	feed->next_due_at = 0;
	if (!feed_has_room(feed, feed->due_batches) ||
		list_length(feed->due_batches) >= FEED_DUE_BATCHES_MAX)
		return;
	feed_note_next_due(feed);
	if (feed->next_due_at == 0 || feed->next_due_at > GetCurrentTimestamp())
		return;
	if (feed_read_waiting(feed, subscription, BATCH_DUE, context))
		feed_note_next_due(feed);
	else
		feed->next_due_at =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(), FEED_BUSY_MS);
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
 * turn.  A new event that is parked does not count.  If there is no event, the
 * next one that comes is the probe.
 */
static void
feed_probe(Feed *feed, const OutboxSubscription *subscription,
		   const OutboxHorizon *horizon, MemoryContext context)
{
	Breaker    *breaker = &feed->breaker;
	TimestampTz now = GetCurrentTimestamp();
	bool		found;

	if (!feed_is_idle(feed) || now < breaker->probe.until)
		return;
	found = breaker->probe_new &&
		feed_probe_new(feed, subscription, horizon, context);
	if (!found)
		found = feed_read_waiting(feed, subscription, BATCH_PROBE_DUE, context);
	if (!found && feed_is_idle(feed))
		found = feed_probe_new(feed, subscription, horizon, context);
	breaker->idle = !found && feed_is_idle(feed);
	if (breaker->idle)
	{
		feed_note_next_due(feed);
		return;
	}
	breaker_probe(breaker, now, pg_prng_double(&pg_global_prng_state));
	ereport(DEBUG1,
			(errmsg_internal("probing the endpoint of subscription \"%s\"",
							 feed->name)));
}

/*
 * Waits until another partition frees memory, which takes a pass.
 */
static void
feed_put_off(Feed *feed)
{
	feed->more = false;
	feed->next_due_at = 0;
	if (feed->breaker.open)
		feed->breaker.probe.until =
			Max(feed->breaker.probe.until,
				TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											FEED_BUSY_MS));
}

bool
feed_read(Feed *feed, const OutboxSubscription *subscription,
		  const OutboxHorizon *horizon, MemoryContext context)
{
	Breaker    *breaker = &feed->breaker;
	Batch	   *first;

	feed_set_name(feed, subscription);
	feed->max_in_flight = subscription->max_in_flight;
	if (feed->version != subscription->version)
	{
		feed_stop(feed);
		breaker_hurry(breaker, GetCurrentTimestamp());
	}
	feed->version = subscription->version;
	if (subscription->failing && !breaker->open && !feed_is_idle(feed))
		feed_stop(feed);
	breaker_set(breaker, subscription->failing, GetCurrentTimestamp());
	first = feed_first_batch(feed);
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
	{
		feed_probe(feed, subscription, horizon, context);
		return false;
	}
	if (feed_can_take_events(feed))
		(void) feed_read_new(feed, subscription, horizon, BATCH_NEW,
							 OUTBOX_CHUNK_MAX, context);
	if (!feed->draining)
		feed_read_due(feed, subscription, context);
	return feed->busy_until == 0 && feed->more && feed_can_take_events(feed);
}
