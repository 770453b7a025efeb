/*
 * batch.c
 *		A batch: the events of a chunk, in flight to one subscription.
 *
 * Events of one key are sent one after another: each is chained to the
 * preceding one, in this batch or in a batch ahead of it, and becomes ready
 * when that one is delivered or dead.  If that one has failed and will be
 * retried, the rest of its chain is parked.
 *
 * When the one that failed is due, parked events of its key are read with it
 * and chained to it.  If all of them were read, new events of the key are
 * chained to the last one instead of being parked: so a key whose events keep
 * coming gets back to normal.
 *
 * Events that are scheduled for later are recorded as soon as possible.  The
 * delivery of a new event is recorded only by the partition's move, when the
 * whole batch is finished; if this process dies before, the batch is read and
 * sent again.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "outbox/history.h"
#include "relay/batch.h"

/* The last event of a key in a batch.  Keys with one hash count as one key. */
typedef struct BatchKey
{
	uint64		hash;
	BatchEvent *last;
	/* In batches of deferred deliveries: */
	int			parked;			/* number of parked events */
	bool		left;			/* others may be deferred, too */
	char		status;			/* for simplehash.h */
} BatchKey;

/* The keys of a batch. */
#define SH_PREFIX keys
#define SH_ELEMENT_TYPE BatchKey
#define SH_KEY_TYPE uint64
#define SH_KEY hash
#define SH_HASH_KEY(table, hash) ((uint32) (hash))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

struct Batch
{
	MemoryContext context;
	Size		size;			/* of that, when the batch was started */
	MemoryContextCallback end;
	OutboxSubscription subscription;
	OutboxChunk chunk;
	BatchKind	kind;
	Batch	   *before;
	bool		stopped;
	BatchEvent *items;
	keys_hash  *keys;
	BatchEvent *first_ready;
	BatchEvent *last_ready;
	int			undecided;
	int			news;			/* decided, and to be recorded soon */
	int64		delivered;
	char	   *gone_reason;	/* why the endpoint wants no more, or NULL */
	bool		disabled;		/* the subscription was disabled for that */
};

/* The size of all batches, without their events. */
static Size batches_size;

static bool
batch_is_new(const Batch *batch)
{
	return batch->kind == BATCH_NEW || batch->kind == BATCH_PROBE_NEW;
}

/*
 * Does a failed attempt count for the schedule?
 */
static bool
batch_counts(const Batch *batch)
{
	return batch->kind == BATCH_NEW || batch->kind == BATCH_DUE;
}

static void
batch_queue(BatchEvent *item)
{
	Batch	   *batch = item->batch;

	Assert(!item->decided && !item->sent && item->last_of_key == NULL);
	item->next_ready = NULL;
	if (batch->first_ready == NULL)
		batch->first_ready = item;
	else
		batch->last_ready->next_ready = item;
	batch->last_ready = item;
}

/*
 * Has the outcome of an item to be recorded soon?  Parked items can wait: if
 * the endpoint fails as a whole, they are given back instead.
 */
static bool
batch_is_news(const BatchEvent *item)
{
	if (!item->decided || item->settled ||
		item->result.outcome == OUTBOX_PARKED)
		return false;
	return item->result.outcome != OUTBOX_DELIVERED ||
		!batch_is_new(item->batch);
}

static void
batch_decide(BatchEvent *item, OutboxOutcome outcome)
{
	Assert(!item->decided && item->last_of_key == NULL);
	Assert(item->batch->undecided > 0);
	item->result.outcome = outcome;
	item->decided = true;
	item->batch->undecided--;
	item->batch->news += batch_is_news(item) ? 1 : 0;
	if (outcome == OUTBOX_DELIVERED)
		item->batch->delivered++;
}

/*
 * Must later events of its key be parked because this one is not finished?
 */
static bool
batch_holds_key(const BatchEvent *item)
{
	return item->decided &&
		(item->result.outcome == OUTBOX_RETRY ||
		 item->result.outcome == OUTBOX_PARKED);
}

/*
 * Returns the last event of a key in this batch or the nearest one before it.
 */
static BatchEvent *
batch_last_of_key(const Batch *batch, uint64 hash)
{
	for (; batch != NULL; batch = batch->before)
	{
		BatchKey   *key = keys_lookup(batch->keys, hash);

		if (key != NULL)
			return key->last;
	}
	return NULL;
}

/*
 * Makes an event wait for the last one of its key.
 */
static void
batch_follow(BatchEvent *item, BatchEvent *last)
{
	if (last != NULL && !last->decided)
	{
		Assert(last->next_of_key == NULL);
		last->next_of_key = item;
		item->last_of_key = last;
	}
	else if (last != NULL && batch_holds_key(last))
		batch_decide(item, OUTBOX_PARKED);
	else
		batch_queue(item);
}

static bool
batch_has_key(const BatchEvent *item, const OutboxEvent *event)
{
	return strcmp(item->event->key, event->key) == 0;
}

/*
 * Returns what the newest of these batches (Batch *) of deferred deliveries has
 * of a key, or NULL.
 */
static BatchKey *
batch_find_deferred(List *deferred, uint64 hash)
{
	for (int i = list_length(deferred) - 1; i >= 0; i--)
	{
		const Batch *batch = list_nth(deferred, i);
		BatchKey   *key = keys_lookup(batch->keys, hash);

		if (key != NULL)
			return key;
	}
	return NULL;
}

/*
 * Returns the last deferred delivery of the event's key, if there are none but
 * those in flight.
 */
static BatchEvent *
batch_last_deferred(const OutboxEvent *event, uint64 hash, List *deferred)
{
	const BatchKey *key = batch_find_deferred(deferred, hash);

	if (key == NULL || key->left || !batch_has_key(key->last, event))
		return NULL;
	return key->last;
}

/*
 * Decides whether a new event of a key is sent at once, sent after the last one
 * of its key, or parked.
 */
static void
batch_arrange_new(BatchEvent *item, uint64 hash, List *deferred)
{
	BatchEvent *last = batch_last_of_key(item->batch, hash);
	BatchEvent *last_deferred = NULL;
	bool		found;

	keys_insert(item->batch->keys, hash, &found)->last = item;
	if (item->delivery->blocked)
		last_deferred = batch_last_deferred(item->event, hash, deferred);
	if (item->delivery->blocked && last_deferred == NULL)
		batch_decide(item, OUTBOX_PARKED);
	else
		batch_follow(item, last ? last : last_deferred);
}

/*
 * A deferred delivery is older than the new events of its key and does not wait
 * for them.  The exception is a dead letter that was redriven: it waits if
 * another event of its key is in flight.
 */
static void
batch_arrange_due(BatchEvent *item, uint64 hash, List *deferred)
{
	BatchEvent *last = batch_last_of_key(item->batch->before, hash);
	BatchKey   *other = batch_find_deferred(deferred, hash);
	BatchKey   *key;
	bool		found;

	if ((last && !last->decided) || (other && !other->last->decided))
	{
		batch_decide(item, OUTBOX_PARKED);
		return;
	}
	key = keys_insert(item->batch->keys, hash, &found);
	if (found)
	{
		batch_decide(item, OUTBOX_PARKED);
		return;
	}
	key->last = item;
	key->parked = 0;
	key->left = item->batch->chunk.chain_max == 0;
	batch_queue(item);
}

/*
 * A parked event follows the waiting one of its key.  It is left alone if that
 * one is not sent.
 */
static void
batch_arrange_parked(BatchEvent *item, uint64 hash)
{
	BatchKey   *key = keys_lookup(item->batch->keys, hash);

	if (key == NULL || !batch_has_key(key->last, item->event))
	{
		batch_decide(item, OUTBOX_PARKED);
		return;
	}
	batch_follow(item, key->last);
	key->last = item;
	key->parked++;
	key->left |= key->parked >= item->batch->chunk.chain_max;
}

static uint64
batch_hash_key(const char *key)
{
	return hash_bytes_extended((const unsigned char *) key, strlen(key), 0);
}

/*
 * The event is dead, although it was not sent.
 */
static void
batch_give_up(BatchEvent *item, const char *why)
{
	item->result.error = why;
	item->result.uncounted = true;
	batch_decide(item, OUTBOX_DEAD);
}

static void
batch_arrange(BatchEvent *item, List *deferred)
{
	const OutboxEvent *event = item->event;

	if (event->cancelled)
		batch_decide(item, OUTBOX_CANCELLED);
	else if (event->wrong != NULL)
		batch_give_up(item, event->wrong);
	else if (event->scheduled)
		batch_decide(item, OUTBOX_SCHEDULED);
	else if (!item->delivery->in_order)
		batch_queue(item);
	else if (batch_is_new(item->batch))
		batch_arrange_new(item, batch_hash_key(event->key), deferred);
	else if (item->delivery->blocked)
		batch_arrange_parked(item, batch_hash_key(event->key));
	else
		batch_arrange_due(item, batch_hash_key(event->key), deferred);
}

/*
 * Ends the chains before the items of a batch from a number on.
 */
static void
batch_leave_chains(Batch *batch, int from)
{
	for (int i = from; i < batch->chunk.count; i++)
	{
		if (batch->items[i].last_of_key != NULL)
			batch->items[i].last_of_key->next_of_key = NULL;
	}
}

/*
 * Drops the events from a number on.
 */
static void
batch_drop_events(Batch *batch, int from)
{
	for (int i = from; i < batch->chunk.count; i++)
	{
		OutboxEvent *event = batch->chunk.deliveries[i].event;

		batch->chunk.bytes -= event->bytes;
		outbox_event_drop(event);
	}
}

/*
 * Called when the memory of a batch is freed, which an error while it starts
 * does, too.  Then other batches and the events must not refer to it any more.
 */
static void
batch_end(void *arg)
{
	Batch	   *batch = arg;

	batch_leave_chains(batch, 0);
	batch_drop_events(batch, 0);
	Assert(batches_size >= batch->size);
	batches_size -= batch->size;
}

Batch *
batch_start(const OutboxSubscription *subscription, OutboxChunk chunk,
			BatchKind kind, Batch *before, List *deferred)
{
	Batch	   *batch = palloc0(sizeof(Batch));

	Assert(before == NULL || batch_is_new(before));
	batch->context = CurrentMemoryContext;
	batch->subscription = *subscription;
	batch->chunk = chunk;
	batch->kind = kind;
	batch->before = before;
	batch->items = palloc0((chunk.count + 1) * sizeof(BatchEvent));
	batch->keys = keys_create(batch->context, 1, NULL);
	batch->undecided = chunk.count;
	batch->end.func = batch_end;
	batch->end.arg = batch;
	for (int i = 0; i < chunk.count; i++)
		outbox_event_keep(chunk.deliveries[i].event);
	MemoryContextRegisterResetCallback(batch->context, &batch->end);
	for (int i = 0; i < chunk.count; i++)
	{
		BatchEvent *item = &batch->items[i];

		item->batch = batch;
		item->delivery = &batch->chunk.deliveries[i];
		item->event = item->delivery->event;
		item->result.attempts = item->delivery->attempts;
		batch_arrange(item, deferred);
	}
	if (!batch_is_new(batch))
		batch->before = NULL;
	batch->size = MemoryContextMemAllocated(batch->context, true);
	batches_size += batch->size;
	return batch;
}

/*
 * Makes the next item of a chain ready, or parks the rest of the chain.  The
 * next one may be in the same request, or in one that is sent later.
 */
static void
batch_follow_chain(BatchEvent *item)
{
	BatchEvent *next;

	while ((next = item->next_of_key) != NULL)
	{
		item->next_of_key = NULL;
		next->last_of_key = NULL;
		if (!batch_holds_key(item) && next->sent)
			return;
		if (!batch_holds_key(item) && !next->batch->stopped)
		{
			batch_queue(next);
			return;
		}
		batch_decide(next, OUTBOX_PARKED);
		item = next;
	}
}

/*
 * Keeps the answer for the settlement.  Its text counts as memory of the batch.
 */
static void
batch_note_answer(BatchEvent *item, const HttpResponse *response)
{
	Batch	   *batch = item->batch;
	OutboxResult *result = &item->result;

	result->status = response->status;
	result->duration_ms = response->duration_ms;
	if (batch->subscription.keeps_deliveries)
		result->at = GetCurrentTimestamp();
	if (response->excerpt[0] == '\0')
		return;
	result->answer = MemoryContextStrdup(batch->context, response->excerpt);
	batch->size += strlen(result->answer);
	batches_size += strlen(result->answer);
}

/*
 * The error text must not quote the answer, which may quote the event.  The
 * start of the answer is stored separately, for the owner only.
 */
static void
batch_note_failure(BatchEvent *item, const HttpResponse *response)
{
	const OutboxSubscription *subscription = &item->batch->subscription;
	OutboxResult *result = &item->result;
	MemoryContext old = MemoryContextSwitchTo(item->batch->context);

	batch_note_answer(item, response);
	if (response->error[0] != '\0')
		result->error = pstrdup(response->error);
	else
		result->error = psprintf("answered %d", response->status);
	result->delay_ms = retry_delay_ms(subscription->schedule_ms,
									  subscription->schedule_count,
									  result->attempts,
									  response->retry_after_s,
									  pg_prng_double(&pg_global_prng_state));
	MemoryContextSwitchTo(old);
}

/*
 * The attempt does not count.  A deferred delivery keeps its time, unless the
 * endpoint has asked for a later one.
 */
static void
batch_uncount(BatchEvent *item, int retry_after_s)
{
	OutboxResult *result = &item->result;

	result->uncounted = true;
	result->attempts--;
	if (!batch_is_new(item->batch))
		result->delay_ms = retry_asked_ms(retry_after_s);
	else if (item->shortened)
		result->delay_ms = 0;
}

/*
 * A deferred delivery that was told to end stays as it was.  After 410 the
 * event is kept, since the subscription may be resumed.
 */
static void
batch_decide_failure(BatchEvent *item, const HttpResponse *response,
					 RetryClass class)
{
	Batch	   *batch = item->batch;
	OutboxResult *result = &item->result;

	Assert(item->sent);
	item->shortened &= response->status == 0;
	if (item->shortened && !batch_is_new(batch))
	{
		batch_decide(item, OUTBOX_PARKED);
		return;
	}
	result->attempts++;
	batch_note_failure(item, response);
	if (class == RETRY_GONE && batch->gone_reason == NULL)
		batch->gone_reason =
			MemoryContextStrdup(batch->context,
								"the endpoint answered 410 Gone");
	if (!batch_counts(batch) || item->shortened)
		batch_uncount(item, response->retry_after_s);
	if (class == RETRY_GONE || result->uncounted)
		result->delay_ms = Max(result->delay_ms, 0);
	batch_decide(item, result->delay_ms < 0 ? OUTBOX_DEAD : OUTBOX_RETRY);
}

void
batch_fail(BatchEvent *item, const HttpResponse *response, RetryClass class)
{
	batch_decide_failure(item, response, class);
	batch_follow_chain(item);
}

void
batch_deliver(BatchEvent *item, const HttpResponse *response)
{
	Assert(item->sent);
	item->result.attempts++;
	if (item->batch->subscription.keeps_deliveries)
		batch_note_answer(item, response);
	batch_decide(item, OUTBOX_DELIVERED);
	batch_follow_chain(item);
}

const OutboxSubscription *
batch_subscription(const Batch *batch)
{
	return &batch->subscription;
}

bool
batch_is_stopped(const Batch *batch)
{
	return batch->stopped;
}

BatchEvent *
batch_first_ready(const Batch *batch)
{
	return batch->first_ready;
}

void
batch_take_ready(BatchEvent *item, BatchEvent *before)
{
	Batch	   *batch = item->batch;

	Assert(item == (before ? before->next_ready : batch->first_ready));
	if (before == NULL)
		batch->first_ready = item->next_ready;
	else
		before->next_ready = item->next_ready;
	if (batch->last_ready == item)
		batch->last_ready = before;
}

bool
batch_has_expired(const BatchEvent *item)
{
	return item->event->expires_at != 0 &&
		item->event->expires_at <= GetCurrentTimestamp();
}

void
batch_expire(BatchEvent *item)
{
	batch_give_up(item, OUTBOX_EXPIRED);
	batch_follow_chain(item);
}

/*
 * Fills the table of keys again, with the first items.  Events that are read
 * later must not wait for an item that was dropped.
 */
static void
batch_note_keys(Batch *batch, int count)
{
	keys_reset(batch->keys);
	for (int i = 0; i < count; i++)
	{
		BatchEvent *item = &batch->items[i];
		bool		found;

		if (!item->delivery->in_order || item->event->wrong != NULL)
			continue;
		keys_insert(batch->keys, batch_hash_key(item->event->key),
					&found)->last = item;
	}
}

bool
batch_cut(Batch *batch)
{
	BatchEvent *ready = batch->first_ready;
	int			kept = batch->chunk.count;

	Assert(batch_is_new(batch));
	while (kept > 0 && !batch->items[kept - 1].sent &&
		   !batch->items[kept - 1].settled)
		kept--;
	batch_leave_chains(batch, kept);
	if (kept == 0)
		return false;
	if (kept == batch->chunk.count)
		return true;
	for (int i = kept; i < batch->chunk.count; i++)
		batch->undecided -= batch->items[i].decided ? 0 : 1;
	Assert(batch->undecided >= 0);
	batch->first_ready = NULL;
	while (ready != NULL)
	{
		BatchEvent *next = ready->next_ready;

		if (ready - batch->items < kept)
			batch_queue(ready);
		ready = next;
	}
	batch_note_keys(batch, kept);
	batch_drop_events(batch, kept);
	outbox_cut_chunk(&batch->chunk, kept);
	return true;
}

void
batch_stop(Batch *batch)
{
	batch->stopped = true;
	while (batch->first_ready != NULL)
	{
		BatchEvent *item = batch->first_ready;

		batch->first_ready = item->next_ready;
		batch_decide(item, OUTBOX_PARKED);
		batch_follow_chain(item);
	}
}

void
batch_take_back(BatchEvent *item)
{
	item->sent = false;
	if (item->decided || item->last_of_key != NULL)
		return;
	batch_queue(item);
	if (item->batch->stopped)
		batch_stop(item->batch);
}

void
batch_is_first(Batch *batch)
{
	batch->before = NULL;
}

bool
batch_is_finished(const Batch *batch)
{
	return batch->undecided == 0;
}

int
batch_undecided(const Batch *batch)
{
	return batch->undecided;
}

int
batch_unchained(const Batch *batch)
{
	int			count = 0;

	for (int i = 0; i < batch->chunk.count; i++)
	{
		const BatchEvent *item = &batch->items[i];

		count += !item->decided && item->last_of_key == NULL ? 1 : 0;
	}
	return count;
}

int
batch_count(const Batch *batch)
{
	return batch->chunk.count;
}

int
batch_rows(const Batch *batch)
{
	if (!batch_is_new(batch) || !batch_is_finished(batch))
		return batch->news;
	if (batch->subscription.keeps_deliveries)
		return batch->chunk.count;
	return batch->chunk.count - batch->delivered;
}

Size
batch_bytes(const Batch *batch)
{
	return batch->chunk.bytes;
}

Size
batches_bytes(void)
{
	return batches_size;
}

int64
batch_delivered(const Batch *batch)
{
	return batch->delivered;
}

const OutboxCursor *
batch_cursor_before(const Batch *batch)
{
	return &batch->chunk.before;
}

const OutboxCursor *
batch_cursor_after(const Batch *batch)
{
	return &batch->chunk.after;
}

bool
batch_has_news(const Batch *batch)
{
	return batch->news > 0;
}

/*
 * Logs only what monitors may see: nothing of the event, the answer or the
 * secret.
 */
static void
batch_report_dead(const BatchEvent *item)
{
	Assert(item->result.error != NULL);
	ereport(LOG,
			(errmsg("event %lld is dead for subscription \"%s\" after attempt %d: %s",
					(long long) item->event->position,
					item->batch->subscription.name, item->result.attempts,
					item->result.error)));
}

static bool
batch_is_to_settle(const BatchEvent *item, bool whole)
{
	return batch_is_news(item) || (whole && !item->settled);
}

/*
 * Records outcomes of deferred deliveries.  Returns how many were delivered.
 */
static int64
batch_settle_deferred(Batch *batch, bool whole)
{
	OutboxPartitionId id = batch->subscription.id;
	List	   *delivered = NIL;
	List	   *ended = NIL;

	for (int i = 0; i < batch->chunk.count; i++)
	{
		BatchEvent *item = &batch->items[i];
		void	   *delivery = (void *) item->delivery;

		if (!batch_is_to_settle(item, whole) ||
			item->result.outcome == OUTBOX_PARKED)
			continue;			/* a row that was not sent does not change */
		if (item->result.outcome == OUTBOX_DELIVERED)
			delivered = lappend(delivered, delivery);
		else
			outbox_settle_due(id, item->delivery, &item->result);
		if (item->result.outcome != OUTBOX_RETRY && item->delivery->in_order)
			ended = lappend(ended, delivery);
	}
	outbox_delete_delivered(id, delivered);
	outbox_release_keys(id, ended);
	return list_length(delivered);
}

static void
batch_settle_new(Batch *batch, bool whole)
{
	for (int i = 0; i < batch->chunk.count; i++)
	{
		BatchEvent *item = &batch->items[i];

		if (batch_is_to_settle(item, whole))
			outbox_settle_new(batch->subscription.id, item->delivery,
							  &item->result);
	}
}

/*
 * Adds the attempts that are settled to the history.
 */
static void
batch_keep_attempts(const Batch *batch, bool whole)
{
	OutboxAttempt *attempts;
	int			count = 0;

	if (!batch->subscription.keeps_deliveries)
		return;
	attempts = palloc((batch->chunk.count + 1) * sizeof(OutboxAttempt));
	for (int i = 0; i < batch->chunk.count; i++)
	{
		const BatchEvent *item = &batch->items[i];

		if (!batch_is_to_settle(item, whole) || item->result.at == 0)
			continue;
		attempts[count].position = item->event->position;
		attempts[count++].result = &item->result;
	}
	outbox_keep_attempts(batch->subscription.id.subscription, attempts, count,
						 batch_is_new(batch));
	pfree(attempts);
}

int64
batch_settle(Batch *batch, bool whole)
{
	int64		deleted = 0;

	Assert(!whole || batch_is_finished(batch));
	batch_keep_attempts(batch, whole);
	if (batch_is_new(batch))
		batch_settle_new(batch, whole);
	else
		deleted = batch_settle_deferred(batch, whole);
	batch->disabled = batch->gone_reason != NULL &&
		outbox_disable(batch->subscription.id.subscription,
					   batch->subscription.version, batch->gone_reason);
	return deleted;
}

/*
 * A new event that has become a deferred delivery comes after those of its key
 * that are in flight, so later events must not be chained to these.
 */
static void
batch_note_deferred(const BatchEvent *item, List *deferred)
{
	uint64		hash;
	ListCell   *cell;

	if (!batch_holds_key(item) || !item->delivery->in_order)
		return;
	hash = batch_hash_key(item->event->key);
	foreach(cell, deferred)
	{
		const Batch *batch = lfirst(cell);
		BatchKey   *key = keys_lookup(batch->keys, hash);

		if (key != NULL)
			key->left = true;
	}
}

void
batch_settled(Batch *batch, bool whole, List *deferred)
{
	Assert(!whole || batch_is_finished(batch));
	for (int i = 0; i < batch->chunk.count; i++)
	{
		BatchEvent *item = &batch->items[i];

		if (!batch_is_to_settle(item, whole))
			continue;
		item->settled = true;
		if (batch_is_new(batch))
			batch_note_deferred(item, deferred);
		if (item->result.outcome == OUTBOX_DEAD)
			batch_report_dead(item);
	}
	batch->news = 0;
	if (batch->disabled)
		ereport(LOG,
				(errmsg("subscription \"%s\" is disabled: %s",
						batch->subscription.name, batch->gone_reason)));
}

List *
batch_open_events(const Batch *batch, List *events)
{
	for (int i = 0; i < batch->chunk.count; i++)
	{
		if (!batch->items[i].settled)
			events = lappend(events, batch->chunk.deliveries[i].event);
	}
	return events;
}

void
batch_free(Batch *batch)
{
	MemoryContextDelete(batch->context);
}
