/*
 * run.c
 *		A run: a batch of events in flight to one subscription.
 *
 * Events of one key are sent one after another: each is chained to the
 * preceding one, in this run or in a run ahead of it, and becomes ready when
 * that one is delivered or dead.  If that one has failed and will be retried,
 * the rest of its chain is parked.  Events that are scheduled for later are
 * recorded as soon as possible.  The delivery of a new event is recorded only
 * by the partition's move, when the whole run is finished; if this process dies
 * before, the run is read and sent again.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "relay/message.h"
#include "relay/run.h"

typedef struct RunItem
{
	Run		   *run;
	const OutboxEvent *event;
	OutboxResult result;
	bool		sent;
	bool		decided;
	bool		settled;		/* recorded */
	struct RunItem *next_of_key;	/* waits for this one */
	struct RunItem *next_ready; /* in the queue of ready items */
} RunItem;

/* The last event of a key in a run.  Keys with one hash count as one key. */
typedef struct RunKey
{
	uint64		hash;
	RunItem    *last;
} RunKey;

struct Run
{
	MemoryContext context;
	MemoryContext message_context;	/* reset for each request */
	OutboxSubscription subscription;
	OutboxBatch batch;
	OutboxCursor *extended;		/* where it has moved to since, or NULL */
	RunKind		kind;
	Run		   *before;
	void	   *owner;
	bool		stopped;
	RunItem    *items;
	HTAB	   *keys;			/* of RunKey */
	RunItem    *first_ready;
	RunItem    *last_ready;
	int			undecided;
	int			news;			/* decided, and to be recorded soon */
	int			in_flight;
	int64		delivered;
	char	   *gone_reason;	/* why the endpoint wants no more, or NULL */
	bool		disabled;		/* the subscription was disabled for that */
};

static bool
run_is_new(const Run *run)
{
	return run->kind == RUN_NEW || run->kind == RUN_PROBE_NEW;
}

static bool
run_is_probe(const Run *run)
{
	return run->kind == RUN_PROBE_NEW || run->kind == RUN_PROBE_DUE;
}

static void
run_queue(RunItem *item)
{
	Run		   *run = item->run;

	item->next_ready = NULL;
	if (run->first_ready == NULL)
		run->first_ready = item;
	else
		run->last_ready->next_ready = item;
	run->last_ready = item;
}

/*
 * Has the outcome of an item to be recorded soon?  Parked items can wait: if
 * the endpoint fails as a whole, they are given back instead.
 */
static bool
run_is_news(const RunItem *item)
{
	if (!item->decided || item->settled || item->result.fate == OUTBOX_PARKED)
		return false;
	return item->result.fate != OUTBOX_DELIVERED || !run_is_new(item->run);
}

static void
run_decide(RunItem *item, OutboxFate fate)
{
	Assert(!item->decided);
	item->result.fate = fate;
	item->decided = true;
	item->run->undecided--;
	item->run->news += run_is_news(item) ? 1 : 0;
	if (fate == OUTBOX_DELIVERED)
		item->run->delivered++;
}

/*
 * Must later events of its key be parked because this one is not finished?
 */
static bool
run_holds_key(const RunItem *item)
{
	return item->decided &&
		(item->result.fate == OUTBOX_RETRY ||
		 item->result.fate == OUTBOX_PARKED);
}

/*
 * Returns the last event of a key in this run or the nearest one before it.
 */
static RunItem *
run_last_of_key(const Run *run, uint64 hash)
{
	for (; run != NULL; run = run->before)
	{
		RunKey	   *key = hash_search(run->keys, &hash, HASH_FIND, NULL);

		if (key != NULL)
			return key->last;
	}
	return NULL;
}

/*
 * Decides whether a new event of a key is sent at once, sent after the last one
 * of its key, or parked.
 */
static void
run_arrange_new(RunItem *item, uint64 hash)
{
	RunItem    *last = run_last_of_key(item->run, hash);
	RunKey	   *key = hash_search(item->run->keys, &hash, HASH_ENTER, NULL);

	key->last = item;
	if (item->event->blocked || (last && run_holds_key(last)))
		run_decide(item, OUTBOX_PARKED);
	else if (last && !last->decided)
		last->next_of_key = item;
	else
		run_queue(item);
}

/*
 * A deferred delivery is older than the new events of its key and does not
 * wait for them.  The exception is a dead letter that was redriven: it waits
 * if a new event of its key is in flight.
 */
static void
run_arrange_due(RunItem *item, uint64 hash)
{
	RunItem    *last = run_last_of_key(item->run->before, hash);

	if (last && !last->decided)
		run_decide(item, OUTBOX_PARKED);
	else
		run_queue(item);
}

static void
run_arrange(RunItem *item)
{
	const OutboxEvent *event = item->event;
	uint64		hash;

	if (event->wrong != NULL)
	{
		item->result.error = event->wrong;
		item->result.uncounted = true;
		run_decide(item, OUTBOX_DEAD);
	}
	else if (event->scheduled)
		run_decide(item, OUTBOX_SCHEDULED);
	else if (!event->in_order)
		run_queue(item);
	else
	{
		hash = hash_bytes_extended((const unsigned char *) event->key,
								   strlen(event->key), 0);
		if (run_is_new(item->run))
			run_arrange_new(item, hash);
		else
			run_arrange_due(item, hash);
	}
}

static HTAB *
run_create_keys(int count)
{
	HASHCTL		control = {0};

	control.keysize = sizeof(uint64);
	control.entrysize = sizeof(RunKey);
	control.hcxt = CurrentMemoryContext;
	return hash_create("idempotency keys of a run", count, &control,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

Run *
run_start(const OutboxSubscription *subscription, OutboxBatch batch,
		  RunKind kind, Run *before, void *owner)
{
	Run		   *run = palloc0(sizeof(Run));

	run->context = CurrentMemoryContext;
	run->message_context = AllocSetContextCreate(run->context, "idempotency message",
												 ALLOCSET_DEFAULT_SIZES);
	run->subscription = *subscription;
	run->batch = batch;
	run->kind = kind;
	run->before = before;
	run->owner = owner;
	run->items = palloc0((batch.count + 1) * sizeof(RunItem));
	run->keys = run_create_keys(batch.count);
	run->undecided = batch.count;
	for (int i = 0; i < batch.count; i++)
	{
		RunItem    *item = &run->items[i];

		item->run = run;
		item->event = &run->batch.events[i];
		item->result.attempts = item->event->attempts;
		run_arrange(item);
	}
	if (!run_is_new(run))
		run->before = NULL;
	return run;
}

/*
 * Makes the next item of a chain ready, or parks the rest of the chain.
 */
static void
run_follow_chain(RunItem *item)
{
	RunItem    *next;

	while ((next = item->next_of_key) != NULL)
	{
		item->next_of_key = NULL;
		if (!run_holds_key(item) && !next->run->stopped)
		{
			run_queue(next);
			return;
		}
		run_decide(next, OUTBOX_PARKED);
		item = next;
	}
}

/*
 * The error text must not quote the answer, which may quote the event.  The
 * start of the answer is stored separately, for the owner only.
 */
static void
run_note_failure(RunItem *item, const HttpResponse *response)
{
	const OutboxSubscription *subscription = &item->run->subscription;
	OutboxResult *result = &item->result;
	MemoryContext old = MemoryContextSwitchTo(item->run->context);

	result->status = response->status;
	result->duration_ms = response->duration_ms;
	if (response->error[0] != '\0')
		result->error = pstrdup(response->error);
	else
		result->error = psprintf("answered %d", response->status);
	if (response->excerpt[0] != '\0')
		result->answer = pstrdup(response->excerpt);
	result->delay_ms = retry_delay_ms(subscription->schedule_ms,
									  subscription->schedule_count,
									  result->attempts,
									  response->retry_after_s,
									  pg_prng_double(&pg_global_prng_state));
	MemoryContextSwitchTo(old);
}

/*
 * After 410 the event is kept, since the subscription may be resumed.  A failed
 * probe has no consequence for its event.
 */
static void
run_fail(RunItem *item, const HttpResponse *response, RetryVerdict verdict)
{
	Run		   *run = item->run;
	OutboxResult *result = &item->result;

	run_note_failure(item, response);
	if (verdict == RETRY_GONE && run->gone_reason == NULL)
		run->gone_reason = MemoryContextStrdup(run->context,
											   "the endpoint answered 410 Gone");
	if (verdict == RETRY_GONE || run_is_probe(run))
		result->delay_ms = Max(result->delay_ms, 0);
	if (run_is_probe(run))
	{
		result->uncounted = true;
		result->attempts--;
	}
	run_decide(item, result->delay_ms < 0 ? OUTBOX_DEAD : OUTBOX_RETRY);
}

RunAnswer
run_take_response(const HttpResponse *response)
{
	RunItem    *item = response->tag;
	Run		   *run = item->run;
	RunAnswer	answer;

	answer.owner = run->owner;
	answer.verdict = retry_judge(response->status);
	answer.first_attempt = run_is_new(run);
	answer.blames_event = retry_blames_event(response->status);
	answer.overloaded = retry_tells_overload(response->status);
	answer.retry_after_s = response->retry_after_s;
	run->in_flight--;
	item->result.attempts++;
	if (answer.verdict == RETRY_DONE)
		run_decide(item, OUTBOX_DELIVERED);
	else
		run_fail(item, response, answer.verdict);
	run_follow_chain(item);
	return answer;
}

/*
 * Sends one item, or makes it fail as if it had been answered.
 */
static void
run_send_item(RunItem *item, const char *identity)
{
	Run		   *run = item->run;
	MemoryContext old = MemoryContextSwitchTo(run->message_context);
	HttpRequest request = {.tag = item};

	item->sent = true;
	run->in_flight++;
	if (message_build(&run->subscription, item->event, identity, &request))
		http_submit(&request);
	else
	{
		HttpResponse failure = {.tag = item};

		strlcpy(failure.error, "the subscription's secret cannot sign",
				sizeof(failure.error));
		(void) run_take_response(&failure);
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(run->message_context);
}

int
run_send(Run *run, int room, const char *identity)
{
	int			sent = 0;

	while (sent < room && run->first_ready != NULL)
	{
		RunItem    *item = run->first_ready;

		run->first_ready = item->next_ready;
		run_send_item(item, identity);
		sent++;
	}
	return sent;
}

/*
 * Makes this run and those before it forget items of this run from a number on.
 */
static void
run_forget_items(Run *run, int from)
{
	for (Run *other = run; other != NULL; other = other->before)
	{
		for (int i = 0; i < other->batch.count; i++)
		{
			RunItem    *next = other->items[i].next_of_key;

			if (next && next->run == run && next - run->items >= from)
				other->items[i].next_of_key = NULL;
		}
	}
}

bool
run_cut(Run *run)
{
	RunItem    *ready = run->first_ready;
	int			kept = run->batch.count;

	Assert(run_is_new(run));
	while (kept > 0 && !run->items[kept - 1].sent &&
		   !run->items[kept - 1].settled)
		kept--;
	run_forget_items(run, kept);
	if (kept == 0)
		return false;
	if (kept == run->batch.count)
		return true;
	for (int i = kept; i < run->batch.count; i++)
		run->undecided -= run->items[i].decided ? 0 : 1;
	run->first_ready = NULL;
	while (ready != NULL)
	{
		RunItem    *next = ready->next_ready;

		if (ready - run->items < kept)
			run_queue(ready);
		ready = next;
	}
	outbox_stop_batch(&run->batch, kept);
	run->extended = NULL;
	return true;
}

void
run_stop(Run *run)
{
	run->stopped = true;
	while (run->first_ready != NULL)
	{
		RunItem    *item = run->first_ready;

		run->first_ready = item->next_ready;
		run_decide(item, OUTBOX_PARKED);
		run_follow_chain(item);
	}
}

void
run_extend(Run *run, const OutboxCursor *after)
{
	MemoryContext old = MemoryContextSwitchTo(run->context);

	if (run->extended == NULL)
		run->extended = palloc(sizeof(OutboxCursor));
	else
		pfree(run->extended->stragglers);
	*run->extended = outbox_copy_cursor(after);
	MemoryContextSwitchTo(old);
}

void
run_is_first(Run *run)
{
	run->before = NULL;
}

bool
run_is_finished(const Run *run)
{
	return run->undecided == 0;
}

int
run_in_flight(const Run *run)
{
	return run->in_flight;
}

int
run_undecided(const Run *run)
{
	return run->undecided;
}

int
run_count(const Run *run)
{
	return run->batch.count;
}

Size
run_bytes(const Run *run)
{
	return run->batch.bytes;
}

int64
run_delivered(const Run *run)
{
	return run->delivered;
}

const OutboxCursor *
run_cursor_before(const Run *run)
{
	return &run->batch.before;
}

const OutboxCursor *
run_cursor_after(const Run *run)
{
	return run->extended ? run->extended : &run->batch.after;
}

bool
run_has_news(const Run *run)
{
	return run->news > 0;
}

/*
 * Logs only what monitors may see: nothing of the event, the answer or the
 * secret.
 */
static void
run_report_dead(const RunItem *item)
{
	ereport(LOG,
			(errmsg("event %lld is dead for subscription \"%s\" after attempt %d: %s",
					(long long) item->event->position,
					item->run->subscription.name, item->result.attempts,
					item->result.error)));
}

static bool
run_is_to_settle(const RunItem *item, bool whole)
{
	return run_is_news(item) || (whole && !item->settled);
}

static void
run_settle_item(RunItem *item)
{
	const OutboxSubscription *subscription = &item->run->subscription;

	if (run_is_new(item->run))
		outbox_settle_new(subscription->id, item->event, &item->result);
	else
		outbox_settle_due(subscription->id, item->event, &item->result);
}

int64
run_settle(Run *run, bool whole)
{
	int64		deleted = 0;

	Assert(!whole || run_is_finished(run));
	for (int i = 0; i < run->batch.count; i++)
	{
		RunItem    *item = &run->items[i];

		if (!run_is_to_settle(item, whole))
			continue;
		run_settle_item(item);
		if (!run_is_new(run) && item->result.fate == OUTBOX_DELIVERED)
			deleted++;
	}
	run->disabled = run->gone_reason != NULL &&
		outbox_disable(run->subscription.id.subscription, run->gone_reason);
	return deleted;
}

void
run_settled(Run *run, bool whole)
{
	for (int i = 0; i < run->batch.count; i++)
	{
		RunItem    *item = &run->items[i];

		if (!run_is_to_settle(item, whole))
			continue;
		item->settled = true;
		if (item->result.fate == OUTBOX_DEAD)
			run_report_dead(item);
	}
	run->news = 0;
	if (run->disabled)
		ereport(LOG,
				(errmsg("subscription \"%s\" is disabled: %s",
						run->subscription.name, run->gone_reason)));
}

List *
run_positions(const Run *run, List *positions)
{
	for (int i = 0; i < run->batch.count; i++)
	{
		if (!run->items[i].settled)
			positions = lappend(positions, (void *) run->items[i].event);
	}
	return positions;
}

void
run_free(Run *run)
{
	MemoryContextDelete(run->context);
}
