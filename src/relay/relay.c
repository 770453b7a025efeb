/*
 * relay.c
 *		The worker that delivers the events of one database's outbox.
 *
 * It lives in a loop of two kinds of steps.  A pass is a short transaction: it
 * settles the runs that have finished, reads what is next for each
 * subscription, and starts runs with it.  Between passes, with no transaction
 * and no snapshot open, it moves requests on and sleeps until a latch, a
 * socket or a due time.
 *
 * A subscription has at most one run of new events and one of due exceptions
 * at a time.  Subscriptions do not wait for each other.
 *
 * The latch is set by the commits of enqueuing transactions, but only while
 * the relay is armed: asleep, with a subscription that could take more.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/worker.h"
#include "outbox/subscription.h"
#include "relay/http.h"
#include "relay/run.h"

/* A lost wake costs no more than this. */
#define RELAY_RECONCILE_MS 5000
/* When to try again what somebody else has locked. */
#define RELAY_BUSY_MS 100

PGDLLEXPORT void relay_main(Datum arg);

/* A subscription, as the relay serves it. */
typedef struct Endpoint
{
	int64		id;
	bool		active;			/* as of the last pass */
	int			max_in_flight;
	Run		   *new_run;
	Run		   *due_run;
	TimestampTz next_due_at;	/* 0: nothing waits, or a due run is on */
	TimestampTz busy_until;		/* its rows were locked; 0: they were not */
} Endpoint;

typedef struct Relay
{
	SharedDatabase *database;
	MemoryContext context;		/* lives as long as the process */
	MemoryContext turn_context; /* reset every turn */
	WaitEventSet *wait_set;
	List	   *endpoints;		/* of Endpoint * */
	char		identity[NAMEDATALEN];
	bool		held;			/* this is a copy, and must not send */
	uint64		seen_ends;
	TimestampTz grace_ends_at;	/* 0: nobody is waited for */
	TimestampTz next_pass_at;	/* the reconciling timer */
	bool		pass_wanted;
} Relay;

static Endpoint *
relay_endpoint(Relay *relay, int64 id)
{
	MemoryContext old;
	Endpoint   *endpoint;
	ListCell   *cell;

	foreach(cell, relay->endpoints)
	{
		endpoint = lfirst(cell);
		if (endpoint->id == id)
			return endpoint;
	}
	old = MemoryContextSwitchTo(relay->context);
	endpoint = palloc0(sizeof(Endpoint));
	endpoint->id = id;
	relay->endpoints = lappend(relay->endpoints, endpoint);
	MemoryContextSwitchTo(old);
	return endpoint;
}

/*
 * A run of its own memory: the batch and a copy of the subscription.
 */
static Run *
relay_start_run(const OutboxSubscription *subscription, OutboxBatch batch,
				bool is_new, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	OutboxSubscription copy = *subscription;
	size_t		schedule_size = copy.schedule_count * sizeof(int64);

	copy.name = pstrdup(subscription->name);
	copy.url = pstrdup(subscription->url);
	copy.secret = pstrdup(subscription->secret);
	copy.schedule_ms = memcpy(palloc(schedule_size),
							  subscription->schedule_ms, schedule_size);
	copy.lane = (OutboxLane) {0};
	MemoryContextSwitchTo(old);
	return run_start(&copy, batch, is_new, context);
}

static bool
relay_has_finished(const Endpoint *endpoint)
{
	return (endpoint->new_run && run_is_finished(endpoint->new_run)) ||
		(endpoint->due_run && run_is_finished(endpoint->due_run));
}

/*
 * Locks an endpoint's rows without waiting.  One transaction that has changed
 * a subscription, and is not over, must not hold up the others.
 */
static OutboxLock
relay_lock(Endpoint *endpoint)
{
	OutboxLock	lock = outbox_lock_subscription(endpoint->id);

	if (lock == OUTBOX_BUSY)
		endpoint->busy_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														   RELAY_BUSY_MS);
	return lock;
}

/*
 * Reads new events for an endpoint.  A lane that moves without any is written
 * down at once.
 */
static void
relay_read_new(Relay *relay, Endpoint *endpoint,
			   const OutboxSubscription *subscription,
			   const OutboxHorizon *horizon)
{
	MemoryContext context = AllocSetContextCreate(relay->context, "idempotency run",
												  ALLOCSET_DEFAULT_SIZES);
	OutboxBatch batch = outbox_read_batch(horizon, endpoint->id,
										  &subscription->lane, context);

	if (batch.count > 0)
	{
		endpoint->new_run = relay_start_run(subscription, batch, true, context);
		return;
	}
	if (batch.moved && relay_lock(endpoint) == OUTBOX_LOCKED)
	{
		outbox_move_lane(endpoint->id, &batch);
		relay->pass_wanted |= batch.cut;
	}
	MemoryContextDelete(context);
}

static void
relay_read_due(Relay *relay, Endpoint *endpoint,
			   const OutboxSubscription *subscription)
{
	MemoryContext context;
	OutboxBatch batch;

	endpoint->next_due_at = outbox_next_due_at(endpoint->id);
	if (endpoint->next_due_at == 0 ||
		endpoint->next_due_at > GetCurrentTimestamp())
		return;
	endpoint->next_due_at = 0;
	context = AllocSetContextCreate(relay->context, "idempotency run",
									ALLOCSET_DEFAULT_SIZES);
	batch = outbox_read_due(endpoint->id, context);
	if (batch.count > 0)
		endpoint->due_run = relay_start_run(subscription, batch, false, context);
	else
		MemoryContextDelete(context);
}

/*
 * Writes down what the finished ones of an endpoint's runs have brought, and
 * appends them to settled.
 */
static List *
relay_settle_endpoint(Relay *relay, Endpoint *endpoint, List *settled)
{
	Run		  **runs[] = {&endpoint->new_run, &endpoint->due_run};
	OutboxLock	lock = OUTBOX_BUSY;
	MemoryContext old;

	endpoint->busy_until = 0;
	if (relay_has_finished(endpoint))
		lock = relay_lock(endpoint);
	for (int i = 0; i < (int) lengthof(runs); i++)
	{
		Run		   *run = *runs[i];

		if (run == NULL || !run_is_finished(run) || lock == OUTBOX_BUSY)
			continue;
		if (lock == OUTBOX_LOCKED)
			run_settle(run);
		old = MemoryContextSwitchTo(relay->turn_context);
		settled = lappend(settled, run);
		MemoryContextSwitchTo(old);
		*runs[i] = NULL;
	}
	return settled;
}

/*
 * Settles what can be; returns the runs to free after the commit, as a list in
 * the memory of this turn.
 */
static List *
relay_settle(Relay *relay)
{
	List	   *settled = NIL;
	ListCell   *cell;

	foreach(cell, relay->endpoints)
		settled = relay_settle_endpoint(relay, lfirst(cell), settled);
	return settled;
}

/*
 * Is this database the outbox's home?  If it is a copy, say so, once.
 */
static bool
relay_is_at_home(Relay *relay)
{
	char	   *identity = outbox_read_identity(CurrentMemoryContext);

	if (identity != NULL)
	{
		strlcpy(relay->identity, identity, sizeof(relay->identity));
		relay->held = false;
		return true;
	}
	if (!relay->held)
		ereport(WARNING,
				(errmsg("outbox subscriptions are held because this database is a copy"),
				 errhint("Call outbox_adopt() if the copy shall send events of its own.")));
	relay->held = true;
	return false;
}

/*
 * Stops what runs for subscriptions that are not active any more, and forgets
 * them when they are done.
 */
static void
relay_drop_inactive(Relay *relay)
{
	ListCell   *cell;

	foreach(cell, relay->endpoints)
	{
		Endpoint   *endpoint = lfirst(cell);

		if (endpoint->active)
			continue;
		endpoint->next_due_at = 0;
		if (endpoint->new_run)
			run_abandon(endpoint->new_run);
		if (endpoint->due_run)
			run_abandon(endpoint->due_run);
		if (endpoint->new_run || endpoint->due_run)
			continue;
		relay->endpoints = foreach_delete_current(relay->endpoints, cell);
		pfree(endpoint);
	}
}

/*
 * Reads what is next for every subscription that has nothing on its way.
 */
static void
relay_read(Relay *relay)
{
	OutboxHorizon horizon = outbox_horizon_begin();
	OutboxSubscription *subscriptions = NULL;
	int			count = 0;
	ListCell   *cell;

	foreach(cell, relay->endpoints)
		((Endpoint *) lfirst(cell))->active = false;
	if (relay_is_at_home(relay))
		count = outbox_read_subscriptions(&subscriptions, CurrentMemoryContext);
	for (int i = 0; i < count; i++)
	{
		Endpoint   *endpoint = relay_endpoint(relay, subscriptions[i].id);

		endpoint->active = true;
		endpoint->max_in_flight = subscriptions[i].max_in_flight;
		if (endpoint->new_run == NULL)
			relay_read_new(relay, endpoint, &subscriptions[i], &horizon);
		if (endpoint->due_run == NULL)
			relay_read_due(relay, endpoint, &subscriptions[i]);
	}
	relay_drop_inactive(relay);
	relay->grace_ends_at = horizon.grace_ends_at;
	outbox_horizon_end(&horizon);
}

/*
 * One pass.  The count of ends is read before anything else: what ends later
 * is seen by the next pass.
 */
static void
relay_pass(Relay *relay)
{
	List	   *settled;
	ListCell   *cell;

	relay->seen_ends = pg_atomic_read_u64(&relay->database->ends);
	pg_memory_barrier();
	relay->pass_wanted = false;
	relay->next_pass_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													  RELAY_RECONCILE_MS);
	if (!worker_begin("relay pass"))
		proc_exit(1);
	MemoryContextSwitchTo(relay->turn_context);
	settled = relay_settle(relay);
	relay_read(relay);
	worker_commit();
	MemoryContextSwitchTo(relay->turn_context);
	foreach(cell, settled)
		run_free(lfirst(cell));
}

/*
 * Sends what the endpoint has room for.  Exceptions go first: they are older.
 */
static void
relay_send(Relay *relay, Endpoint *endpoint)
{
	Run		   *runs[] = {endpoint->due_run, endpoint->new_run};
	int			room = endpoint->max_in_flight;

	for (int i = 0; i < (int) lengthof(runs); i++)
		room -= runs[i] ? run_in_flight(runs[i]) : 0;
	room = Min(room, HTTP_IN_FLIGHT_MAX - http_in_flight());
	for (int i = 0; i < (int) lengthof(runs); i++)
	{
		if (runs[i] == NULL)
			continue;
		room -= run_send(runs[i], room, relay->identity);
	}
	if (relay_has_finished(endpoint) && endpoint->busy_until == 0)
		relay->pass_wanted = true;
}

/*
 * Moves the requests on, takes their answers and sends more.
 */
static void
relay_work(Relay *relay)
{
	HttpResponse response;
	ListCell   *cell;

	http_work();
	while (http_next_response(&response))
		run_take_response(&response);
	foreach(cell, relay->endpoints)
		relay_send(relay, lfirst(cell));
	http_work();
}

/*
 * Could a subscription take new events?  A copy looks for its adoption only.
 */
static bool
relay_wants_events(Relay *relay)
{
	ListCell   *cell;

	foreach(cell, relay->endpoints)
	{
		Endpoint   *endpoint = lfirst(cell);

		if (endpoint->active && endpoint->new_run == NULL)
			return true;
	}
	return false;
}

static TimestampTz
relay_next_timer(Relay *relay)
{
	TimestampTz next = relay->next_pass_at;
	ListCell   *cell;

	if (relay->grace_ends_at != 0)
		next = Min(next, relay->grace_ends_at);
	foreach(cell, relay->endpoints)
	{
		Endpoint   *endpoint = lfirst(cell);

		if (endpoint->next_due_at != 0)
			next = Min(next, endpoint->next_due_at);
		if (endpoint->busy_until != 0)
			next = Min(next, endpoint->busy_until);
	}
	return next;
}

/*
 * Sleeps until there is something to do.  Once armed, the relay looks at the
 * count of ends again: whoever ended before that was not asked to wake it.
 */
static void
relay_sleep(Relay *relay)
{
	bool		armed = relay_wants_events(relay);
	long		timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
														  relay_next_timer(relay));
	long		http_timeout = http_wait_ms();
	WaitEvent	events[3];
	int			count;

	if (http_timeout >= 0)
		timeout = Min(timeout, http_timeout);
	if (armed)
	{
		pg_atomic_write_u32(&relay->database->relay_armed, 1);
		pg_memory_barrier();
		if (pg_atomic_read_u64(&relay->database->ends) != relay->seen_ends)
			timeout = 0;
	}
	count = WaitEventSetWait(relay->wait_set, timeout, events, lengthof(events),
							 PG_WAIT_EXTENSION);
	pg_atomic_write_u32(&relay->database->relay_armed, 0);
	for (int i = 0; i < count; i++)
	{
		if (events[i].events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			relay->pass_wanted = true;
		}
	}
	if (armed &&
		pg_atomic_read_u64(&relay->database->ends) != relay->seen_ends)
		relay->pass_wanted = true;
}

static void
relay_sign_off(int code, Datum arg)
{
	SharedDatabase *database = (SharedDatabase *) DatumGetPointer(arg);

	pg_atomic_write_u32(&database->relay_armed, 0);
	shared_set_relay_latch(database, NULL);
	http_stop();
}

static void
relay_start(Relay *relay)
{
	relay->context = AllocSetContextCreate(TopMemoryContext, "idempotency relay",
										   ALLOCSET_DEFAULT_SIZES);
	relay->turn_context = AllocSetContextCreate(relay->context,
												"idempotency relay turn",
												ALLOCSET_DEFAULT_SIZES);
	relay->database = shared_my_database();
	http_start();
	http_allow_networks(settings_webhook_allowed_networks);
	relay->wait_set = compat_create_wait_event_set(TopMemoryContext, 3);
	AddWaitEventToSet(relay->wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(relay->wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(relay->wait_set, WL_SOCKET_READABLE, http_wait_fd(), NULL, NULL);
	shared_set_relay_latch(relay->database, MyLatch);
	before_shmem_exit(relay_sign_off, PointerGetDatum(relay->database));
	relay->pass_wanted = true;
}

void
relay_main(Datum arg)
{
	Relay		relay = {0};

	worker_start_in_seat(SHARED_RELAY);
	relay_start(&relay);
	for (;;)
	{
		if (worker_obey_signals())
			http_allow_networks(settings_webhook_allowed_networks);
		MemoryContextReset(relay.turn_context);
		MemoryContextSwitchTo(relay.turn_context);
		relay_work(&relay);
		if (relay.pass_wanted ||
			relay_next_timer(&relay) <= GetCurrentTimestamp())
		{
			relay_pass(&relay);
			relay_work(&relay);
		}
		if (!relay.pass_wanted)
			relay_sleep(&relay);
	}
}
