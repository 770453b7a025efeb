/*
 * relay.c
 *		The worker that delivers the events of one database's outbox.
 *
 * It lives in a loop of two kinds of steps.  A pass is a short transaction: it
 * settles the runs that have finished, reads what is next for each lane, and
 * starts runs with it.  Between passes, with no transaction and no snapshot
 * open, it moves requests on and sleeps until a latch, a socket or a due time.
 * Lanes do not wait for each other (endpoint.c).
 *
 * A database can have several relays.  Which of them a lane is meant for
 * follows from its number and from the relays that are there; who has its lock
 * serves it.  So one that has to give a lane up keeps it until its last request
 * is back, and one that dies has let go of it.
 *
 * The latch is set by the commits of enqueuing transactions, but only while
 * the relay is armed: asleep, with a lane that could take more.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/worker.h"
#include "outbox/subscription.h"
#include "relay/endpoint.h"
#include "relay/http.h"

/* A lost wake costs no more than this. */
#define RELAY_RECONCILE_MS 5000
/*
 * Where nothing more is known to be there, the next pass waits for so many
 * times as long as the last one took, within these bounds.
 */
#define RELAY_REST_FACTOR 4
#define RELAY_REST_MIN_MS 1
#define RELAY_REST_MAX_MS 10
/* Positions are durable after this time at the latest. */
#define RELAY_FLUSH_MS 20
/* When to try again to get a lane that another relay still has. */
#define RELAY_OWN_MS 100
/* Payloads held in memory, above which nothing is read for who has some. */
#define RELAY_BYTES_MAX (64 * 1024 * 1024)

PGDLLEXPORT void relay_main(Datum arg);

typedef struct Relay
{
	SharedDatabase *database;
	int			number;			/* among the relays of the database */
	int			rank;			/* among those that are there, */
	int			relays;			/* of so many */
	MemoryContext context;		/* lives as long as the process */
	MemoryContext turn_context; /* reset every turn */
	WaitEventSet *wait_set;
	List	   *endpoints;		/* of Endpoint * */
	char		identity[NAMEDATALEN];
	bool		held;			/* this is a copy, and has something to send */
	uint64		seen_ends;
	TimestampTz grace_ends_at;	/* 0: nobody is waited for */
	TimestampTz next_pass_at;	/* the reconciling timer */
	XLogRecPtr	flush_upto;		/* commits of ours that may not be durable */
	TimestampTz flush_at;		/* when to see to that; 0: they are */
	TimestampTz rest_until;		/* no pass without need */
	bool		pass_wanted;
	bool		pass_urgent;	/* there is more to send at once */
} Relay;

static Endpoint *
relay_endpoint(Relay *relay, OutboxLaneId id)
{
	MemoryContext old;
	Endpoint   *endpoint;
	ListCell   *cell;

	foreach(cell, relay->endpoints)
	{
		endpoint = lfirst(cell);
		if (endpoint->id.subscription == id.subscription &&
			endpoint->id.number == id.number)
			return endpoint;
	}
	old = MemoryContextSwitchTo(relay->context);
	endpoint = endpoint_create(id);
	relay->endpoints = lappend(relay->endpoints, endpoint);
	MemoryContextSwitchTo(old);
	return endpoint;
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
		settled = endpoint_settle(lfirst(cell), settled);
	return settled;
}

/*
 * Is this database the outbox's home?  Says it, once, if it is a copy, and if
 * it is none any more.
 */
static bool
relay_is_at_home(Relay *relay)
{
	bool		any_subscription;
	char	   *identity = outbox_read_identity(&any_subscription,
												CurrentMemoryContext);

	if (identity != NULL)
	{
		strlcpy(relay->identity, identity, sizeof(relay->identity));
		if (relay->held)
			ereport(LOG, (errmsg("outbox subscriptions are not held any more")));
		relay->held = false;
		return true;
	}
	if (any_subscription && !relay->held)
		ereport(WARNING,
				(errmsg("outbox subscriptions are held because this database is a copy"),
				 errhint("Call outbox_adopt() if the copy shall send events of its own.")));
	relay->held = any_subscription;
	return false;
}

/*
 * Stops what runs for lanes that are not active any more, or not this relay's
 * business, and lets go of them when they are done.
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
		endpoint_stop(endpoint);
		if (!endpoint_is_idle(endpoint))
			continue;
		relay->endpoints = foreach_delete_current(relay->endpoints, cell);
		endpoint_free(endpoint);
	}
}

/*
 * Is a lane this relay's to serve?  Takes it, if it is free already; then it is
 * read in the next pass, which sees all that the one before has written down.
 */
static Endpoint *
relay_take_lane(Relay *relay, OutboxLaneId id)
{
	Endpoint   *endpoint;

	if (relay->rank < 0 ||
		(id.subscription + id.number) % relay->relays != relay->rank)
		return NULL;
	endpoint = relay_endpoint(relay, id);
	endpoint->active = true;
	if (endpoint->owned)
		return endpoint;
	endpoint->owned = outbox_own_lane(id);
	if (endpoint->owned)
		relay->pass_urgent = true;
	else
		endpoint->busy_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														   RELAY_OWN_MS);
	return NULL;
}

static Size
relay_bytes(const Relay *relay)
{
	Size		bytes = 0;
	ListCell   *cell;

	foreach(cell, relay->endpoints)
		bytes += endpoint_bytes(lfirst(cell));
	return bytes;
}

/*
 * Reads what is next for every lane of this relay's.
 */
static void
relay_read(Relay *relay)
{
	OutboxHorizon horizon = outbox_horizon_begin();
	OutboxSubscription *subscriptions = NULL;
	int			count = 0;
	ListCell   *cell;

	relay->rank = shared_relay_rank(relay->database, relay->number,
									&relay->relays);
	if (relay->number >= settings_relays)
		relay->rank = -1;		/* nothing is its own any more */
	foreach(cell, relay->endpoints)
		((Endpoint *) lfirst(cell))->active = false;
	if (relay_is_at_home(relay))
		count = outbox_read_subscriptions(&subscriptions, CurrentMemoryContext);
	for (int i = 0; i < count; i++)
	{
		Endpoint   *endpoint = relay_take_lane(relay, subscriptions[i].id);

		if (endpoint == NULL)
			continue;
		if (!endpoint_is_idle(endpoint) && relay_bytes(relay) > RELAY_BYTES_MAX)
		{
			endpoint->more = false; /* not now */
			endpoint->next_due_at = 0;
		}
		else
			relay->pass_urgent |= endpoint_read(endpoint, &subscriptions[i],
												&horizon, relay->context);
	}
	relay->grace_ends_at = horizon.grace_ends_at;
	outbox_horizon_end(&horizon);
}

/*
 * A pass commits without waiting for the disk: producers would wait behind it
 * for theirs.  Most often one of them makes our commit durable along with its
 * own, and otherwise we do so a little later.
 */
static void
relay_note_commit(Relay *relay)
{
	if (relay->flush_upto == XactLastCommitEnd)
		return;
	relay->flush_upto = XactLastCommitEnd;
	if (relay->flush_at == 0)
		relay->flush_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													  RELAY_FLUSH_MS);
}

static void
relay_flush(Relay *relay)
{
	if (relay->flush_at == 0 || relay->flush_at > GetCurrentTimestamp())
		return;
	XLogFlush(relay->flush_upto);
	relay->flush_at = 0;
}

/*
 * With each event that is enqueued alone a pass would cost the producers more
 * than the event is worth.  Under load several of them share one.
 */
static void
relay_rest(Relay *relay, TimestampTz started_at)
{
	TimestampTz now = GetCurrentTimestamp();
	long		rest_ms = RELAY_REST_FACTOR *
		TimestampDifferenceMilliseconds(started_at, now);

	rest_ms = Min(Max(rest_ms, RELAY_REST_MIN_MS), RELAY_REST_MAX_MS);
	relay->rest_until = TimestampTzPlusMilliseconds(now, rest_ms);
}

/*
 * One pass.  The count of ends is read before anything else: what ends later
 * is seen by the next pass.
 */
static void
relay_pass(Relay *relay)
{
	TimestampTz started_at = GetCurrentTimestamp();
	List	   *settled;
	ListCell   *cell;

	relay->seen_ends = pg_atomic_read_u64(&relay->database->ends);
	pg_memory_barrier();
	relay->pass_wanted = relay->pass_urgent = false;
	relay->next_pass_at = TimestampTzPlusMilliseconds(started_at,
													  RELAY_RECONCILE_MS);
	if (!worker_begin("relay pass"))
		worker_exit("the extension is not there any more");
	MemoryContextSwitchTo(relay->turn_context);
	settled = relay_settle(relay);
	relay_read(relay);
	worker_commit();
	relay_drop_inactive(relay);
	relay_note_commit(relay);
	MemoryContextSwitchTo(relay->turn_context);
	foreach(cell, settled)
		run_free(lfirst(cell));
	relay_rest(relay, started_at);
}

/*
 * Moves the requests on, takes their answers and sends more.  An endpoint gets
 * half of the places that are free at most, so that some always are.
 */
static void
relay_work(Relay *relay)
{
	HttpResponse response;
	ListCell   *cell;

	http_work();
	while (http_next_response(&response))
		endpoint_take_response(&response);
	foreach(cell, relay->endpoints)
	{
		Endpoint   *endpoint = lfirst(cell);
		bool		wants_pass;

		endpoint_send(endpoint, (HTTP_IN_FLIGHT_MAX - http_in_flight() + 1) / 2,
					  relay->identity);
		wants_pass = endpoint_wants_pass(endpoint);
		relay->pass_wanted |= wants_pass;
		relay->pass_urgent |= wants_pass && endpoint->more;
	}
	http_work();
}

/*
 * Could a lane take new events?  A copy looks for its adoption only.
 */
static bool
relay_wants_events(Relay *relay)
{
	ListCell   *cell;

	foreach(cell, relay->endpoints)
	{
		if (endpoint_wants_events(lfirst(cell)))
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
	if (relay->flush_at != 0)
		next = Min(next, relay->flush_at);
	foreach(cell, relay->endpoints)
	{
		TimestampTz timer = endpoint_next_timer(lfirst(cell));

		if (timer != 0)
			next = Min(next, timer);
	}
	return next;
}

static bool
relay_pass_is_due(Relay *relay)
{
	TimestampTz now = GetCurrentTimestamp();

	if (relay->pass_urgent)
		return true;
	if (relay->pass_wanted)
		return now >= relay->rest_until;
	return now >= relay_next_timer(relay);
}

/*
 * Sleeps until there is something to do.  Once armed, the relay looks at the
 * count of ends again: whoever ended before that was not asked to wake it.
 */
static void
relay_sleep(Relay *relay)
{
	bool		armed = !relay->pass_wanted && relay_wants_events(relay);
	TimestampTz until = relay->pass_wanted ? relay->rest_until :
		relay_next_timer(relay);
	long		timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
														  until);
	long		http_timeout = http_wait_ms();
	WaitEvent	events[3];
	int			count;

	if (http_timeout >= 0)
		timeout = Min(timeout, http_timeout);
	if (armed)
	{
		shared_arm_relay(relay->database, relay->number, true);
		pg_memory_barrier();
		if (pg_atomic_read_u64(&relay->database->ends) != relay->seen_ends)
			timeout = 0;
	}
	count = WaitEventSetWait(relay->wait_set, timeout, events, lengthof(events),
							 PG_WAIT_EXTENSION);
	if (armed)
		shared_arm_relay(relay->database, relay->number, false);
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

/*
 * Shows what is on its way to who looks at outbox_subscriptions.
 */
static void
relay_show_flights(Relay *relay)
{
	SharedFlight flights[SHARED_FLIGHTS_MAX];
	int			count = 0;
	ListCell   *cell;

	foreach(cell, relay->endpoints)
	{
		const Endpoint *endpoint = lfirst(cell);

		if (count == SHARED_FLIGHTS_MAX)
			break;
		flights[count].subscription = endpoint->id.subscription;
		flights[count++].in_flight = endpoint_in_flight(endpoint);
	}
	shared_show_flights(relay->database, relay->number, flights, count);
}

static void
relay_sign_off(int code, Datum arg)
{
	Relay	   *relay = (Relay *) DatumGetPointer(arg);

	shared_arm_relay(relay->database, relay->number, false);
	shared_set_relay_latch(relay->database, relay->number, NULL);
	http_stop();
}

static void
relay_start(Relay *relay, SharedSeat seat)
{
	relay->context = AllocSetContextCreate(TopMemoryContext, "idempotency relay",
										   ALLOCSET_DEFAULT_SIZES);
	relay->turn_context = AllocSetContextCreate(relay->context,
												"idempotency relay turn",
												ALLOCSET_DEFAULT_SIZES);
	relay->database = shared_my_database();
	relay->number = seat - SHARED_RELAY;
	http_start();
	http_allow_networks(settings_webhook_allowed_networks);
	relay->wait_set = compat_create_wait_event_set(TopMemoryContext, 3);
	AddWaitEventToSet(relay->wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(relay->wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(relay->wait_set, WL_SOCKET_READABLE, http_wait_fd(), NULL, NULL);
	shared_set_relay_latch(relay->database, relay->number, MyLatch);
	before_shmem_exit(relay_sign_off, PointerGetDatum(relay));
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	relay->pass_wanted = true;
}

/*
 * A relay that is one too many finishes what it has sent, and leaves.
 */
static void
relay_obey_settings(Relay *relay)
{
	http_allow_networks(settings_webhook_allowed_networks);
	if (relay->number >= settings_relays)
		shared_set_relay_latch(relay->database, relay->number, NULL);
	else
		shared_set_relay_latch(relay->database, relay->number, MyLatch);
	relay->pass_wanted = true;
}

void
relay_main(Datum arg)
{
	static Relay relay;			/* needed until the process has exited */

	relay_start(&relay, worker_start_in_seat());
	for (;;)
	{
		if (worker_obey_signals())
			relay_obey_settings(&relay);
		MemoryContextReset(relay.turn_context);
		MemoryContextSwitchTo(relay.turn_context);
		relay_work(&relay);
		relay_flush(&relay);
		if (relay_pass_is_due(&relay))
		{
			relay_pass(&relay);
			relay_work(&relay);
		}
		if (relay.number >= settings_relays && relay.endpoints == NIL)
			worker_exit("it is one more than idempotency.relays");
		if (!relay_pass_is_due(&relay))
		{
			relay_show_flights(&relay);
			relay_sleep(&relay);
		}
	}
}
