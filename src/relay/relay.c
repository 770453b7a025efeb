/*
 * relay.c
 *		The worker that delivers the events of one database's outbox.
 *
 * Its loop has two kinds of steps.  A pass is two short transactions: one
 * settles the batches in flight that have finished, the other reads what is
 * next for each partition and starts batches with it.  Between passes, with no
 * transaction and no snapshot open, the relay advances requests and sleeps
 * until a latch, a socket or a due time.  Partitions do not wait for each other
 * (feed.c).  A partition whose rows cannot be read or written does not stop the
 * others (trouble.c).
 *
 * A database can have several relays.  Which relay has to serve a partition
 * follows from the partition's number and the relays that run; the relay that
 * has the partition's lock does serve it.  A relay that has to give up a
 * partition keeps the lock until its last request has ended.  If a relay dies,
 * its locks are released.
 *
 * The commits of enqueuing transactions set the latch, but only while the relay
 * is armed: asleep, with a partition that could take more events.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/worker.h"
#include "outbox/subscription.h"
#include "relay/endpoint.h"
#include "relay/feed.h"
#include "relay/http.h"
#include "relay/place.h"

/* The longest sleep, in case a wake-up is lost. */
#define RELAY_RECONCILE_MS 5000
/*
 * If no more events are known, the next pass waits for this multiple of the
 * duration of the last one, within these bounds.
 */
#define RELAY_REST_FACTOR 4
#define RELAY_REST_MIN_MS 1
#define RELAY_REST_MAX_MS 10
/* Positions are made durable after this time at the latest. */
#define RELAY_FLUSH_MS 20
/* When to try again to lock a partition that another relay still has. */
#define RELAY_OWN_MS 100
/* Rows after which a pass settles no further partition. */
#define RELAY_ROWS_MAX 500
/* How long a pass reads, and at least as long as it took to begin. */
#define RELAY_SLICE_MS 10
/* The most bytes of events in memory before reading stops. */
#define RELAY_BYTES_MAX (64 * 1024 * 1024)
/* The smallest chunk for a subscription that has events in memory. */
#define RELAY_SHARE_MIN (1024 * 1024)

/* Endpoints that the table has room for at first. */
#define RELAY_ENDPOINTS 64

PGDLLEXPORT void relay_main(Datum arg);

typedef struct Relay
{
	SharedDatabase *database;
	int			number;			/* among the relays of the database */
	int			rank;			/* among the relays that run; -1: none */
	int			relays;			/* the number of relays that run */
	MemoryContext context;		/* lives as long as the process */
	MemoryContext turn_context; /* reset in each turn of the loop */
	WaitEventSet *wait_set;
	List	   *feeds;			/* of Feed * */
	List	   *endpoints;		/* of Endpoint *, those of the feeds */
	HTAB	   *endpoint_table; /* the same, by subscription */
	uint32		send_turn;		/* number of the endpoint that sends first */
	uint32		settle_turn;	/* number of the partition that settles first */
	uint32		read_turn;		/* number of the partition that is read first */
	Places		places;
	char		identity[NAMEDATALEN];
	bool		held;			/* this is a copy with subscriptions */
	uint64		seen_ends;
	TimestampTz grace_ends_at;	/* 0: no open transaction is waited for */
	TimestampTz next_pass_at;	/* after RELAY_RECONCILE_MS */
	XLogRecPtr	flush_upto;		/* our commits up to here may not be durable */
	TimestampTz flush_at;		/* when to flush them; 0: they are durable */
	TimestampTz rest_until;		/* no pass before, unless it is urgent */
	bool		pass_wanted;
	bool		pass_urgent;	/* there is more to send at once */
	uint64		pass;			/* number of the pass */
	TimestampTz pass_started_at;
	Feed	   *reading;		/* the partition that is being read, or NULL */
	bool		troubles_changed;
} Relay;

/* An entry of the table of endpoints. */
typedef struct RelayEndpoint
{
	int64		subscription;	/* the key */
	Endpoint   *endpoint;
} RelayEndpoint;

/* The partitions that one transaction settles. */
typedef struct RelaySettlement
{
	List	   *feeds;
	bool		patient;		/* wait longer for locked rows */
} RelaySettlement;

static HTAB *
relay_create_table(MemoryContext context)
{
	HASHCTL		control = {0};

	control.keysize = sizeof(int64);
	control.entrysize = sizeof(RelayEndpoint);
	control.hcxt = context;
	return hash_create("idempotency endpoints", RELAY_ENDPOINTS, &control,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static Endpoint *
relay_endpoint(Relay *relay, int64 subscription)
{
	bool		found;
	RelayEndpoint *entry = hash_search(relay->endpoint_table, &subscription,
									   HASH_ENTER, &found);

	if (!found)
	{
		entry->endpoint = endpoint_create(subscription);
		relay->endpoints = lappend(relay->endpoints, entry->endpoint);
	}
	return entry->endpoint;
}

static Feed *
relay_feed(Relay *relay, OutboxPartitionId id)
{
	MemoryContext old = MemoryContextSwitchTo(relay->context);
	Endpoint   *endpoint = relay_endpoint(relay, id.subscription);
	Feed	   *feed = endpoint_find_feed(endpoint, id.number);

	if (feed == NULL)
	{
		feed = feed_create(id, endpoint);
		relay->feeds = lappend(relay->feeds, feed);
	}
	MemoryContextSwitchTo(old);
	return feed;
}

/*
 * Has another partition of the subscription the same trouble?
 */
static bool
relay_knows_trouble(const Feed *feed, const char *error)
{
	ListCell   *cell;

	foreach(cell, feed->endpoint->feeds)
	{
		const Feed *other = lfirst(cell);

		if (other != feed && strcmp(other->trouble.error, error) == 0)
			return true;
	}
	return false;
}

/*
 * Excludes a partition until another try succeeds.  where, the context of the
 * error, is for the log only.
 */
static void
relay_note_trouble(Relay *relay, Feed *feed, const char *error,
				   const char *where)
{
	if (!trouble_note(&feed->trouble, error, GetCurrentTimestamp()))
		return;
	relay->troubles_changed = true;
	if (relay_knows_trouble(feed, feed->trouble.error))
		return;
	ereport(WARNING,
			(errmsg("subscription \"%s\" is stuck: %s",
					feed->endpoint->name, feed->trouble.error),
			 where ? errdetail_log("%s", where) : 0,
			 errhint("It is tried again from time to time, and at once after outbox_alter() or outbox_resume().")));
}

static void
relay_end_trouble(Relay *relay, Feed *feed)
{
	char		error[SHARED_TROUBLE_MAX];

	strlcpy(error, feed->trouble.error, sizeof(error));
	if (!trouble_end(&feed->trouble))
		return;
	relay->troubles_changed = true;
	if (relay_knows_trouble(feed, error))
		return;
	ereport(LOG,
			(errmsg("subscription \"%s\" is not stuck any more: %s",
					feed->endpoint->name, error)));
}

/*
 * Shows stuck subscriptions in outbox_subscriptions: each one once, with the
 * trouble of one of its partitions.
 */
static void
relay_show_troubles(Relay *relay)
{
	SharedTrouble troubles[SHARED_TROUBLES_MAX];
	int			count = 0;
	ListCell   *cell;

	foreach(cell, relay->feeds)
	{
		const Feed *feed = lfirst(cell);
		int			known = 0;

		if (!trouble_present(&feed->trouble))
			continue;
		while (known < count &&
			   troubles[known].subscription != feed->id.subscription)
			known++;
		if (known < count || count == SHARED_TROUBLES_MAX)
			continue;
		troubles[count].relay = relay->number;
		troubles[count].subscription = feed->id.subscription;
		strlcpy(troubles[count++].error, feed->trouble.error,
				SHARED_TROUBLE_MAX);
	}
	shared_show_troubles(relay->database, relay->number, troubles, count);
	relay->troubles_changed = false;
}

static const char *
relay_error_text(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ?
		"another transaction has locked its rows" : error->message;
}

static void
relay_settle_step(void *arg)
{
	RelaySettlement *settlement = arg;
	ListCell   *cell;

	outbox_settle_begin(settlement->patient);
	foreach(cell, settlement->feeds)
		feed_settle(lfirst(cell));
}

/*
 * Settles some partitions in one transaction.  If that fails, each half of them
 * is tried by itself, until the partition that causes the error is alone.  No
 * answers are taken meanwhile, so after one lock timeout the next waits are
 * short.
 */
static void
relay_settle_together(Relay *relay, List *feeds, bool patient)
{
	List	   *groups = feeds == NIL ? NIL : list_make1(feeds);

	while (groups != NIL)
	{
		List	   *group = llast(groups);
		int			half = list_length(group) / 2;
		RelaySettlement settlement = {group, patient};
		ErrorData  *error = worker_try("relay settles", relay_settle_step,
									   &settlement);
		ListCell   *cell;

		groups = list_delete_last(groups);
		patient &= error == NULL ||
			error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
		if (error == NULL)
		{
			foreach(cell, group)
				feed_settled(lfirst(cell));
		}
		else if (half == 0)
			relay_note_trouble(relay, linitial(group), relay_error_text(error),
							   error->context);
		else
		{
			groups = lappend(groups, list_copy_tail(group, half));
			groups = lappend(groups, list_copy_head(group, half));
		}
	}
}

/*
 * Settles what can be settled, of one partition after another until that takes
 * too many rows.  Partitions that have failed before are tried one by one, so
 * that they do not make the others fail again.
 */
static void
relay_settle(Relay *relay)
{
	TimestampTz now = GetCurrentTimestamp();
	List	   *together = NIL;
	int			count = list_length(relay->feeds);
	int			rows = 0;

	relay->settle_turn++;
	for (int i = 0; i < count; i++)
	{
		Feed	   *feed = list_nth(relay->feeds,
									(relay->settle_turn + i) % count);

		if (rows > RELAY_ROWS_MAX || !feed_is_to_settle(feed, now))
			continue;
		if (trouble_present(&feed->trouble))
			relay_settle_together(relay, list_make1(feed), false);
		else
			together = lappend(together, feed);
		rows += feed_rows(feed);
	}
	relay_settle_together(relay, together, true);
}

/*
 * Is this database the outbox's home?  Logs once when it is found to be a copy,
 * and once when it is none any more.
 */
static bool
relay_is_at_home(Relay *relay)
{
	bool		any_subscription;
	char	   *identity = outbox_read_identity(&any_subscription);

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
				 errhint("Call outbox_adopt() if the copy is to send its own events.")));
	relay->held = any_subscription;
	return false;
}

static void
relay_drop_endpoint(Relay *relay, Endpoint *endpoint)
{
	hash_search(relay->endpoint_table, &endpoint->subscription, HASH_REMOVE,
				NULL);
	relay->endpoints = list_delete_ptr(relay->endpoints, endpoint);
	endpoint_free(endpoint);
}

/*
 * Stops the batches of partitions that this relay does not have to serve any
 * more, and frees these partitions when their batches have ended.
 */
static void
relay_drop_inactive(Relay *relay)
{
	ListCell   *cell;

	foreach(cell, relay->feeds)
	{
		Feed	   *feed = lfirst(cell);
		Endpoint   *endpoint = feed->endpoint;

		if (feed->active)
			continue;
		feed_stop(feed);
		if (!feed_is_idle(feed))
			continue;
		relay->feeds = foreach_delete_current(relay->feeds, cell);
		relay->troubles_changed |= trouble_present(&feed->trouble);
		feed_free(feed);
		if (endpoint->feeds == NIL)
			relay_drop_endpoint(relay, endpoint);
	}
}

/*
 * Returns the partition if this relay has to serve it and owns it already.  If
 * it has to serve the partition but does not own it, tries to lock it and
 * returns NULL: the partition is read in the next pass, whose snapshot shows
 * all that the relay before has recorded.
 */
static Feed *
relay_take_partition(Relay *relay, OutboxPartitionId id)
{
	Feed	   *feed;

	if (relay->rank < 0 ||
		((uint64) id.subscription + id.number) % relay->relays !=
		(uint64) relay->rank)
		return NULL;
	feed = relay_feed(relay, id);
	feed->active = true;
	if (feed->owned)
		return feed;
	feed->owned = outbox_own_partition(id);
	if (feed->owned)
		relay->pass_urgent = true;
	else
		feed->busy_until =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										RELAY_OWN_MS);
	return NULL;
}

/*
 * Returns how much can be read for a partition now: half of what is left when
 * the bytes in use, and once more those of the same subscription, are
 * subtracted from the limit.  So one subscription gets at most half of all
 * memory, the next one half of the rest, and so on: endpoints that hang leave
 * memory for those that work.  Only the last event of a chunk can exceed the
 * limit.
 */
static Size
relay_share(const Feed *feed)
{
	Size		taken = outbox_events_bytes();
	Size		own = 0;
	Size		share;
	ListCell   *cell;

	if (2 * (taken + OUTBOX_CHUNK_BYTES_MAX) <= RELAY_BYTES_MAX)
		return OUTBOX_CHUNK_BYTES_MAX;	/* enough for any subscription */
	foreach(cell, feed->endpoint->feeds)
		own += feed_bytes(lfirst(cell));
	taken += own;
	share = taken < RELAY_BYTES_MAX ? (RELAY_BYTES_MAX - taken) / 2 : 0;
	if (own > 0 && share < RELAY_SHARE_MIN)
		return 0;
	return Min(share, OUTBOX_CHUNK_BYTES_MAX);
}

/*
 * May a partition be read now?  A stuck partition is tried after its pause, or
 * at once if its subscription was altered.  Finished batches must be settled
 * first, so a stuck partition that still has any is not read.
 */
static bool
relay_may_try(Relay *relay, Feed *feed, const OutboxSubscription *subscription)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		altered = feed->tried_version != subscription->version;

	feed->tried_version = subscription->version;
	if (!trouble_waits(&feed->trouble, now))
		return !trouble_present(&feed->trouble) || !feed_can_settle(feed);
	if (altered)
	{
		trouble_hurry(&feed->trouble, now);
		relay->pass_urgent = true;
	}
	return false;
}

/*
 * Reads what is next for a partition.  If an error in another partition has
 * made this pass start a second transaction, partitions that were read in the
 * first are skipped.
 */
static void
relay_read_partition(Relay *relay, const OutboxSubscription *subscription,
					 Feed *feed, const OutboxHorizon *horizon)
{
	if (feed == NULL || feed->read_in_pass == relay->pass ||
		!relay_may_try(relay, feed, subscription))
		return;
	relay->reading = feed;
	if (subscription->wrong != NULL)
	{
		endpoint_set_name(feed->endpoint, subscription);
		relay_note_trouble(relay, feed, subscription->wrong, NULL);
	}
	else
	{
		endpoint_set(feed->endpoint, subscription);
		feed->max_bytes = relay_share(feed);
		relay->pass_urgent |= feed_read(feed, subscription, horizon,
										relay->context);
		relay_end_trouble(relay, feed);
	}
	feed->read_in_pass = relay->pass;
	relay->reading = NULL;
}

/*
 * Reads what is next for the partitions of this relay, one after another, until
 * the time of this pass is up.  The next pass goes on with the others, so that
 * requests are advanced in between.
 */
static void
relay_read_partitions(Relay *relay, const OutboxSubscription *subscriptions,
					  int count, const OutboxHorizon *horizon)
{
	Feed	  **feeds = palloc((count + 1) * sizeof(Feed *));
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = TimestampTzPlusMilliseconds(now, RELAY_SLICE_MS);
	uint32		turn = relay->read_turn;

	until = Max(until, now + (now - relay->pass_started_at));
	for (int i = 0; i < count; i++)
		feeds[i] = relay_take_partition(relay, subscriptions[i].id);
	for (int i = 0; i < count; i++)
	{
		int			n = (turn + i) % count;

		if (i > 0 && GetCurrentTimestamp() >= until)
		{
			relay->pass_urgent = true;
			return;
		}
		relay_read_partition(relay, &subscriptions[n], feeds[n], horizon);
		relay->read_turn = (n + 1) % count;
	}
}

static void
relay_read_step(void *arg)
{
	Relay	   *relay = arg;
	ConstraintsSetStmt immediate = {.type = T_ConstraintsSetStmt};
	OutboxHorizon horizon;
	OutboxSubscription *subscriptions = NULL;
	int			count = 0;
	ListCell   *cell;

	/*
	 * Fire deferred triggers now: at commit the relay could no longer tell
	 * which partition an error belongs to.
	 */
	AfterTriggerSetState(&immediate);
	outbox_events_sweep();
	horizon = outbox_horizon_begin();
	relay->rank = shared_relay_rank(relay->database, relay->number,
									&relay->relays);
	if (relay->number >= settings_relays)
		relay->rank = -1;		/* it has to serve no partition any more */
	foreach(cell, relay->feeds)
		((Feed *) lfirst(cell))->active = false;
	if (relay_is_at_home(relay))
		count = outbox_read_subscriptions(&subscriptions);
	relay_read_partitions(relay, subscriptions, count, &horizon);
	relay->grace_ends_at = horizon.grace_ends_at;
	outbox_horizon_end(&horizon);
}

/*
 * Repeats the step until all partitions that fail are excluded.  An error that
 * no partition has caused ends the process.
 */
static void
relay_read(Relay *relay)
{
	ErrorData  *error;

	relay->pass++;
	relay->reading = NULL;
	while ((error = worker_try("relay reads", relay_read_step, relay)) != NULL)
	{
		if (relay->reading == NULL)
			ReThrowError(error);
		relay_note_trouble(relay, relay->reading, error->message,
						   error->context);
		relay->pass_wanted = true;
		relay->reading = NULL;
	}
}

/*
 * A pass commits asynchronously, since producers would otherwise have to wait
 * for its flush before their own.  Usually the commit of a producer makes ours
 * durable too; otherwise the relay flushes a little later.
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
 * A pass for each single event would cost the producers more than the event is
 * worth.  Under load several events share one pass.
 */
static void
relay_rest(Relay *relay, TimestampTz started_at)
{
	TimestampTz now = GetCurrentTimestamp();
	long		rest_ms = TimestampDifferenceMilliseconds(started_at, now);

	rest_ms *= RELAY_REST_FACTOR;
	rest_ms = Min(Max(rest_ms, RELAY_REST_MIN_MS), RELAY_REST_MAX_MS);
	relay->rest_until = TimestampTzPlusMilliseconds(now, rest_ms);
}

/*
 * Makes one pass.  The count of ends is read before anything else, so that
 * transactions that end later cause another pass.
 */
static void
relay_pass(Relay *relay)
{
	TimestampTz started_at = GetCurrentTimestamp();

	relay->seen_ends = pg_atomic_read_u64(&relay->database->ends);
	pg_memory_barrier();
	relay->pass_wanted = relay->pass_urgent = false;
	relay->pass_started_at = started_at;
	relay->next_pass_at = TimestampTzPlusMilliseconds(started_at,
													  RELAY_RECONCILE_MS);
	MemoryContextSwitchTo(relay->turn_context);
	relay_settle(relay);
	relay_read(relay);
	relay_drop_inactive(relay);
	relay_note_commit(relay);
	if (relay->troubles_changed)
		relay_show_troubles(relay);
	relay_rest(relay, started_at);
}

/*
 * Sends what may be sent.  The endpoints take turns to be the first, in case
 * there is not a place for each of them.
 */
static void
relay_send(Relay *relay)
{
	int			count = list_length(relay->endpoints);

	relay->send_turn++;
	for (int i = 0; i < count; i++)
		endpoint_send(list_nth(relay->endpoints,
							   (relay->send_turn + i) % count),
					  &relay->places, relay->identity);
}

/*
 * Advances the requests, takes their answers and sends more.
 */
static void
relay_work(Relay *relay)
{
	HttpResponse response;
	ListCell   *cell;

	http_work();
	while (http_next_response(&response))
		endpoint_take_response(&response, &relay->places);
	relay_send(relay);
	foreach(cell, relay->feeds)
	{
		const Feed *feed = lfirst(cell);
		bool		wants_pass = feed_wants_pass(feed);

		relay->pass_wanted |= wants_pass;
		relay->pass_urgent |= wants_pass && feed->more;
	}
	http_work();
}

/*
 * Could a partition take new events?  A copy has no partitions; it only waits
 * for its adoption.
 */
static bool
relay_wants_events(Relay *relay)
{
	ListCell   *cell;

	foreach(cell, relay->feeds)
	{
		if (feed_wants_events(lfirst(cell)))
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
 * Sleeps until there is something to do.  When armed, the relay reads the count
 * of ends again: transactions that ended before were not asked to wake it.
 */
static void
relay_sleep(Relay *relay)
{
	bool		armed = !relay->pass_wanted && relay_wants_events(relay);
	TimestampTz until;
	long		timeout;
	long		http_timeout = http_wait_ms();
	WaitEvent	events[3];
	int			count;

	until = relay->pass_wanted ? relay->rest_until : relay_next_timer(relay);
	timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
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
 * Shows in outbox_subscriptions what is in flight.
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
		if (endpoint->in_flight == 0)
			continue;
		flights[count].subscription = endpoint->subscription;
		flights[count++].in_flight = endpoint->in_flight;
	}
	shared_show_flights(relay->database, relay->number, flights, count);
}

static void
relay_sign_off(int code, Datum arg)
{
	Relay	   *relay = (Relay *) DatumGetPointer(arg);

	shared_arm_relay(relay->database, relay->number, false);
	shared_set_relay_latch(relay->database, relay->number, NULL);
	shared_show_troubles(relay->database, relay->number, NULL, 0);
	http_stop();
}

static void
relay_start(Relay *relay, SharedWorkerSlot slot)
{
	relay->context = AllocSetContextCreate(TopMemoryContext, "idempotency relay",
										   ALLOCSET_DEFAULT_SIZES);
	relay->turn_context = AllocSetContextCreate(relay->context,
												"idempotency relay turn",
												ALLOCSET_DEFAULT_SIZES);
	relay->endpoint_table = relay_create_table(relay->context);
	relay->database = shared_my_database();
	relay->number = slot - SHARED_RELAY;
	http_start();
	http_allow_networks(settings_webhook_allowed_networks);
	relay->wait_set = compat_create_wait_event_set(TopMemoryContext, 3);
	AddWaitEventToSet(relay->wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch,
					  NULL);
	AddWaitEventToSet(relay->wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET,
					  NULL, NULL);
	AddWaitEventToSet(relay->wait_set, WL_SOCKET_READABLE, http_wait_fd(), NULL,
					  NULL);
	shared_set_relay_latch(relay->database, relay->number, MyLatch);
	before_shmem_exit(relay_sign_off, PointerGetDatum(relay));
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	relay->pass_wanted = true;
}

/*
 * A relay whose number is too high finishes what it has sent, and exits.
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
	static Relay relay;			/* used until the process has exited */

	relay_start(&relay, worker_start_in_slot());
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
		if (relay.number >= settings_relays && relay.feeds == NIL)
			worker_exit("it is one more than idempotency.relays");
		if (!relay_pass_is_due(&relay))
		{
			relay_show_flights(&relay);
			relay_sleep(&relay);
		}
	}
}
