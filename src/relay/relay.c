/*
 * relay.c
 *		The worker that delivers the events of one database's outbox.
 *
 * Its loop has two kinds of steps.  A pass is two short transactions: one
 * settles the batches in flight that have finished, the other reads what is
 * next and starts batches with it.  Between passes, with no transaction and no
 * snapshot open, the relay advances requests and sleeps until a latch, a socket
 * or a due time.  Partitions do not wait for each other (feed.c).  A partition
 * whose rows cannot be read or written does not stop the others (trouble.c).
 *
 * Most endpoints are at rest at any time: the head reads the log for them
 * (head.c), and the loop visits only the busy ones (endpoint.c).  A database
 * can have several relays, which share the partitions (served.c).
 *
 * The commits of enqueuing transactions set the latch, but only while the relay
 * is armed: asleep, with a partition that could take more events.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
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
#include "relay/served.h"
#include "relay/stuck.h"
#include "relay/turn.h"

/* The longest sleep, in case a wake-up is lost. */
#define RELAY_RECONCILE_MS 5000
/*
 * If no more events are known, the next pass waits for this multiple of the
 * duration of the last one, within these bounds.
 */
#define RELAY_REST_FACTOR 3
#define RELAY_REST_MIN_MS 1
#define RELAY_REST_MAX_MS 10
/* Positions are made durable after this time at the latest. */
#define RELAY_FLUSH_MS 20
/* When to try again to write the row of the head. */
#define RELAY_HEAD_RETRY_MS 1000
/* Rows that one transaction settles, and those of one partition more. */
#define RELAY_ROWS_MAX 100
/* How long a pass settles, and one transaction more. */
#define RELAY_SETTLE_MS 10
/* How long a pass reads, and at least as long as it took to begin. */
#define RELAY_SLICE_MS 10
/* Requests that are sent before new events are looked for again, */
#define RELAY_SENDS_MAX 64
/* and how many of these are of endpoints that go first. */
#define RELAY_SENDS_FIRST_MAX (RELAY_SENDS_MAX / 2)

PGDLLEXPORT void relay_main(Datum arg);

typedef struct Relay
{
	SharedDatabase *database;
	int			number;			/* among the relays of the database */
	MemoryContext context;		/* lives as long as the process */
	MemoryContext turn_context; /* reset in each turn of the loop */
	WaitEventSet *wait_set;
	Head		head;
	Served		served;
	TimestampTz next_due_at;	/* of endpoints at rest; 0: none */
	uint32		send_turn;		/* number of the endpoint that sends first */
	bool		send_more;		/* there may be more to send */
	uint32		settle_turn;	/* number of the partition that settles first */
	uint32		read_turn;		/* number of the partition that is read first */
	Places		places;
	uint64		seen_ends;
	TimestampTz grace_ends_at;	/* 0: no open transaction is waited for */
	TimestampTz next_pass_at;	/* after RELAY_RECONCILE_MS */
	XLogRecPtr	flush_upto;		/* our commits up to here may not be durable */
	TimestampTz flush_at;		/* when to flush them; 0: they are durable */
	TimestampTz rest_until;		/* no pass before, unless it is urgent */
	TimestampTz clock;			/* when the last turn of the loop began */
	bool		read_failed;	/* in this pass; then each lagging feed reads
								 * by itself */
	bool		replicated;		/* by the last pass, a standby has what is
								 * committed */
	bool		pass_wanted;
	bool		pass_urgent;	/* there is more to send at once */
	TimestampTz pass_started_at;
	int64		lagging_us;		/* time of this pass for feeds that lag */
	Feed	   *reading;		/* the partition that is being read, or NULL */
} Relay;

/* The partitions that one transaction settles. */
typedef struct RelaySettlement
{
	List	   *feeds;
	bool		patient;		/* wait longer for locked rows */
} RelaySettlement;

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
	{
		Feed	   *feed = lfirst(cell);

		turn_at(feed->id.subscription);
		feed_settle(feed);
	}
	turn_at(0);
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
			stuck_note(linitial(group), relay_error_text(error),
					   error->context);
		else
		{
			groups = lappend(groups, list_copy_tail(group, half));
			groups = lappend(groups, list_copy_head(group, half));
		}
	}
}

/*
 * Settles these feeds.  Those that have failed before are tried one by one, so
 * that they do not make the others fail again.
 */
static void
relay_settle_feeds(Relay *relay, List *feeds)
{
	List	   *together = NIL;
	ListCell   *cell;

	foreach(cell, feeds)
	{
		Feed	   *feed = lfirst(cell);

		if (trouble_present(&feed->trouble))
			relay_settle_together(relay, list_make1(feed), false);
		else
			together = lappend(together, feed);
	}
	relay_settle_together(relay, together, true);
}

/*
 * Settles what can be settled, of one partition after another, until the time
 * for that is up.  No answers are taken meanwhile.
 */
static void
relay_settle(Relay *relay)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = TimestampTzPlusMilliseconds(now, RELAY_SETTLE_MS);
	List	   *busy = endpoints_busy_feeds();
	List	   *chosen = NIL;
	int			count = list_length(busy);
	int			rows = 0;

	relay->settle_turn++;
	for (int i = 0; i < count; i++)
	{
		Feed	   *feed = list_nth(busy, (relay->settle_turn + i) % count);

		if (!feed_is_to_settle(feed, now))
			continue;
		chosen = lappend(chosen, feed);
		rows += feed_rows(feed);
		if (rows < RELAY_ROWS_MAX)
			continue;
		relay_settle_feeds(relay, chosen);
		chosen = NIL;
		rows = 0;
		if (GetCurrentTimestamp() < until)
			continue;
		relay->settle_turn += i;
		return;
	}
	relay_settle_feeds(relay, chosen);
}

static void
relay_leave_head_step(void *arg)
{
	Relay	   *relay = arg;

	outbox_settle_begin(false);
	outbox_leave_head(relay->number, relay->served.buckets);
}

static void
relay_record_head_step(void *arg)
{
	outbox_settle_begin(false);
	head_record(arg);
}

/*
 * Returns as many of them as one transaction settles.
 */
static List *
relay_feeds_that_hold_head(void)
{
	List	   *holding = NIL;
	int			rows = 0;
	ListCell   *cell;

	foreach(cell, endpoints_busy_feeds())
	{
		Feed	   *feed = lfirst(cell);

		if (rows > RELAY_ROWS_MAX)
			break;
		if (!feed_holds_head(feed))
			continue;
		holding = lappend(holding, feed);
		rows += feed_rows(feed);
	}
	return holding;
}

/*
 * Partitions that cannot follow the head stop that.  Returns whether none is
 * left.  If there are many, the next pass goes on.
 */
static bool
relay_release_head(Relay *relay)
{
	List	   *holding = relay_feeds_that_hold_head();

	relay_settle_feeds(relay, holding);
	if (relay_feeds_that_hold_head() == NIL)
		return true;
	if (!feed_holds_head(llast(holding)))
		relay->head.record_at = GetCurrentTimestamp();
	return false;
}

/*
 * Writes the row of the head.  Partitions that cannot follow it, because not
 * everything before it is recorded, stop that first; if the row of one is
 * locked, the head waits.  That is tried again so often that it must not wait
 * for locks.
 */
static void
relay_record_head(Relay *relay)
{
	Head	   *head = &relay->head;
	TimestampTz now = GetCurrentTimestamp();
	ErrorData  *error = NULL;

	if (!head_wants_record(head) || now < head->record_at ||
		relay->served.load_count > 0)
		return;
	head->record_at = TimestampTzPlusMilliseconds(now, RELAY_HEAD_RETRY_MS);
	if (!relay_release_head(relay))
		return;
	if (!head->alone)
		error = worker_try("relay settles", relay_leave_head_step, relay);
	head->alone |= error == NULL;
	if (error == NULL)
		error = worker_try("relay settles", relay_record_head_step, head);
	if (error == NULL)
		head_recorded(head);
	else
		head_not_recorded(head, error);
}

/*
 * May a partition be read now?  A stuck partition is tried after its pause.
 * Finished batches must be settled first, so a stuck partition that still has
 * any is not read.
 */
static bool
relay_may_try(const Feed *feed)
{
	if (!trouble_present(&feed->trouble))
		return true;
	return !trouble_waits(&feed->trouble, GetCurrentTimestamp()) &&
		!feed_can_settle(feed);
}

/*
 * Reads for this feed and for all others that lag and have read equally far.
 * There are many when the partitions of another relay are taken over.
 */
static void
relay_read_together(Relay *relay, const OutboxHorizon *horizon, Feed *first,
					List *feeds)
{
	List	   *together = NIL;
	ListCell   *cell;

	if (relay->read_failed || !feed_can_read_together(first))
		return;
	foreach(cell, feeds)
	{
		Feed	   *feed = lfirst(cell);

		if (feed_reads_with(feed, first))
			together = lappend(together, feed);
	}
	if (list_length(together) > 1)
		relay->pass_urgent |=
			head_read_together(&relay->head, horizon, relay->served.endpoints,
							   together);
}

/*
 * Reads what is next for the partitions that do not follow the head, and what
 * is due, one partition after another, until the time of this pass is up.  The
 * next pass goes on with the others, so that requests are advanced in between.
 */
static void
relay_read_feeds(Relay *relay, const OutboxHorizon *horizon)
{
	List	   *feeds = endpoints_busy_feeds();
	int			count = list_length(feeds);
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = TimestampTzPlusMilliseconds(now, RELAY_SLICE_MS);
	uint32		turn = relay->read_turn;

	until = Max(until, now + (now - relay->pass_started_at) -
				relay->head.filters_us);
	for (int i = 0; i < count; i++)
		feed_begin_pass(list_nth(feeds, i));
	for (int i = 0; i < count; i++)
	{
		Feed	   *feed = list_nth(feeds, (turn + i) % count);

		if (i > 0 && GetCurrentTimestamp() >= until)
		{
			relay->pass_urgent = true;
			return;
		}
		relay->read_turn = (turn + i + 1) % count;
		if (!feed_can_be_read(feed) || !relay_may_try(feed))
			continue;
		relay_read_together(relay, horizon, feed, feeds);
		relay->reading = feed;
		turn_at(feed->id.subscription);
		relay->pass_urgent |= feed_read(feed, horizon);
		stuck_end(feed);
		turn_at(0);
		relay->reading = NULL;
	}
}

/*
 * Endpoints at rest become busy when something of theirs is due.
 */
static void
relay_note_due(Relay *relay)
{
	TimestampTz now = GetCurrentTimestamp();
	ListCell   *cell;
	ListCell   *inner;

	if (relay->next_due_at == 0 || relay->next_due_at > now)
		return;
	relay->next_due_at = 0;
	foreach(cell, relay->served.endpoints)
	{
		Endpoint   *endpoint = lfirst(cell);
		TimestampTz due_at = 0;

		foreach(inner, endpoint->feeds)
			due_at = backoff_earlier(due_at,
									 ((Feed *) lfirst(inner))->next_due_at);
		if (due_at != 0 && due_at <= now)
			endpoint_be_busy(endpoint);
		else
			relay->next_due_at = backoff_earlier(relay->next_due_at, due_at);
	}
}

static void
relay_read_events(Relay *relay, const OutboxHorizon *horizon)
{
	TimestampTz before;

	relay->pass_urgent |=
		head_read(&relay->head, horizon, relay->served.endpoints);
	before = GetCurrentTimestamp();
	relay_read_feeds(relay, horizon);
	relay->lagging_us = GetCurrentTimestamp() - before;
}

/*
 * While no synchronous standby has what is committed, nothing new is sent, and
 * passes look whether it has.
 */
static void
relay_note_replicated(Relay *relay, bool replicated)
{
	pg_atomic_uint64 *since = &relay->database->unreplicated_since;
	TimestampTz again_at =
		TimestampTzPlusMilliseconds(GetCurrentTimestamp(), OUTBOX_STANDBY_MS);

	relay->replicated = replicated;
	if (replicated)
		pg_atomic_write_u64(since, 0);
	else if (pg_atomic_read_u64(since) == 0)
		pg_atomic_write_u64(since, relay->pass_started_at);
	if (!replicated)
		relay->next_pass_at = Min(relay->next_pass_at, again_at);
}

static void
relay_read_step(void *arg)
{
	Relay	   *relay = arg;
	ConstraintsSetStmt immediate = {.type = T_ConstraintsSetStmt};
	OutboxHorizon horizon;
	uint64		changes_ended;
	bool		all_loaded;

	/*
	 * Fire deferred triggers now: at commit the relay could no longer tell
	 * which partition an error belongs to.
	 */
	AfterTriggerSetState(&immediate);
	outbox_events_sweep();
	served_divide(&relay->served);
	changes_ended = xacts_changes_ended();
	pg_memory_barrier();
	horizon = outbox_horizon_begin();
	pg_memory_barrier();
	head_load(&relay->head);
	served_look(&relay->served, changes_ended, relay->next_pass_at);
	all_loaded = served_load(&relay->served);
	relay_note_due(relay);
	relay_note_replicated(relay, horizon.replicated);
	if (all_loaded && horizon.replicated)
		relay_read_events(relay, &horizon);
	else
		head_wait(&relay->head);
	relay->pass_urgent |= !all_loaded;
	relay->grace_ends_at = horizon.grace_ends_at;
	outbox_horizon_end(&horizon);
}

/*
 * Repeats the step until all partitions that fail are excluded.  An error that
 * neither a partition nor the log has caused ends the process.
 */
static void
relay_read(Relay *relay)
{
	ErrorData  *error;

	relay->reading = NULL;
	relay->read_failed = false;
	while ((error = worker_try("relay reads", relay_read_step, relay)) != NULL)
	{
		if (relay->reading != NULL)
			stuck_note(relay->reading, error->message, error->context);
		else if (relay->head.reading && !relay->head.handing_out)
			head_failed(&relay->head, error->message);
		else
			ReThrowError(error);
		relay->pass_wanted = true;
		relay->reading = NULL;
		relay->read_failed = true;
	}
	if (!relay->read_failed)
		worker_note_success();
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
 * worth.  Under load several events share one pass.  A backlog that is read in
 * between does not make this longer.
 */
static void
relay_rest(Relay *relay)
{
	TimestampTz now = GetCurrentTimestamp();
	long		rest_ms =
		TimestampDifferenceMilliseconds(relay->pass_started_at +
										relay->lagging_us, now);

	rest_ms *= RELAY_REST_FACTOR;
	rest_ms = Min(Max(rest_ms, RELAY_REST_MIN_MS), RELAY_REST_MAX_MS);
	relay->rest_until = TimestampTzPlusMilliseconds(now, rest_ms);
}

/*
 * Sends a request of each endpoint that goes first, at most so many.  Returns
 * how many it has sent.
 */
static int
relay_send_first(Relay *relay, int most)
{
	int			count = list_length(endpoints_busy);
	int			sent = 0;

	for (int i = 0; i < count && sent < most; i++)
	{
		Endpoint   *endpoint = list_nth(endpoints_busy,
										(relay->send_turn + i) % count);

		if (endpoint_goes_first(endpoint))
			sent += endpoint_send(endpoint, &relay->places, 1,
								  relay->served.identity);
	}
	return sent;
}

/*
 * Sends what may be sent, but not too much at once.  A request that needs a new
 * connection takes some 0.1 ms, and many endpoints that hang reach their
 * timeouts together.  The endpoints take turns: fast ones, which could always
 * go first, must not keep others from sending.
 */
static void
relay_send(Relay *relay)
{
	int			count = list_length(endpoints_busy);
	int			left = RELAY_SENDS_MAX;

	left -= relay_send_first(relay, RELAY_SENDS_FIRST_MAX);
	relay->send_turn++;
	for (int i = 0; i < count && left > 0; i++)
	{
		left -= endpoint_send(list_nth(endpoints_busy,
									   relay->send_turn % count),
							  &relay->places, left, relay->served.identity);
		relay->send_turn += left > 0 ? 1 : 0;
	}
	relay->send_more = left == 0;
}

/*
 * Makes one pass.  The count of ends is read before anything else, so that
 * transactions that end later cause another pass.
 */
static void
relay_pass(Relay *relay)
{
	relay->seen_ends = pg_atomic_read_u64(&relay->database->ends);
	pg_memory_barrier();
	relay->pass_wanted = relay->pass_urgent = false;
	relay->pass_started_at = GetCurrentTimestamp();
	relay->lagging_us = 0;
	relay->next_pass_at = TimestampTzPlusMilliseconds(relay->pass_started_at,
													  RELAY_RECONCILE_MS);
	MemoryContextSwitchTo(relay->turn_context);
	relay_settle(relay);
	relay_read(relay);
	served_drop_inactive(&relay->served);
	relay_record_head(relay);
	relay_note_commit(relay);
	stuck_show(relay->database, relay->number);
	relay_send(relay);
	relay->next_due_at = endpoints_rest(relay->next_due_at);
	relay_rest(relay);
}

/*
 * Advances the requests, takes their answers and sends more.
 */
static void
relay_work(Relay *relay)
{
	HttpResponse response;
	ListCell   *cell;

	Assert(CurrentMemoryContext == relay->turn_context);
	http_work();
	while (http_next_response(&response))
		endpoint_take_response(&response, &relay->places);
	relay_send(relay);
	foreach(cell, endpoints_busy_feeds())
	{
		const Feed *feed = lfirst(cell);
		bool		wants_pass = feed_wants_pass(feed, relay->replicated);

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

	if (relay->head.followers > 0)
		return true;
	foreach(cell, endpoints_busy_feeds())
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
	if (relay->served.own_at != 0)
		next = Min(next, relay->served.own_at);
	if (relay->next_due_at != 0)
		next = Min(next, relay->next_due_at);
	if (head_wants_record(&relay->head))
		next = Min(next, relay->head.record_at);
	if (trouble_present(&relay->head.trouble))
		next = Min(next, relay->head.trouble.wait.until);
	foreach(cell, endpoints_busy)
	{
		TimestampTz timer = endpoint_next_timer(lfirst(cell));

		if (timer != 0)
			next = Min(next, timer);
	}
	return next;
}

/*
 * Returns when something may be sent that waits for the limit of a rate; 0:
 * nothing does.  That needs no pass.
 */
static TimestampTz
relay_next_send(void)
{
	TimestampTz next = 0;
	ListCell   *cell;

	foreach(cell, endpoints_busy)
		next = backoff_earlier(next, endpoint_next_send(lfirst(cell)));
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
	until = backoff_earlier(until, relay_next_send());
	timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
	timeout = Min(timeout, RELAY_RECONCILE_MS);
	if (http_timeout >= 0)
		timeout = Min(timeout, http_timeout);
	if (relay->send_more)
		timeout = 0;
	if (armed)
	{
		shared_arm_relay(relay->database, relay->number, true);
		pg_memory_barrier();
		if (pg_atomic_read_u64(&relay->database->ends) != relay->seen_ends)
			timeout = 0;
	}
	Assert(!IsTransactionState() && !ActiveSnapshotSet());
	turn_rest();
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
 * Adds the endpoints whose rate is limited, or the others, while there is room.
 * Returns how many there are then.
 */
static int
relay_list_flights(const Places *places,
				   SharedFlight flights[SHARED_FLIGHTS_MAX], int count,
				   bool limited)
{
	ListCell   *cell;

	foreach(cell, endpoints_busy)
	{
		const Endpoint *endpoint = lfirst(cell);

		if (count == SHARED_FLIGHTS_MAX)
			break;
		if (endpoint->rate_limited != limited ||
			(endpoint->in_flight == 0 && !limited))
			continue;
		flights[count].subscription = endpoint->subscription;
		flights[count].rate_limited = limited;
		flights[count].share = place_share(places, endpoint->in_flight,
										   endpoint->settings->priority);
		flights[count++].in_flight = endpoint->in_flight;
	}
	return count;
}

/*
 * Shows in outbox_subscriptions what waits for the limit of a rate, and what is
 * in flight.
 */
static void
relay_show_flights(Relay *relay)
{
	SharedFlight flights[SHARED_FLIGHTS_MAX];
	int			count = relay_list_flights(&relay->places, flights, 0, true);

	count = relay_list_flights(&relay->places, flights, count, false);
	shared_show_flights(relay->database, relay->number, flights, count);
}

static void
relay_sign_off(int code, Datum arg)
{
	Relay	   *relay = (Relay *) DatumGetPointer(arg);

	turn_rest();
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
	relay->database = shared_my_database();
	relay->number = slot - SHARED_RELAY;
	Assert(relay->number >= 0 && relay->number < SHARED_RELAYS_MAX);
	turn_start(relay->database, relay->number);
	head_init(&relay->head, relay->number);
	served_init(&relay->served, relay->database, &relay->head, relay->context);
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

/*
 * If the clock was set back, the times until which the relay waits would all
 * come too late.
 */
static void
relay_watch_clock(Relay *relay)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		set_back = now < relay->clock;
	ListCell   *cell;

	relay->clock = now;
	if (!set_back)
		return;
	relay->pass_wanted = true;
	relay->rest_until = relay->served.next_look_at = 0;
	relay->flush_at = Min(relay->flush_at, now);
	relay->head.record_at = now;
	trouble_hurry(&relay->head.trouble, now);
	trouble_hurry(&relay->head.record_trouble, now);
	foreach(cell, endpoints_busy_feeds())
		trouble_hurry(&((Feed *) lfirst(cell))->trouble, now);
	foreach(cell, endpoints_busy)
		breaker_limit_waits(&((Endpoint *) lfirst(cell))->breaker, now);
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
		relay_watch_clock(&relay);
		turn_begin(relay.clock);
		relay_work(&relay);
		relay_flush(&relay);
		if (relay_pass_is_due(&relay))
		{
			relay_pass(&relay);
			relay_work(&relay);
		}
		if (relay.number >= settings_relays && relay.served.endpoints == NIL)
			worker_exit("it is one more than idempotency.relays");
		if (!relay_pass_is_due(&relay))
		{
			relay_show_flights(&relay);
			relay_sleep(&relay);
		}
	}
}
