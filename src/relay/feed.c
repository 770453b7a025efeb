/*
 * feed.c
 *		A feed: a partition of a subscription, as this relay serves it: what is
 *		in flight, what is read next, and when nothing may be sent.
 *
 * A feed either follows the head of the relay, which gives it its new events
 * (head.c), or it lags: it has a cursor of its own and reads for itself.  It
 * lags when the relay begins to serve it, and whenever it cannot take what the
 * head has for it: because too much is in memory already, or because sending
 * has to stop.  When it has read as far as the head, it follows the head again.
 * Feeds that have read equally far, as those that another relay has served do,
 * read together (head.c).
 *
 * Chunks of new events are read ahead, so that a slow request does not hold up
 * those behind it.  A batch is a chunk in flight (batch.c).  The batches of new
 * events form a queue: each begins where the one before it ends.  They are
 * recorded in this order, several at once if possible, as one move of the
 * partition.  Batches of due deferred deliveries are independent of the queue.
 *
 * A failed event becomes a deferred delivery before the partition has passed
 * it.  If the relay ends in between, the next one reads the log again.  It
 * leaves out events that are deferred, and does not touch their deliveries
 * before it has passed them in the log: so the event is sent once.  Until then
 * the feed reads for itself.
 *
 * When sending has to stop (the subscription was paused or altered, the
 * endpoint fails as a whole, or the partition goes to another relay), events
 * that have not been sent are given back: batches are dropped or cut from the
 * end of the queue on, and read again later.  If the partition was moved by
 * another session, everything that was read is discarded.  Unless the
 * subscription was only altered, nothing is read until all requests in flight
 * have ended.
 *
 * The partition's row is written together with the outcomes of its events.  It
 * names the head only if the feed follows it and has no batches.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/query.h"
#include "relay/feed.h"
#include "relay/turn.h"

/* The most events of a partition that are read but not recorded yet, */
#define FEED_AHEAD_MAX 2000
/* or as many as this number of requests can have, if that is more. */
#define FEED_AHEAD_REQUESTS 8
/* The most batches that these can be in. */
#define FEED_BATCHES_MAX 64
/* The most batches of deferred deliveries of a partition. */
#define FEED_DUE_BATCHES_MAX 8
/* Rows of new batches after which no further batch is recorded as a whole. */
#define FEED_ROWS_MAX 500
/* When to try locked rows again. */
#define FEED_BUSY_MS 100
/* How often a move without events is recorded at most. */
#define FEED_WRITE_MS 1000
/* The same, if only the number of events that were filtered out has changed. */
#define FEED_FILTERED_MS 10000
/* The most bytes of events in the memory of a relay before reading stops. */
#define FEED_BYTES_MAX (64 * 1024 * 1024)
/* The most bytes of batches before it stops for subscriptions that have any. */
#define FEED_BATCHES_BYTES_MAX (64 * 1024 * 1024)
/* The smallest chunk for a subscription that has events in memory. */
#define FEED_SHARE_MIN (1024 * 1024)
/* CPU time that a filter may take in one read. */
#define FEED_FILTER_MS 20
/* For as many times of what it takes beyond that, its feed reads nothing. */
#define FEED_FILTER_REST_FACTOR 5
/* How long it then reads alone. */
#define FEED_ALONE_MS 5000

Feed *
feed_create(OutboxPartitionId id, Endpoint *endpoint, Head *head)
{
	Feed	   *feed = palloc0(sizeof(Feed));

	feed->id = id;
	feed->endpoint = endpoint;
	feed->head = head;
	feed->row.head = OUTBOX_NO_HEAD;
	groups_init(&feed->groups, feed);
	endpoint->feeds = lappend(endpoint->feeds, feed);
	return feed;
}

static void
feed_free_cursor(Feed *feed)
{
	if (feed->cursor.stragglers != NULL)
		pfree(feed->cursor.stragglers);
	feed->cursor = (OutboxCursor)
	{
		0
	};
}

/*
 * Copies a cursor into memory that lives as long as the feed.
 */
static OutboxCursor
feed_copy_cursor(Feed *feed, const OutboxCursor *cursor)
{
	MemoryContext old = MemoryContextSwitchTo(GetMemoryChunkContext(feed));
	OutboxCursor copy = outbox_copy_cursor(cursor);

	MemoryContextSwitchTo(old);
	return copy;
}

static void
feed_set_cursor(Feed *feed, const OutboxCursor *cursor)
{
	OutboxCursor copy = feed_copy_cursor(feed, cursor);

	feed_free_cursor(feed);
	feed->cursor = copy;
}

static void
feed_attach(Feed *feed)
{
	Assert(!feed->attached && feed->loaded && !feed->draining);
	Assert(feed->again_to == 0);
	feed_free_cursor(feed);
	feed->more = false;
	feed->attached = true;
	feed->head->followers++;
}

void
feed_detach(Feed *feed, const OutboxCursor *cursor)
{
	feed_set_cursor(feed, cursor);
	feed->more = true;
	Assert(!feed->attached || feed->head->followers > 0);
	if (feed->attached)
		feed->head->followers--;
	feed->attached = false;
	endpoint_be_busy(feed->endpoint);
}

void
feed_free(Feed *feed)
{
	Assert(feed_is_idle(feed) && feed->in_flight == 0);
	Assert(!feed->attached || feed->head->followers > 0);
	if (feed->attached)
		feed->head->followers--;
	feed_free_cursor(feed);
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

static Size
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

/*
 * Returns how much can be read for a feed now: half of what is left when the
 * bytes in use, and once more those of the same subscription, are subtracted
 * from the limit.  So one subscription gets at most half of all memory, the
 * next one half of the rest, and so on: endpoints that hang leave memory for
 * those that work.  Only the last event of a chunk can exceed the limit.
 *
 * Each subscription has batches of its own, which are as large as small events
 * are.  If they use too much, only a subscription without events gets some.
 */
static Size
feed_share(const Feed *feed)
{
	Size		taken = outbox_events_bytes();
	Size		own = 0;
	Size		share;
	ListCell   *cell;

	if (2 * (taken + OUTBOX_CHUNK_BYTES_MAX) <= FEED_BYTES_MAX &&
		batches_bytes() <= FEED_BATCHES_BYTES_MAX)
		return OUTBOX_CHUNK_BYTES_MAX;	/* enough for any subscription */
	foreach(cell, feed->endpoint->feeds)
		own += feed_bytes(lfirst(cell));
	taken += own;
	share = taken < FEED_BYTES_MAX ? (FEED_BYTES_MAX - taken) / 2 : 0;
	if (own > 0 && (share < FEED_SHARE_MIN ||
					batches_bytes() > FEED_BATCHES_BYTES_MAX))
		return 0;
	return Min(share, OUTBOX_CHUNK_BYTES_MAX);
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
 * A filter that takes long, perhaps for each of many events, must not keep the
 * relay from serving other subscriptions.  So its feed does not follow the
 * head, where each event of others would wait for it, and rests after a read.
 * All such feeds together get a sixth of the relay's time: the more of them
 * rest, the longer.
 */
void
feed_tire(Feed *feed, int64 filter_us)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		excess_us = filter_us - FEED_FILTER_MS * INT64CONST(1000);
	int			resting = 1;
	ListCell   *cell;

	foreach(cell, endpoints_busy_feeds())
	{
		if (((Feed *) lfirst(cell))->rest_until > now)
			resting++;
	}
	feed->rest_until = now + Max(excess_us, 0) * FEED_FILTER_REST_FACTOR *
		resting;
	feed->alone_until = TimestampTzPlusMilliseconds(feed->rest_until,
													FEED_ALONE_MS);
	feed->more = true;
	endpoint_be_busy(feed->endpoint);
}

void
feed_hurry(Feed *feed)
{
	trouble_hurry(&feed->trouble, GetCurrentTimestamp());
	feed->alone_until = feed->rest_until = 0;
}

static bool
feed_rests(const Feed *feed)
{
	return feed->rest_until != 0 && feed->rest_until > GetCurrentTimestamp();
}

/*
 * Are there few enough undecided events to read more?
 */
static bool
feed_has_room(const Feed *feed, int undecided)
{
	const OutboxSubscription *settings = feed->endpoint->settings;
	int			chunk = endpoint_chunk_max(feed->endpoint);

	if (chunk < OUTBOX_CHUNK_MAX)
		return undecided < chunk;
	return undecided < settings->max_in_flight * settings->batch +
		OUTBOX_CHUNK_MAX / 2;
}

static int
feed_ahead_max(const Feed *feed)
{
	return Max(FEED_AHEAD_MAX,
			   FEED_AHEAD_REQUESTS * feed->endpoint->settings->batch);
}

static bool
feed_can_take_events(const Feed *feed)
{
	const Breaker *breaker = &feed->endpoint->breaker;
	int			ahead = 0;
	ListCell   *cell;

	if (!feed->active || !feed->loaded || feed->draining || feed_rests(feed))
		return false;
	if (breaker->open)
		return breaker->idle && endpoint_is_quiet(feed->endpoint);
	foreach(cell, feed->new_batches)
		ahead += batch_count(lfirst(cell));
	return ahead < feed_ahead_max(feed) &&
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
	return feed->active && feed->loaded && !feed->draining &&
		feed_is_idle(feed) && !trouble_present(&feed->trouble);
}

bool
feed_can_take_page(Feed *feed)
{
	if (!feed_wants_events(feed))
		return false;
	feed->max_bytes = feed_share(feed);
	return feed->max_bytes > 0;
}

bool
feed_may_have_deferred(const Feed *feed)
{
	return feed->ask_due || feed->next_due_at != 0 || feed->due_batches != NIL;
}

/*
 * Returns how far it has read, which is recorded if it has no batches.
 */
static const OutboxCursor *
feed_cursor(const Feed *feed)
{
	return feed->attached ? &feed->head->cursor : &feed->cursor;
}

bool
feed_holds_head(const Feed *feed)
{
	return feed->row.head == feed->head->relay &&
		(!feed->attached || feed->new_batches != NIL);
}

static TimestampTz
feed_write_filtered_at(const Feed *feed)
{
	if (feed->filtered.filtered == 0)
		return 0;
	return feed->active ?
		TimestampTzPlusMilliseconds(feed->write_at,
									FEED_FILTERED_MS - FEED_WRITE_MS) : 1;
}

/*
 * When is its row to be written, if it has no batches?  1: now; 0: never.
 */
static TimestampTz
feed_write_at(const Feed *feed)
{
	if (!feed->loaded || feed->new_batches != NIL)
		return 0;
	if (feed->attached && feed->row.head != feed->head->relay)
		return 1;
	if (feed->attached || (feed->row.head == OUTBOX_NO_HEAD &&
						   feed->row.position == feed->cursor.position))
		return feed_write_filtered_at(feed);
	return feed->active ? feed->write_at : 1;
}

bool
feed_is_done(const Feed *feed)
{
	return feed_is_idle(feed) && feed_write_at(feed) == 0;
}

bool
feed_is_at_rest(const Feed *feed)
{
	return feed->active && feed->attached && feed_is_done(feed) &&
		!feed->ask_due && feed->busy_until == 0 &&
		feed->tried_early == feed->endpoint->settings->recovered_at &&
		(feed->next_due_at == 0 || feed->next_due_at > GetCurrentTimestamp()) &&
		!trouble_present(&feed->trouble);
}

static bool
feed_can_settle_due(const Feed *feed)
{
	ListCell   *cell;

	foreach(cell, feed->due_batches)
	{
		if (batch_is_finished(lfirst(cell)) ||
			(batch_has_news(lfirst(cell)) && !feed->gone))
			return true;
	}
	return false;
}

bool
feed_can_settle(const Feed *feed)
{
	TimestampTz write_at = feed_write_at(feed);
	ListCell   *cell;

	if (write_at != 0 && write_at <= GetCurrentTimestamp())
		return true;
	if (feed->loaded && endpoint_wants_settle(feed->endpoint))
		return true;
	if (feed->new_batches && batch_is_finished(feed_first_batch(feed)))
		return true;
	foreach(cell, feed->new_batches)
	{
		if (batch_has_news(lfirst(cell)) && !feed->discarding)
			return true;
	}
	return feed_can_settle_due(feed);
}

bool
feed_wants_pass(const Feed *feed, bool can_read)
{
	if (feed->busy_until != 0 || trouble_present(&feed->trouble))
		return false;
	return feed_can_settle(feed) ||
		(can_read && feed->more && feed_wants_events(feed));
}

/*
 * Otherwise it has to be loaded first, which another try does not do.
 */
bool
feed_can_be_read(const Feed *feed)
{
	return feed->active && feed->loaded && !feed->wrong;
}

TimestampTz
feed_next_timer(const Feed *feed)
{
	TimestampTz next = feed->busy_until;

	if (trouble_present(&feed->trouble))
	{
		if (next != 0)
			return next;
		return feed_can_be_read(feed) || feed_can_settle(feed) ?
			feed->trouble.wait.until : 0;
	}
	if (next == 0)
		next = feed_write_at(feed);
	if (!feed->active || feed->draining ||
		(feed->endpoint->breaker.open && !feed->endpoint->breaker.idle))
		return next;
	if (feed_rests(feed))
		next = backoff_earlier(next, feed->rest_until);
	return backoff_earlier(next, feed->next_due_at);
}

/*
 * Drops events that have not been sent from the end of the queue on.  Returns
 * where to read them again, or NULL if there were none.
 */
static OutboxCursor *
feed_drop_unsent(Feed *feed)
{
	OutboxCursor *from = NULL;
	Batch	   *last;

	while ((last = feed_last_batch(feed)) != NULL)
	{
		int			count = batch_count(last);
		bool		kept = batch_cut(last);

		if (kept && batch_count(last) == count)
			break;
		if (from == NULL)
			from = palloc(sizeof(OutboxCursor));
		*from = outbox_copy_cursor(kept ? batch_cursor_after(last) :
								   batch_cursor_before(last));
		if (kept)
			break;
		batch_free(last);
		feed->new_batches = list_delete_last(feed->new_batches);
	}
	return from;
}

/*
 * Events that have not been sent, but are before the last one that was sent or
 * recorded, are parked.
 */
void
feed_give_back(Feed *feed)
{
	OutboxCursor *from;
	ListCell   *cell;

	groups_give_back(&feed->groups);
	from = feed_drop_unsent(feed);
	if (from != NULL)
		feed_detach(feed, from);
	foreach(cell, feed->new_batches)
		batch_stop(lfirst(cell));
	foreach(cell, feed->due_batches)
		batch_stop(lfirst(cell));
}

void
feed_stop(Feed *feed)
{
	feed_give_back(feed);
	if (feed->attached)
		feed_detach(feed, &feed->head->cursor);
	feed->draining = true;
}

void
feed_shorten(Feed *feed, int left_ms)
{
	groups_shorten(&feed->groups, left_ms);
}

bool
feed_can_send(const Feed *feed)
{
	ListCell   *cell;

	if (trouble_present(&feed->trouble) ||
		feed->in_flight >= feed->endpoint->settings->max_in_flight)
		return false;
	if (groups_are_ready(&feed->groups))
		return true;
	foreach(cell, feed->due_batches)
	{
		if (batch_first_ready(lfirst(cell)) != NULL)
			return true;
	}
	foreach(cell, feed->new_batches)
	{
		if (batch_first_ready(lfirst(cell)) != NULL)
			return true;
	}
	return false;
}

/*
 * Deferred deliveries go first, since they are older.
 */
int
feed_send(Feed *feed, int limit, int *tokens, const char *identity)
{
	int			room = Min(feed->endpoint->settings->max_in_flight -
						   feed->in_flight, limit);
	int			sent;

	if (trouble_present(&feed->trouble))
		return 0;
	sent = groups_send(&feed->groups, feed->due_batches, room, tokens,
					   identity);
	sent += groups_send(&feed->groups, feed->new_batches, room - sent, tokens,
						identity);
	Assert(sent >= 0 && sent <= Max(room, 0));
	feed->in_flight += sent;
	return sent;
}

/*
 * Locks a partition without waiting.  An open transaction that has changed one
 * subscription must not delay the others.
 */
static OutboxLock
feed_lock(Feed *feed, OutboxRow *row)
{
	OutboxLock	lock = outbox_lock_partition(feed->id, row);

	if (lock == OUTBOX_BUSY)
		feed->busy_until =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(), FEED_BUSY_MS);
	return lock;
}

/*
 * The partition in memory is no longer as it is recorded.
 */
static void
feed_discard(Feed *feed)
{
	feed_stop(feed);
	feed->discarding = true;
	feed->loaded = false;
}

static bool
feed_has_row(const Feed *feed, const OutboxRow *row)
{
	return row->position == feed->row.position && row->head == feed->row.head;
}

bool
feed_is_to_load(const Feed *feed)
{
	return feed->active && !feed->loaded && !feed->wrong && feed_is_idle(feed);
}

/*
 * Something may have become due that the feed does not know of.
 */
bool
feed_is_out_of_date(const Feed *feed, const OutboxSeen *seen)
{
	if (!feed->loaded || feed->wrong)
		return feed_is_idle(feed) || feed->wrong;
	return !feed_has_row(feed, &seen->row) ||
		(seen->due_at != 0 && !feed->ask_due && feed->due_batches == NIL &&
		 !feed->endpoint->breaker.open &&
		 (feed->next_due_at == 0 || seen->due_at < feed->next_due_at));
}

/*
 * If the feed waits for the endpoint to work again, it begins to lag.
 */
void
feed_load(Feed *feed, const OutboxSubscription *subscription)
{
	feed->active = true;
	feed->ask_due = true;
	feed->wrong = subscription->wrong != NULL;
	if (feed->loaded && !feed_has_row(feed, &subscription->row))
		feed_discard(feed);
	if (feed->loaded)
		return;
	feed->row = subscription->row;
	if (!feed_is_idle(feed) || feed->wrong)
		return;
	Assert(!feed->attached && feed->in_flight == 0);
	feed->loaded = true;
	feed->discarding = feed->gone = false;
	feed->draining = feed->endpoint->breaker.trip_wanted;
	feed->write_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 FEED_WRITE_MS);
	feed->next_due_at = subscription->due_at;
	feed->ask_due = false;
	feed_detach(feed, &subscription->cursor);
	feed->again_to = subscription->again_to;
	if (feed->again_to == 0 && feed_wants_events(feed) &&
		!feed->endpoint->breaker.open &&
		feed->alone_until < GetCurrentTimestamp() &&
		outbox_cursors_equal(&feed->cursor, &feed->head->cursor, true))
		feed_attach(feed);
}

/*
 * Counts the first batches of the queue that can be recorded as a whole.  If
 * they need many rows, some are left for the next pass.
 */
static int
feed_count_whole(const Feed *feed)
{
	int			whole = 0;
	int64		rows = 0;
	ListCell   *cell;

	foreach(cell, feed->new_batches)
	{
		const Batch *batch = lfirst(cell);

		if (!batch_is_finished(batch) ||
			(rows > FEED_ROWS_MAX && !feed->discarding))
			break;
		whole++;
		rows += batch_count(batch) - batch_delivered(batch);
	}
	return whole;
}

/*
 * Writes the partition's row: everything before the first batch that is left
 * is recorded.
 */
static void
feed_write_row(Feed *feed, int64 delivered)
{
	bool		none_left = feed->whole == list_length(feed->new_batches);
	const OutboxCursor *cursor = none_left ? feed_cursor(feed) :
		batch_cursor_before(list_nth(feed->new_batches, feed->whole));
	int			head = none_left && feed->attached ? feed->head->relay :
		OUTBOX_NO_HEAD;

	Assert(cursor->position >= feed->row.position);
	outbox_write_partition(feed->id, cursor, head, delivered, feed->filtered);
	feed->written = (OutboxRow)
	{
		.position = cursor->position,
			.head = head
	};
}

/*
 * Frees the batches that were recorded as a whole.  One of deferred deliveries
 * may have been stopped, and what it did not send is to be read again.
 */
static void
feed_free_finished(Feed *feed)
{
	ListCell   *cell;

	Assert(feed->whole <= list_length(feed->new_batches));
	for (; feed->whole > 0; feed->whole--)
	{
		Assert(batch_is_finished(feed_first_batch(feed)));
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
 * Records what can be recorded of all batches, and the whole of those that
 * feed_count_whole has counted.  Deferred deliveries come first: a new event
 * that waits must see whether one of its key is left.  Returns how many events
 * count as delivered now.
 */
static int64
feed_settle_batches(Feed *feed)
{
	ListCell   *cell;
	int64		delivered = 0;

	foreach(cell, feed->due_batches)
		delivered += batch_settle(lfirst(cell),
								  batch_is_finished(lfirst(cell)));
	foreach(cell, feed->new_batches)
	{
		Batch	   *batch = lfirst(cell);
		bool		whole = foreach_current_index(cell) < feed->whole;

		if (feed->discarding)
			break;
		if (whole || batch_has_news(batch))
			(void) batch_settle(batch, whole);
		if (whole)
			delivered += batch_delivered(batch);
	}
	return delivered;
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
		bool		whole = foreach_current_index(cell) < feed->whole;

		if (feed->discarding)
			break;
		if (whole || batch_has_news(batch))
			batch_settled(batch, whole, feed->due_batches);
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

/*
 * The partition's row is always written: a session that deletes the
 * subscription with an older snapshot, which does not show the new rows of its
 * deliveries, then fails and leaves none of them behind.
 */
void
feed_settle(Feed *feed)
{
	OutboxRow	row;
	int64		delivered;

	feed->breaker_settled = false;
	feed->lock = feed_lock(feed, &row);
	if (feed->lock == OUTBOX_BUSY)
		return;
	feed->gone = feed->lock == OUTBOX_GONE;
	if (feed->gone || (feed->loaded && !feed_has_row(feed, &row)))
		feed_discard(feed);
	if (!feed->loaded)
		feed->row = row;
	feed->whole = feed_count_whole(feed);
	feed->written = (OutboxRow)
	{
		.position = row.position,
			.head = OUTBOX_NO_HEAD
	};
	if (feed->gone)
		return;
	delivered = feed_settle_batches(feed);
	if (feed->loaded)
	{
		feed_settle_breaker(feed);
		feed_write_row(feed, delivered);
		return;
	}
	outbox_count_delivered(feed->id, delivered);
	if (row.head != OUTBOX_NO_HEAD)
		outbox_leave_head_alone(feed->id);
}

void
feed_settled(Feed *feed)
{
	if (feed->lock == OUTBOX_BUSY)
		return;
	feed->ask_due |= feed->due_batches != NIL || feed_rows(feed) > 1;
	if (feed->lock == OUTBOX_LOCKED)
		feed_settled_batches(feed);
	if (feed->breaker_settled)
		endpoint_settled(feed->endpoint);
	feed_free_finished(feed);
	feed->row = feed->written;
	if (feed->loaded)
		feed->filtered = (FilterCounts)
	{
		0
	};
	feed->write_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 FEED_WRITE_MS);
}

/*
 * Starts a batch in its memory, which is current: the chunk and a copy of the
 * subscription.
 */
static Batch *
feed_start_batch(Feed *feed, OutboxChunk chunk, BatchKind kind)
{
	OutboxSubscription *copy =
		outbox_copy_settings(feed->endpoint->settings);

	copy->id = feed->id;
	if (copy->old_until <= GetCurrentTimestamp())
		copy->old_secret = NULL;
	if (copy->old_key_until <= GetCurrentTimestamp())
		copy->old_signing_key = NULL;
	return batch_start(copy, chunk, kind, feed_last_batch(feed),
					   feed->due_batches);
}

/*
 * Does a batch begin where the last one of the queue ends, or later?
 */
pg_attribute_unused()
static bool
feed_goes_on(const Feed *feed, const Batch *batch)
{
	const Batch *last = feed_last_batch(feed);

	return last == NULL || batch_cursor_after(last)->position <=
		batch_cursor_before(batch)->position;
}

static List *
feed_append_batch(Feed *feed, List *batches, Batch *batch,
				  MemoryContext context)
{
	MemoryContext parent = GetMemoryChunkContext(feed);
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
								 ALLOCSET_SMALL_SIZES);
}

bool
feed_filter_passes(Feed *feed, Jsonb *payload)
{
	int64		before_us = feed->filtered.cpu_us;
	bool		passes;

	turn_at(feed->id.subscription);
	passes = filter_passes(feed->endpoint->settings->filter, payload,
						   &feed->filtered);
	turn_at(0);
	feed->filter_us += feed->filtered.cpu_us - before_us;
	if (!passes)
		endpoint_be_busy(feed->endpoint);
	return passes;
}

void
feed_take_page(Feed *feed, const OutboxChunk *whole, List *deliveries)
{
	MemoryContext context = feed_batch_context();
	MemoryContext old = MemoryContextSwitchTo(context);
	OutboxChunk chunk = outbox_empty_part(whole);
	Batch	   *batch;
	ListCell   *cell;

	Assert(feed->attached || feed->together == FEED_READS_TOGETHER);
	foreach(cell, deliveries)
		outbox_chunk_add(&chunk, lfirst(cell));
	batch = feed_start_batch(feed, chunk, BATCH_NEW);
	Assert(feed_goes_on(feed, batch));
	MemoryContextSwitchTo(old);
	feed->new_batches = feed_append_batch(feed, feed->new_batches, batch,
										  context);
	endpoint_be_busy(feed->endpoint);
}

/*
 * The feed can follow the head if it has read exactly what the head has.  Both
 * have read all that one snapshot shows, so the open transactions that they
 * have passed have no rows yet that one of them could have seen.
 */
static void
feed_try_attach(Feed *feed, const OutboxChunk *chunk)
{
	if (!chunk->cut && feed->head->at_end && !feed->draining &&
		feed->again_to == 0 && feed->alone_until < GetCurrentTimestamp() &&
		outbox_cursors_equal(&feed->cursor, &feed->head->cursor, false))
		feed_attach(feed);
}

void
feed_begin_pass(Feed *feed)
{
	feed->together = FEED_CAN_READ_TOGETHER;
}

bool
feed_can_read_together(const Feed *feed)
{
	return feed->together == FEED_CAN_READ_TOGETHER && !feed->attached &&
		feed->again_to == 0 && feed->more && feed_wants_events(feed) &&
		!feed->endpoint->breaker.open;
}

bool
feed_reads_with(const Feed *feed, const Feed *other)
{
	return feed_can_read_together(feed) &&
		outbox_cursors_equal(&feed->cursor, &other->cursor, true);
}

void
feed_move(Feed *feed, const OutboxChunk *chunk)
{
	Assert(chunk->after.position >= feed->cursor.position);
	feed_set_cursor(feed, &chunk->after);
	feed->more = chunk->cut;
	feed_try_attach(feed, chunk);
}

/*
 * Takes note that it has read up to a cursor, which is a copy that it keeps.
 * When it has read all that was perhaps read before, deferred deliveries may be
 * due that were left alone.
 */
static void
feed_note_read(Feed *feed, const OutboxChunk *chunk, OutboxCursor after)
{
	Assert(after.position >= feed->cursor.position);
	if (chunk->moved)
	{
		feed_free_cursor(feed);
		feed->cursor = after;
	}
	else
		pfree(after.stragglers);
	if (feed->again_to == 0 || chunk->cut ||
		feed->cursor.position < feed->again_to)
		return;
	feed->again_to = 0;
	feed->ask_due = true;
}

/*
 * Reads at most max_events new events.  Returns whether there are any.  Once
 * the batch is kept, nothing can fail before the cursor is behind its events:
 * they would be read again, and sent twice.
 */
static bool
feed_read_new(Feed *feed, const OutboxHorizon *horizon, BatchKind kind,
			  int max_events)
{
	MemoryContext context = feed_batch_context();
	MemoryContext old = MemoryContextSwitchTo(context);
	OutboxChunk chunk;
	OutboxCursor after;

	Assert(!feed->attached);
	Assert(kind == BATCH_NEW || kind == BATCH_PROBE_NEW);
	chunk = outbox_read_chunk(horizon, feed->id,
							  feed->endpoint->settings->filter, &feed->cursor,
							  feed->again_to, max_events, feed->max_bytes);
	after = feed_copy_cursor(feed, &chunk.after);
	feed->more = chunk.cut;
	feed->filtered.filtered += chunk.filtered.filtered;
	feed->filtered.errors += chunk.filtered.errors;
	if (chunk.filtered.cpu_us > FEED_FILTER_MS * INT64CONST(1000))
		feed_tire(feed, chunk.filtered.cpu_us);
	if (chunk.count > 0)
	{
		Batch	   *batch = feed_start_batch(feed, chunk, kind);

		Assert(feed_goes_on(feed, batch));
		MemoryContextSwitchTo(old);
		feed->new_batches = feed_append_batch(feed, feed->new_batches, batch,
											  context);
	}
	MemoryContextSwitchTo(old);
	feed_note_read(feed, &chunk, after);
	if (kind == BATCH_NEW)
		feed_try_attach(feed, &chunk);
	if (chunk.count == 0)
		MemoryContextDelete(context);
	return chunk.count > 0;
}

/*
 * Returns the last position that it will not read again from the log.
 */
static int64
feed_passed(const Feed *feed)
{
	int64		passed = feed->cursor.position;

	if (feed->again_to == 0)
		return PG_INT64_MAX;
	for (int i = 0; i < feed->cursor.straggler_count; i++)
		passed = Min(passed, feed->cursor.stragglers[i].from - 1);
	return passed;
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
feed_read_waiting(Feed *feed, BatchKind kind)
{
	Datum		on_their_way = feed_due_positions(feed);
	MemoryContext context = feed_batch_context();
	MemoryContext old = MemoryContextSwitchTo(context);
	OutboxChunk chunk;
	Batch	   *batch = NULL;

	if (kind == BATCH_DUE)
		chunk = outbox_read_due(feed->id, on_their_way, feed_passed(feed),
								feed->max_bytes);
	else if (kind == BATCH_EARLY)
		chunk = outbox_read_early(feed->id, on_their_way, feed_passed(feed),
								  feed->endpoint->settings->recovered_at,
								  feed_event_statuses(), feed->max_bytes);
	else
	{
		Assert(kind == BATCH_PROBE_DUE);
		chunk = outbox_read_longest_waiting(feed->id, feed_passed(feed));
	}
	if (chunk.count > 0)
		batch = feed_start_batch(feed, chunk, kind);
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
	feed->due_batches = feed_append_batch(feed, feed->due_batches, batch,
										  context);
	return true;
}

static void
feed_note_next_due(Feed *feed)
{
	Datum		taken = feed_due_positions(feed);

	feed->next_due_at = outbox_next_due_at(feed->id, taken, feed_passed(feed));
	feed->ask_due = false;
}

/*
 * Reads events that failed before the endpoint worked again, although they are
 * not due yet.  Returns whether there may be more of them.
 */
static bool
feed_read_early(Feed *feed)
{
	TimestampTz recovered_at = feed->endpoint->settings->recovered_at;

	if (feed->tried_early == recovered_at)
		return false;
	if (feed_read_waiting(feed, BATCH_EARLY))
		return true;
	feed->tried_early = recovered_at;
	return false;
}

/*
 * The answers to these are recorded before more is read: the rows of parked
 * events do not tell which of them were delivered.  New events that are
 * parked need not be recorded first; with much traffic each pass has some.
 * Parked events that wait for others do not keep those of other keys from being
 * read.
 */
static bool
feed_can_take_due(const Feed *feed)
{
	int			unchained = 0;
	ListCell   *cell;

	foreach(cell, feed->due_batches)
		unchained += batch_unchained(lfirst(cell));
	return !feed_can_settle_due(feed) && feed_has_room(feed, unchained) &&
		list_length(feed->due_batches) < FEED_DUE_BATCHES_MAX;
}

static bool
feed_wants_due(const Feed *feed, TimestampTz now)
{
	return feed->ask_due ||
		(feed->next_due_at != 0 && feed->next_due_at <= now) ||
		feed->tried_early != feed->endpoint->settings->recovered_at;
}

static void
feed_read_due(Feed *feed)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		early;

	if (!feed_wants_due(feed, now))
		return;
	feed->ask_due = true;
	feed->next_due_at = 0;
	if (!feed_can_take_due(feed))
		return;
	early = feed_read_early(feed);
	feed_note_next_due(feed);
	if (feed->next_due_at != 0 && feed->next_due_at <= now)
	{
		if (feed_read_waiting(feed, BATCH_DUE))
			feed_note_next_due(feed);
		else
			feed->next_due_at = TimestampTzPlusMilliseconds(now, FEED_BUSY_MS);
	}
	if (early)
		feed->next_due_at = now;
}

static bool
feed_probe_new(Feed *feed, const OutboxHorizon *horizon)
{
	return !feed_rests(feed) &&
		feed_read_new(feed, horizon, BATCH_PROBE_NEW, 1) &&
		!batch_is_finished(feed_last_batch(feed));
}

/*
 * Sends one event to an endpoint that fails: a waiting one and a new one in
 * turn.  A new event that is parked does not count.  Returns whether another
 * partition has to be asked for an event.
 */
static bool
feed_probe(Feed *feed, const OutboxHorizon *horizon)
{
	Endpoint   *endpoint = feed->endpoint;
	TimestampTz now = GetCurrentTimestamp();
	bool		found;

	if (!endpoint_may_probe(endpoint, feed, now))
		return false;
	found = endpoint->breaker.probe_new && feed_probe_new(feed, horizon);
	if (!found)
		found = feed_read_waiting(feed, BATCH_PROBE_DUE);
	if (!found && feed_is_idle(feed))
		found = feed_probe_new(feed, horizon);
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
	feed->ask_due = true;
	if (breaker->open)
		breaker->probe.until =
			Max(breaker->probe.until,
				TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											FEED_BUSY_MS));
}

bool
feed_read(Feed *feed, const OutboxHorizon *horizon)
{
	Breaker    *breaker = &feed->endpoint->breaker;

	if (!feed->loaded)
		return false;
	if (feed_is_idle(feed) && !breaker->trip_wanted)
		feed->draining = false;
	feed->max_bytes = feed_share(feed);
	if (feed->max_bytes == 0)
	{
		feed_put_off(feed);
		return false;
	}
	if (breaker->open)
		return feed_probe(feed, horizon);
	if (!feed->attached && feed->together != FEED_HAS_READ_TOGETHER &&
		feed_can_take_events(feed))
		(void) feed_read_new(feed, horizon, BATCH_NEW,
							 endpoint_chunk_max(feed->endpoint));
	if (!feed->draining)
		feed_read_due(feed);
	return feed->busy_until == 0 && !feed->attached && feed->more &&
		feed_can_take_events(feed);
}
