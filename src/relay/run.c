/*
 * run.c
 *		A batch of events on its way to one subscription.
 *
 * Events of one key go one after another: each is chained to the one before
 * it, and becomes ready when that is delivered or dead.  When it has failed,
 * and will be retried, the rest of its chain is parked with it.  Nothing is
 * written before the whole run is finished; if this process dies, its events
 * are read and sent again.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "utils/memutils.h"

#include "relay/message.h"
#include "relay/retry.h"
#include "relay/run.h"

#define RUN_NONE (-1)

typedef struct RunItem
{
	Run		   *run;
	const OutboxEvent *event;
	OutboxResult result;
	int			next_of_key;	/* the item chained to this one, or RUN_NONE */
	int			next_ready;		/* the item behind it in the queue, or RUN_NONE */
} RunItem;

struct Run
{
	MemoryContext context;
	MemoryContext message_context;	/* reset for each request */
	OutboxSubscription subscription;
	OutboxBatch batch;
	bool		is_new;
	bool		abandoned;
	RunItem    *items;
	int			first_ready;
	int			last_ready;
	int			undecided;
	int			in_flight;
	char	   *gone_reason;	/* the endpoint wants no more */
};

static void
run_queue(Run *run, int index)
{
	run->items[index].next_ready = RUN_NONE;
	if (run->first_ready == RUN_NONE)
		run->first_ready = index;
	else
		run->items[run->last_ready].next_ready = index;
	run->last_ready = index;
}

static void
run_decide(RunItem *item, OutboxFate fate)
{
	item->result.fate = fate;
	item->run->undecided--;
}

/*
 * Chains item number index to the last one before it of the same key that is
 * to be sent.  Returns false if there is none.
 */
static bool
run_chain(Run *run, int index, const uint32 *hashes)
{
	const char *key = run->items[index].event->key;

	for (int i = index - 1; i >= 0; i--)
	{
		RunItem    *before = &run->items[i];

		if (hashes[i] != hashes[index] || !before->event->in_order ||
			before->event->blocked || strcmp(before->event->key, key) != 0)
			continue;
		before->next_of_key = index;
		return true;
	}
	return false;
}

/*
 * Decides about each event whether it goes at once, after another, or not.
 */
static void
run_arrange(Run *run)
{
	uint32	   *hashes = palloc0((run->batch.count + 1) * sizeof(uint32));

	for (int i = 0; i < run->batch.count; i++)
	{
		const OutboxEvent *event = &run->batch.events[i];
		RunItem    *item = &run->items[i];

		item->run = run;
		item->event = event;
		item->next_of_key = RUN_NONE;
		item->result.attempts = event->attempts;
		if (event->in_order)
			hashes[i] = hash_bytes((const unsigned char *) event->key,
								   strlen(event->key));
		if (event->scheduled)
			run_decide(item, OUTBOX_SCHEDULED);
		else if (event->blocked)
			run_decide(item, OUTBOX_PARKED);
		else if (!event->in_order || !run_chain(run, i, hashes))
			run_queue(run, i);
	}
	pfree(hashes);
}

Run *
run_start(const OutboxSubscription *subscription, OutboxBatch batch,
		  bool is_new, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	Run		   *run = palloc0(sizeof(Run));

	run->context = context;
	run->message_context = AllocSetContextCreate(context, "idempotency message",
												 ALLOCSET_DEFAULT_SIZES);
	run->subscription = *subscription;
	run->batch = batch;
	run->is_new = is_new;
	run->items = palloc0((batch.count + 1) * sizeof(RunItem));
	run->first_ready = RUN_NONE;
	run->undecided = batch.count;
	run_arrange(run);
	MemoryContextSwitchTo(old);
	return run;
}

/*
 * Lets the rest of a chain go on, or parks it.
 */
static void
run_follow_chain(RunItem *item)
{
	Run		   *run = item->run;
	int			next = item->next_of_key;

	if (next == RUN_NONE)
		return;
	if (item->result.fate != OUTBOX_RETRY && !run->abandoned)
	{
		run_queue(run, next);
		return;
	}
	for (; next != RUN_NONE; next = run->items[next].next_of_key)
		run_decide(&run->items[next], OUTBOX_PARKED);
}

static void
run_note_failure(RunItem *item, const HttpResponse *response)
{
	const OutboxSubscription *subscription = &item->run->subscription;
	OutboxResult *result = &item->result;
	MemoryContext old = MemoryContextSwitchTo(item->run->context);

	result->status = response->status;
	if (response->error[0] != '\0')
		result->error = pstrdup(response->error);
	else
		result->error = psprintf("answered %d: %s", response->status,
								 response->excerpt);
	result->delay_ms = retry_delay_ms(subscription->schedule_ms,
									  subscription->schedule_count,
									  result->attempts,
									  response->retry_after_s,
									  pg_prng_double(&pg_global_prng_state));
	MemoryContextSwitchTo(old);
}

/*
 * An endpoint that is gone keeps its event, should it be resumed one day.
 */
static void
run_note_gone(RunItem *item)
{
	Run		   *run = item->run;

	item->result.delay_ms = 0;
	if (run->gone_reason == NULL)
		run->gone_reason = MemoryContextStrdup(run->context,
											   "the endpoint answered 410 Gone");
	run_abandon(run);
}

void
run_take_response(const HttpResponse *response)
{
	RunItem    *item = response->tag;
	Run		   *run = item->run;
	RetryVerdict verdict = retry_judge(response->status);

	run->in_flight--;
	item->result.attempts++;
	if (verdict == RETRY_DONE)
		run_decide(item, OUTBOX_DELIVERED);
	else
	{
		run_note_failure(item, response);
		if (verdict == RETRY_GONE)
			run_note_gone(item);
		run_decide(item, item->result.delay_ms < 0 ? OUTBOX_DEAD : OUTBOX_RETRY);
	}
	run_follow_chain(item);
}

/*
 * Sends one item, or has it fail as if it had been answered.
 */
static void
run_send_item(RunItem *item, const char *identity)
{
	Run		   *run = item->run;
	MemoryContext old = MemoryContextSwitchTo(run->message_context);
	HttpRequest request = {.tag = item};

	run->in_flight++;
	if (message_build(&run->subscription, item->event, identity, &request))
		http_submit(&request);
	else
	{
		HttpResponse failure = {.tag = item};

		strlcpy(failure.error, "the subscription's secret cannot sign",
				sizeof(failure.error));
		run_take_response(&failure);
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(run->message_context);
}

int
run_send(Run *run, int room, const char *identity)
{
	int			sent = 0;

	while (sent < room && run->first_ready != RUN_NONE)
	{
		RunItem    *item = &run->items[run->first_ready];

		run->first_ready = item->next_ready;
		run_send_item(item, identity);
		sent++;
	}
	return sent;
}

void
run_abandon(Run *run)
{
	run->abandoned = true;
	while (run->first_ready != RUN_NONE)
	{
		RunItem    *item = &run->items[run->first_ready];

		run->first_ready = item->next_ready;
		run_decide(item, OUTBOX_PARKED);
		run_follow_chain(item);
	}
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

void
run_settle(const Run *run)
{
	int64		subscription = run->subscription.id;

	Assert(run_is_finished(run));
	for (int i = 0; i < run->batch.count; i++)
	{
		const RunItem *item = &run->items[i];

		if (run->is_new)
			outbox_settle_new(subscription, item->event, &item->result);
		else
			outbox_settle_due(subscription, item->event, &item->result);
		if (item->result.fate == OUTBOX_DEAD)
			ereport(LOG,
					(errmsg("event %lld is dead for subscription \"%s\" after %d attempts",
							(long long) item->event->position,
							run->subscription.name, item->result.attempts)));
	}
	if (run->is_new && run->batch.moved)
		outbox_move_lane(subscription, &run->batch);
	if (run->gone_reason != NULL)
		outbox_disable(subscription, run->gone_reason);
}

void
run_free(Run *run)
{
	MemoryContextDelete(run->context);
}
