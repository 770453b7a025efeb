/*
 * endpoint.c
 *		A lane of a subscription, as this relay serves it: what is in flight,
 *		what is read next, and when nothing may be sent.
 *
 * Batches of new events are read ahead, so that a slow request does not hold
 * up those behind it.  A run is a batch in flight (run.c).  The runs of new
 * events form a queue: each begins where the one before it ends.  They are
 * recorded in this order, several at once if possible, as one move of the
 * lane.  Runs of due deferred deliveries are independent of the queue.
 *
 * When sending has to stop (the subscription was paused or altered, the
 * endpoint fails as a whole, or the lane goes to another relay), events that
 * have not been sent are given back: runs are dropped or cut from the end of
 * the queue on, and read again later.  If the lane was moved by another
 * session, everything that was read is discarded.  In both cases nothing is
 * read until all requests in flight have ended.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/query.h"
#include "relay/endpoint.h"

/* The most events of a lane that are read but not recorded yet. */
#define ENDPOINT_AHEAD_MAX 2000
/* The most runs that these can be in. */
#define ENDPOINT_RUNS_MAX 64
/* The most runs of deferred deliveries of a lane. */
#define ENDPOINT_DUE_RUNS_MAX 8
/* When to try locked rows again. */
#define ENDPOINT_BUSY_MS 100

Endpoint *
endpoint_create(OutboxLaneId id)
{
	Endpoint   *endpoint = palloc0(sizeof(Endpoint));

	endpoint->id = id;
	breaker_init(&endpoint->breaker);
	return endpoint;
}

void
endpoint_free(Endpoint *endpoint)
{
	Assert(endpoint_is_idle(endpoint));
	if (endpoint->owned)
		outbox_disown_lane(endpoint->id);
	pfree(endpoint);
}

void
endpoint_set_name(Endpoint *endpoint, const OutboxSubscription *subscription)
{
	if (subscription->name != NULL)
		strlcpy(endpoint->name, subscription->name, sizeof(endpoint->name));
	else
		snprintf(endpoint->name, sizeof(endpoint->name), "%lld",
				 (long long) endpoint->id.subscription);
}

static Run *
endpoint_first_run(const Endpoint *endpoint)
{
	return endpoint->new_runs == NIL ? NULL : linitial(endpoint->new_runs);
}

static Run *
endpoint_last_run(const Endpoint *endpoint)
{
	return endpoint->new_runs == NIL ? NULL : llast(endpoint->new_runs);
}

bool
endpoint_is_idle(const Endpoint *endpoint)
{
	return endpoint->new_runs == NIL && endpoint->due_runs == NIL;
}

int
endpoint_in_flight(const Endpoint *endpoint)
{
	int			in_flight = 0;
	ListCell   *cell;

	foreach(cell, endpoint->new_runs)
		in_flight += run_in_flight(lfirst(cell));
	foreach(cell, endpoint->due_runs)
		in_flight += run_in_flight(lfirst(cell));
	return in_flight;
}

Size
endpoint_bytes(const Endpoint *endpoint)
{
	Size		bytes = 0;
	ListCell   *cell;

	foreach(cell, endpoint->new_runs)
		bytes += run_bytes(lfirst(cell));
	foreach(cell, endpoint->due_runs)
		bytes += run_bytes(lfirst(cell));
	return bytes;
}

static int
endpoint_undecided(List *runs)
{
	int			undecided = 0;
	ListCell   *cell;

	foreach(cell, runs)
		undecided += run_undecided(lfirst(cell));
	return undecided;
}

/*
 * Are there few enough undecided events to read more?
 */
static bool
endpoint_has_room(const Endpoint *endpoint, List *runs)
{
	int			enough = endpoint->max_in_flight + OUTBOX_BATCH_MAX / 2;

	return endpoint_undecided(runs) < enough;
}

static bool
endpoint_can_take_events(const Endpoint *endpoint)
{
	int			ahead = 0;
	ListCell   *cell;

	if (!endpoint->active || !endpoint->owned || endpoint->draining)
		return false;
	if (endpoint->breaker.open)
		return endpoint->breaker.idle && endpoint_is_idle(endpoint);
	foreach(cell, endpoint->new_runs)
		ahead += run_count(lfirst(cell));
	return ahead < ENDPOINT_AHEAD_MAX &&
		list_length(endpoint->new_runs) < ENDPOINT_RUNS_MAX &&
		endpoint_has_room(endpoint, endpoint->new_runs);
}

bool
endpoint_wants_events(const Endpoint *endpoint)
{
	return !trouble_present(&endpoint->trouble) &&
		endpoint_can_take_events(endpoint);
}

bool
endpoint_can_settle(const Endpoint *endpoint)
{
	ListCell   *cell;

	if (!endpoint->gone &&
		(endpoint->breaker.trip_wanted || endpoint->breaker.reset_wanted))
		return true;
	if (endpoint->new_runs && run_is_finished(endpoint_first_run(endpoint)))
		return true;
	foreach(cell, endpoint->new_runs)
	{
		if (run_has_news(lfirst(cell)) && !endpoint->discarding)
			return true;
	}
	foreach(cell, endpoint->due_runs)
	{
		if (run_is_finished(lfirst(cell)) ||
			(run_has_news(lfirst(cell)) && !endpoint->gone))
			return true;
	}
	return false;
}

bool
endpoint_wants_pass(const Endpoint *endpoint)
{
	if (endpoint->busy_until != 0 || trouble_present(&endpoint->trouble))
		return false;
	return endpoint_can_settle(endpoint) ||
		(endpoint->more && endpoint_wants_events(endpoint));
}

static TimestampTz
endpoint_earlier(TimestampTz one, TimestampTz other)
{
	if (one == 0 || other == 0)
		return Max(one, other);
	return Min(one, other);
}

TimestampTz
endpoint_next_timer(const Endpoint *endpoint)
{
	TimestampTz next = endpoint->busy_until;

	if (trouble_present(&endpoint->trouble))
	{
		if (next != 0)
			return next;
		return endpoint->active || endpoint_can_settle(endpoint) ?
			endpoint->trouble.wait.until : 0;
	}
	if (!endpoint->active || endpoint->draining)
		return next;
	if (!endpoint->breaker.open)
		return endpoint_earlier(next, endpoint->next_due_at);
	if (!endpoint_is_idle(endpoint))
		return next;
	if (!endpoint->breaker.idle)
		return endpoint_earlier(next, endpoint->breaker.probe.until);
	return endpoint_earlier(next, endpoint->next_due_at);
}

/*
 * From the end of the queue on, events that have not been sent are dropped.
 * Those before the last event that was sent or recorded are parked.
 */
void
endpoint_stop(Endpoint *endpoint)
{
	ListCell   *cell;

	while (endpoint->new_runs != NIL && !run_cut(endpoint_last_run(endpoint)))
	{
		run_free(endpoint_last_run(endpoint));
		endpoint->new_runs = list_delete_last(endpoint->new_runs);
	}
	foreach(cell, endpoint->new_runs)
		run_stop(lfirst(cell));
	foreach(cell, endpoint->due_runs)
		run_stop(lfirst(cell));
	endpoint->draining = true;
}

void
endpoint_take_response(const HttpResponse *response)
{
	RunAnswer	answer = run_take_response(response);
	Endpoint   *endpoint = answer.owner;
	Breaker    *breaker = &endpoint->breaker;

	if (answer.verdict == RETRY_DONE)
		breaker_success(breaker, endpoint->max_in_flight);
	else if (answer.blames_event)
		breaker_works(breaker);
	else
		breaker_failure(breaker, answer.first_attempt, answer.overloaded,
						answer.retry_after_s, GetCurrentTimestamp());
	if (!endpoint->draining &&
		(answer.verdict == RETRY_GONE || breaker->trip_wanted))
		endpoint_stop(endpoint);
}

/*
 * Deferred deliveries go first, since they are older.
 */
void
endpoint_send(Endpoint *endpoint, int limit, const char *identity)
{
	int			room = Min(endpoint->max_in_flight, endpoint->breaker.window);
	int			sent = 0;
	ListCell   *cell;

	if (trouble_present(&endpoint->trouble))
		return;
	room = Min(room - endpoint_in_flight(endpoint), limit);
	foreach(cell, endpoint->due_runs)
		sent += run_send(lfirst(cell), room - sent, identity);
	foreach(cell, endpoint->new_runs)
		sent += run_send(lfirst(cell), room - sent, identity);
}

/*
 * Locks a lane without waiting.  An open transaction that has changed one
 * subscription must not delay the others.
 */
static OutboxLock
endpoint_lock(Endpoint *endpoint, int64 *position)
{
	OutboxLock	lock = outbox_lock_lane(endpoint->id, position);

	if (lock == OUTBOX_BUSY)
		endpoint->busy_until =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										ENDPOINT_BUSY_MS);
	return lock;
}

static void
endpoint_discard(Endpoint *endpoint)
{
	endpoint_stop(endpoint);
	endpoint->discarding = true;
}

/*
 * Moves the lane past the finished runs at the head of the queue.
 */
static void
endpoint_move(Endpoint *endpoint)
{
	Run		   *last = NULL;
	int64		delivered = 0;
	ListCell   *cell;

	foreach(cell, endpoint->new_runs)
	{
		if (!run_is_finished(lfirst(cell)))
			break;
		last = lfirst(cell);
		delivered += run_delivered(last);
	}
	if (last != NULL && !endpoint->discarding)
		outbox_move_lane(endpoint->id, run_lane_after(last), delivered);
}

/*
 * Frees the runs that were recorded as a whole.
 */
static void
endpoint_free_finished(Endpoint *endpoint)
{
	ListCell   *cell;

	while (endpoint->new_runs != NIL &&
		   run_is_finished(endpoint_first_run(endpoint)))
	{
		run_free(endpoint_first_run(endpoint));
		endpoint->new_runs = list_delete_first(endpoint->new_runs);
	}
	if (endpoint->new_runs != NIL)
		run_is_first(endpoint_first_run(endpoint));
	foreach(cell, endpoint->due_runs)
	{
		Run		   *run = lfirst(cell);

		if (!run_is_finished(run))
			continue;
		endpoint->due_runs = foreach_delete_current(endpoint->due_runs, cell);
		run_free(run);
	}
}

/*
 * Records what can be recorded of all runs, and the whole of the finished runs
 * at the head of the queue.  The lane's row is written even if the lane does
 * not move: a session that deletes the subscription with an older snapshot,
 * which does not show the new rows, then fails and leaves none of them behind.
 */
static void
endpoint_settle_runs(Endpoint *endpoint)
{
	ListCell   *cell;
	int64		delivered = 0;
	bool		at_head = true;
	bool		ahead = false;

	foreach(cell, endpoint->new_runs)
	{
		Run		   *run = lfirst(cell);

		if (endpoint->discarding)
			break;
		at_head &= run_is_finished(run);
		ahead |= !at_head && run_has_news(run);
		if (at_head || run_has_news(run))
			(void) run_settle(run, at_head);
	}
	foreach(cell, endpoint->due_runs)
		delivered += run_settle(lfirst(cell), run_is_finished(lfirst(cell)));
	if (ahead || delivered > 0)
		outbox_count_delivered(endpoint->id, delivered);
}

/*
 * Called after the commit of what endpoint_settle_runs has written.
 */
static void
endpoint_settled_runs(Endpoint *endpoint)
{
	ListCell   *cell;
	bool		at_head = true;

	foreach(cell, endpoint->new_runs)
	{
		Run		   *run = lfirst(cell);

		if (endpoint->discarding)
			break;
		at_head &= run_is_finished(run);
		if (at_head || run_has_news(run))
			run_settled(run, at_head);
	}
	foreach(cell, endpoint->due_runs)
		run_settled(lfirst(cell), run_is_finished(lfirst(cell)));
}

/*
 * Records that the endpoint fails as a whole, or works again.  All lanes of the
 * subscription get the new state when they read the subscription.
 */
static bool
endpoint_settle_breaker(Endpoint *endpoint)
{
	const Breaker *breaker = &endpoint->breaker;

	if (!breaker->trip_wanted && !breaker->reset_wanted)
		return false;
	if (outbox_set_failing(endpoint->id.subscription, breaker->trip_wanted))
		return true;
	endpoint->busy_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													   ENDPOINT_BUSY_MS);
	return false;
}

static void
endpoint_settled_breaker(Endpoint *endpoint)
{
	Breaker    *breaker = &endpoint->breaker;
	bool		failing = breaker->trip_wanted;

	breaker->trip_wanted = false;
	breaker->reset_wanted = false;
	if (failing)
		ereport(LOG,
				(errmsg("the endpoint of subscription \"%s\" fails", endpoint->name),
				 errdetail("%d events in a row were not delivered. Only probes are sent until one of them is accepted.",
						   BREAKER_FAILURES)));
	else
		ereport(LOG,
				(errmsg("the endpoint of subscription \"%s\" works again", endpoint->name)));
}

bool
endpoint_is_to_settle(Endpoint *endpoint, TimestampTz now)
{
	endpoint->busy_until = 0;
	return endpoint_can_settle(endpoint) &&
		!trouble_waits(&endpoint->trouble, now);
}

void
endpoint_settle(Endpoint *endpoint)
{
	int64		position;

	endpoint->breaker_settled = false;
	endpoint->lock = endpoint_lock(endpoint, &position);
	if (endpoint->lock == OUTBOX_BUSY)
		return;
	endpoint->gone = endpoint->lock == OUTBOX_GONE;
	if (endpoint->gone ||
		(endpoint->new_runs &&
		 position != run_lane_before(endpoint_first_run(endpoint))->position))
		endpoint_discard(endpoint);
	if (endpoint->gone)
		return;
	endpoint_settle_runs(endpoint);
	endpoint->breaker_settled = endpoint_settle_breaker(endpoint);
	endpoint_move(endpoint);
}

void
endpoint_settled(Endpoint *endpoint)
{
	if (endpoint->lock == OUTBOX_BUSY)
		return;
	if (endpoint->lock == OUTBOX_LOCKED)
		endpoint_settled_runs(endpoint);
	if (endpoint->breaker_settled)
		endpoint_settled_breaker(endpoint);
	endpoint_free_finished(endpoint);
}

/*
 * Starts a run in its memory, which is current: the batch and a copy of the
 * subscription.
 */
static Run *
endpoint_start_run(Endpoint *endpoint, const OutboxSubscription *subscription,
				   OutboxBatch batch, RunKind kind)
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
	memset(&copy.lane, 0, sizeof(copy.lane));
	return run_start(&copy, batch, kind, endpoint_last_run(endpoint), endpoint);
}

static List *
endpoint_append_run(List *runs, Run *run, MemoryContext context,
					MemoryContext parent)
{
	MemoryContext old = MemoryContextSwitchTo(parent);

	runs = lappend(runs, run);
	MemoryContextSwitchTo(old);
	MemoryContextSetParent(context, parent);
	return runs;
}

/*
 * Creates the memory context of a run.  It is freed with the current context
 * unless endpoint_append_run keeps it, since reading may fail.
 */
static MemoryContext
endpoint_run_context(void)
{
	return AllocSetContextCreate(CurrentMemoryContext, "idempotency run",
								 ALLOCSET_DEFAULT_SIZES);
}

/*
 * Reads at most max_events new events.  If the lane moves without events, that
 * is recorded at once, or together with the last run.  Returns whether there
 * are events.
 */
static bool
endpoint_read_new(Endpoint *endpoint, const OutboxSubscription *subscription,
				  const OutboxHorizon *horizon, RunKind kind, int max_events,
				  MemoryContext parent)
{
	MemoryContext context = endpoint_run_context();
	MemoryContext old = MemoryContextSwitchTo(context);
	Run		   *last = endpoint_last_run(endpoint);
	const OutboxLane *lane = last ? run_lane_after(last) : &subscription->lane;
	OutboxBatch batch = outbox_read_batch(horizon, endpoint->id, lane,
										  max_events, endpoint->max_bytes);
	Run		   *run = NULL;
	int64		position;

	endpoint->more = batch.cut;
	if (batch.count > 0)
		run = endpoint_start_run(endpoint, subscription, batch, kind);
	MemoryContextSwitchTo(old);
	if (run)
	{
		endpoint->new_runs = endpoint_append_run(endpoint->new_runs, run,
												 context, parent);
		return true;
	}
	if (batch.moved && last)
		run_extend(last, &batch.after);
	else if (batch.moved &&
			 endpoint_lock(endpoint, &position) == OUTBOX_LOCKED &&
			 position == lane->position)
		outbox_move_lane(endpoint->id, &batch.after, 0);
	MemoryContextDelete(context);
	return false;
}

/*
 * Returns the positions of deferred deliveries in flight, as an array.
 */
static Datum
endpoint_due_positions(Endpoint *endpoint)
{
	List	   *events = NIL;
	Datum	   *positions;
	ListCell   *cell;

	foreach(cell, endpoint->due_runs)
		events = run_positions(lfirst(cell), events);
	positions = palloc((list_length(events) + 1) * sizeof(Datum));
	foreach(cell, events)
	{
		const OutboxEvent *event = lfirst(cell);

		positions[foreach_current_index(cell)] = Int64GetDatum(event->position);
	}
	return query_array8(positions, list_length(events), INT8OID);
}

static bool
endpoint_read_waiting(Endpoint *endpoint,
					  const OutboxSubscription *subscription, RunKind kind,
					  MemoryContext parent)
{
	Datum		on_their_way = endpoint_due_positions(endpoint);
	MemoryContext context = endpoint_run_context();
	MemoryContext old = MemoryContextSwitchTo(context);
	OutboxBatch batch;
	Run		   *run = NULL;

	if (kind == RUN_DUE)
		batch = outbox_read_due(endpoint->id, on_their_way,
								endpoint->max_bytes);
	else
		batch = outbox_read_longest_waiting(endpoint->id);
	if (batch.count > 0)
		run = endpoint_start_run(endpoint, subscription, batch, kind);
	MemoryContextSwitchTo(old);
	if (run == NULL || (run_is_finished(run) && !run_has_news(run)))
	{
		MemoryContextDelete(context);
		return false;
	}
	endpoint->due_runs = endpoint_append_run(endpoint->due_runs, run, context,
											 parent);
	return true;
}

static void
endpoint_note_next_due(Endpoint *endpoint)
{
	Datum		taken = endpoint_due_positions(endpoint);

	endpoint->next_due_at = outbox_next_due_at(endpoint->id, taken);
}

static void
endpoint_read_due(Endpoint *endpoint, const OutboxSubscription *subscription,
				  MemoryContext context)
{
	endpoint->next_due_at = 0;
	if (!endpoint_has_room(endpoint, endpoint->due_runs) ||
		list_length(endpoint->due_runs) >= ENDPOINT_DUE_RUNS_MAX)
		return;
	endpoint_note_next_due(endpoint);
	if (endpoint->next_due_at == 0 ||
		endpoint->next_due_at > GetCurrentTimestamp())
		return;
	if (endpoint_read_waiting(endpoint, subscription, RUN_DUE, context))
		endpoint_note_next_due(endpoint);
	else
		endpoint->next_due_at =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										ENDPOINT_BUSY_MS);
}

static bool
endpoint_probe_new(Endpoint *endpoint, const OutboxSubscription *subscription,
				   const OutboxHorizon *horizon, MemoryContext context)
{
	return endpoint_read_new(endpoint, subscription, horizon, RUN_PROBE_NEW, 1,
							 context) &&
		!run_is_finished(endpoint_last_run(endpoint));
}

/*
 * Sends one event to an endpoint that fails: a waiting one and a new one in
 * turn.  A new event that is parked does not count.  If there is no event, the
 * next one that comes is the probe.
 */
static void
endpoint_probe(Endpoint *endpoint, const OutboxSubscription *subscription,
			   const OutboxHorizon *horizon, MemoryContext context)
{
	Breaker    *breaker = &endpoint->breaker;
	TimestampTz now = GetCurrentTimestamp();
	bool		found;

	if (!endpoint_is_idle(endpoint) || now < breaker->probe.until)
		return;
	found = breaker->probe_new &&
		endpoint_probe_new(endpoint, subscription, horizon, context);
	if (!found)
		found = endpoint_read_waiting(endpoint, subscription, RUN_PROBE_DUE,
									  context);
	if (!found && endpoint_is_idle(endpoint))
		found = endpoint_probe_new(endpoint, subscription, horizon, context);
	breaker->idle = !found && endpoint_is_idle(endpoint);
	if (breaker->idle)
	{
		endpoint_note_next_due(endpoint);
		return;
	}
	breaker_probe(breaker, now, pg_prng_double(&pg_global_prng_state));
	ereport(DEBUG1,
			(errmsg_internal("probing the endpoint of subscription \"%s\"",
							 endpoint->name)));
}

/*
 * Waits until another lane frees memory, which takes a pass.
 */
static void
endpoint_put_off(Endpoint *endpoint)
{
	endpoint->more = false;
	endpoint->next_due_at = 0;
	if (endpoint->breaker.open)
		endpoint->breaker.probe.until =
			Max(endpoint->breaker.probe.until,
				TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											ENDPOINT_BUSY_MS));
}

bool
endpoint_read(Endpoint *endpoint, const OutboxSubscription *subscription,
			  const OutboxHorizon *horizon, MemoryContext context)
{
	Breaker    *breaker = &endpoint->breaker;
	Run		   *first;

	endpoint_set_name(endpoint, subscription);
	endpoint->max_in_flight = subscription->max_in_flight;
	if (endpoint->version != subscription->version)
	{
		endpoint_stop(endpoint);
		breaker_hurry(breaker, GetCurrentTimestamp());
	}
	endpoint->version = subscription->version;
	if (subscription->failing && !breaker->open && !endpoint_is_idle(endpoint))
		endpoint_stop(endpoint);
	breaker_set(breaker, subscription->failing, GetCurrentTimestamp());
	first = endpoint_first_run(endpoint);
	if (first && !endpoint->discarding &&
		run_lane_before(first)->position != subscription->lane.position)
		endpoint_discard(endpoint);
	if (endpoint_is_idle(endpoint) && !breaker->trip_wanted)
		endpoint->draining = endpoint->discarding = false;

	if (endpoint->max_bytes == 0)
	{
		endpoint_put_off(endpoint);
		return false;
	}
	if (breaker->open)
	{
		endpoint_probe(endpoint, subscription, horizon, context);
		return false;
	}
	if (endpoint_can_take_events(endpoint))
		(void) endpoint_read_new(endpoint, subscription, horizon, RUN_NEW,
								 OUTBOX_BATCH_MAX, context);
	if (!endpoint->draining)
		endpoint_read_due(endpoint, subscription, context);
	return endpoint->busy_until == 0 && endpoint->more &&
		endpoint_can_take_events(endpoint);
}
