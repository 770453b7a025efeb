/*
 * served.c
 *		What a relay serves: its part of the partitions, and their subscriptions
 *		in memory.
 *
 * A database can have several relays.  Partitions are divided into buckets;
 * which relay has to serve a bucket follows from its number and the relays that
 * run, and the relay that has its lock does serve it.  A relay that has to give
 * up a bucket keeps the lock until the last request has ended, which it does
 * within SERVED_LEAVE_MS, and the rows of the partitions do not name its head
 * any more.  If a relay dies, its locks are released.
 *
 * Subscriptions are kept in memory.  When one was changed by a function, and
 * from time to time, the relay looks which rows have changed, and loads those.
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/settings.h"
#include "base/shared.h"
#include "relay/endpoint.h"
#include "relay/feed.h"
#include "relay/served.h"
#include "relay/stuck.h"

/* When to try again to lock a bucket that another relay still has. */
#define SERVED_OWN_MS 100
/* How long requests may still take after their bucket was given up. */
#define SERVED_LEAVE_MS 1000
/* The most subscriptions that a pass loads. */
#define SERVED_LOADS_MAX 500
/* Endpoints that the table has room for at first. */
#define SERVED_ENDPOINTS 64

/* An entry of the table of endpoints. */
typedef struct ServedEndpoint
{
	int64		subscription;	/* the key */
	Endpoint   *endpoint;
} ServedEndpoint;

void
served_init(Served *served, SharedDatabase *database, Head *head,
			MemoryContext context)
{
	HASHCTL		control = {0};

	memset(served, 0, sizeof(*served));
	served->database = database;
	served->head = head;
	served->context = context;
	control.keysize = sizeof(int64);
	control.entrysize = sizeof(ServedEndpoint);
	control.hcxt = context;
	served->table = hash_create("idempotency endpoints", SERVED_ENDPOINTS,
								&control,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static Endpoint *
served_find_endpoint(const Served *served, int64 subscription)
{
	const ServedEndpoint *entry = hash_search(served->table,
											  &subscription, HASH_FIND, NULL);

	return entry ? entry->endpoint : NULL;
}

/*
 * The entry refers to the endpoint when that is complete, since its making may
 * fail.
 */
static Endpoint *
served_endpoint(Served *served, int64 subscription)
{
	bool		found;
	ServedEndpoint *entry = hash_search(served->table, &subscription,
										HASH_ENTER, &found);

	if (!found)
		entry->endpoint = NULL;
	if (entry->endpoint == NULL)
	{
		Endpoint   *endpoint = endpoint_create(subscription);

		served->endpoints = lappend(served->endpoints, endpoint);
		entry->endpoint = endpoint;
	}
	return entry->endpoint;
}

static Feed *
served_feed(Served *served, OutboxPartitionId id)
{
	MemoryContext old = MemoryContextSwitchTo(served->context);
	Endpoint   *endpoint = served_endpoint(served, id.subscription);
	Feed	   *feed = endpoint_find_feed(endpoint, id.number);

	if (feed == NULL)
	{
		Assert(served->buckets[outbox_bucket(id)]);
		feed = feed_create(id, endpoint, served->head);
		served->bucket_feeds[outbox_bucket(id)]++;
	}
	MemoryContextSwitchTo(old);
	return feed;
}

/*
 * Is this database the outbox's home?  Logs once when it is found to be a copy,
 * and once when it is none any more.
 */
static bool
served_is_at_home(Served *served)
{
	bool		any_subscription;
	char	   *identity = outbox_read_identity(&any_subscription);

	if (identity != NULL)
	{
		strlcpy(served->identity, identity, sizeof(served->identity));
		if (served->held)
			ereport(LOG, (errmsg("outbox subscriptions are not held any more")));
		served->held = false;
		return true;
	}
	if (any_subscription && !served->held)
		ereport(WARNING,
				(errmsg("outbox subscriptions are held because this database is a copy"),
				 errhint("Call outbox_adopt() if the copy is to send its own events.")));
	served->held = any_subscription;
	return false;
}

static void
served_drop_endpoint(Served *served, Endpoint *endpoint)
{
	head_forget_topics(served->head);
	hash_search(served->table, &endpoint->subscription, HASH_REMOVE,
				NULL);
	served->endpoints = list_delete_ptr(served->endpoints, endpoint);
	endpoint_free(endpoint);
}

void
served_drop_inactive(Served *served)
{
	List	   *feeds = endpoints_busy_feeds();
	ListCell   *cell;

	foreach(cell, feeds)
	{
		Feed	   *feed = lfirst(cell);
		Endpoint   *endpoint = feed->endpoint;

		if (feed->active)
			continue;
		feed_stop(feed);
		if (!feed_is_done(feed))
			continue;
		stuck_forget(feed);
		Assert(served->bucket_feeds[outbox_bucket(feed->id)] > 0);
		served->bucket_feeds[outbox_bucket(feed->id)]--;
		feed_free(feed);
		if (endpoint->feeds == NIL)
			served_drop_endpoint(served, endpoint);
	}
}

/*
 * The relay does not have to serve the feeds of an endpoint any more, or only
 * those of a bucket (or -1).
 */
static void
served_deactivate(Endpoint *endpoint, int bucket)
{
	ListCell   *cell;

	foreach(cell, endpoint->feeds)
	{
		Feed	   *feed = lfirst(cell);

		if (bucket >= 0 && outbox_bucket(feed->id) != bucket)
			continue;
		feed->active = false;
		if (bucket >= 0)
			feed_shorten(feed, SERVED_LEAVE_MS);
	}
	endpoint_be_busy(endpoint);
}

static bool
served_wants_bucket(const Served *served, int bucket)
{
	return served->rank >= 0 && bucket % served->relays == served->rank;
}

/*
 * Gives up a bucket, whose lock is released when it has no feeds any more.  An
 * endpoint that hangs must not delay the others of its bucket for long.
 */
static void
served_give_up_bucket(Served *served, int bucket)
{
	ListCell   *cell;

	if (served->bucket_feeds[bucket] > 0)
	{
		foreach(cell, served->endpoints)
			served_deactivate(lfirst(cell), bucket);
		return;
	}
	outbox_disown_bucket(bucket);
	served->buckets[bucket] = false;
}

void
served_divide(Served *served)
{
	served->rank = shared_relay_rank(served->database, served->head->relay,
									 &served->relays);
	if (served->head->relay >= settings_relays)
		served->rank = -1;		/* it has to serve no partition any more */
	served->own_at = 0;
	for (int i = 0; i < OUTBOX_BUCKETS; i++)
	{
		if (served_wants_bucket(served, i) == served->buckets[i])
			continue;
		if (served->buckets[i])
		{
			served_give_up_bucket(served, i);
			continue;
		}
		served->buckets[i] = outbox_own_bucket(i);
		if (served->buckets[i])
			served->next_look_at = 0;
		else
			served->own_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														 SERVED_OWN_MS);
	}
}

static void
served_want_load(Served *served, int64 subscription)
{
	if (served->load_count > 0 &&
		served->loads[served->load_count - 1] == subscription)
		return;
	Assert(served->load_count <= served->load_room);
	if (served->load_count == served->load_room)
	{
		served->load_room = Max(2 * served->load_room, SERVED_LOADS_MAX);
		served->loads = served->loads == NULL ?
			MemoryContextAlloc(served->context,
							   served->load_room * sizeof(int64)) :
			repalloc_huge(served->loads, served->load_room * sizeof(int64));
	}
	served->loads[served->load_count++] = subscription;
}

static bool
served_includes(const Served *served, OutboxPartitionId id)
{
	int			bucket = outbox_bucket(id);

	return served->buckets[bucket] && served_wants_bucket(served, bucket);
}

/*
 * Is what is known of a partition, or of its subscription, out of date?
 */
static bool
served_is_out_of_date(const Served *served, Endpoint *endpoint,
					  const OutboxSeen *seen)
{
	const OutboxSubscription *settings = endpoint ? endpoint->settings : NULL;
	const Feed *feed;

	if (!served_includes(served, seen->id))
		return false;
	if (settings == NULL || endpoint->stale ||
		settings->row_version.xmin != seen->row_version.xmin ||
		!ItemPointerEquals(&endpoint->settings->row_version.place,
						   (ItemPointer) &seen->row_version.place))
		return true;
	feed = endpoint_find_feed(endpoint, seen->id.number);
	return feed == NULL || !feed->active || feed_is_out_of_date(feed, seen);
}

/*
 * Looks which subscriptions have to be loaded, and which are not there or not
 * active any more.
 */
static void
served_look_at_all(Served *served, bool with_due)
{
	OutboxSeen *seen;
	int			count = 0;
	ListCell   *cell;

	if (served_is_at_home(served))
		count = outbox_see_partitions(with_due, &seen);
	served->look++;
	served->load_count = 0;
	for (int i = 0; i < count; i++)
	{
		Endpoint   *endpoint = served_find_endpoint(served,
													seen[i].id.subscription);

		if (endpoint != NULL)
			endpoint->seen = served->look;
		if (served_is_out_of_date(served, endpoint, &seen[i]))
			served_want_load(served, seen[i].id.subscription);
	}
	foreach(cell, served->endpoints)
	{
		Endpoint   *endpoint = lfirst(cell);

		if (endpoint->seen != served->look)
			served_deactivate(endpoint, -1);
	}
}

/*
 * If more changes have begun by now than have ended before the snapshot was
 * taken, it may show some of them or not.
 */
void
served_look(Served *served, uint64 changes_ended, TimestampTz next_look_at)
{
	uint64		changes = xacts_changes_begun();
	bool		is_time = GetCurrentTimestamp() >= served->next_look_at;

	Assert(changes >= served->seen_changes && changes >= changes_ended);
	if (!is_time && served->seen_all && changes == served->seen_changes)
		return;
	served_look_at_all(served, is_time);
	served->seen_changes = changes;
	served->seen_all = changes == changes_ended;
	if (is_time)
		served->next_look_at = next_look_at;
}

/*
 * Takes over a partition of a subscription, as it is recorded now.
 */
static void
served_load_partition(Served *served, const OutboxSubscription *subscription)
{
	Feed	   *feed;

	if (!served_includes(served, subscription->id))
		return;
	feed = served_feed(served, subscription->id);
	if (subscription->wrong != NULL)
	{
		endpoint_set_name(feed->endpoint, subscription);
		feed_load(feed, subscription);
		stuck_note(feed, subscription->wrong, NULL);
		return;
	}
	if (feed->endpoint->settings == NULL ||
		feed->endpoint->settings->version != subscription->version)
		feed_hurry(feed);
	feed_load(feed, subscription);
}

/*
 * Loads a subscription, whose partitions are these.  Its columns are the same
 * in all of them that are not wrong.
 */
static void
served_load_subscription(Served *served, const OutboxSubscription *partitions,
						 int count)
{
	Endpoint   *endpoint;
	int			right = 0;

	for (int i = 0; i < count; i++)
	{
		if (served_includes(served, partitions[i].id))
			(void) served_feed(served, partitions[i].id);
	}
	endpoint = served_find_endpoint(served, partitions[0].id.subscription);
	if (endpoint == NULL)
		return;
	while (right < count && partitions[right].wrong != NULL)
		right++;
	if (right < count)
		endpoint_set(endpoint, &partitions[right]);
	for (int i = 0; i < count; i++)
		served_load_partition(served, &partitions[i]);
}

/*
 * Adds the busy endpoints that are out of date to those that are to be loaded.
 */
static void
served_want_stale(Served *served)
{
	ListCell   *cell;
	ListCell   *inner;

	foreach(cell, endpoints_busy)
	{
		const Endpoint *endpoint = lfirst(cell);
		bool		stale = endpoint->stale;

		foreach(inner, endpoint->feeds)
			stale |= feed_is_to_load(lfirst(inner));
		if (stale)
			served_want_load(served, endpoint->subscription);
	}
}

/*
 * Partitions that are not found when the subscription is loaded do not exist
 * any more.
 */
static void
served_forget(Served *served, int64 subscription)
{
	Endpoint   *endpoint = served_find_endpoint(served, subscription);

	if (endpoint == NULL)
		return;
	served_deactivate(endpoint, -1);
	endpoint->stale = false;
}

bool
served_load(Served *served)
{
	OutboxSubscription *rows;
	int			loads;
	int			count;
	int			first = 0;

	served_want_stale(served);
	loads = Min(served->load_count, SERVED_LOADS_MAX);
	if (loads == 0)
		return true;
	head_forget_topics(served->head);
	served->load_count -= loads;
	for (int i = served->load_count; i < served->load_count + loads; i++)
		served_forget(served, served->loads[i]);
	count = outbox_read_subscriptions(&served->loads[served->load_count], loads,
									  &rows);
	for (int i = 1; i <= count; i++)
	{
		if (i < count &&
			rows[i].id.subscription == rows[first].id.subscription)
			continue;
		served_load_subscription(served, &rows[first], i - first);
		first = i;
	}
	return served->load_count == 0;
}
