/*
 * endpoint.c
 *		The endpoint of a subscription: what it may be sent, and when.
 *
 * All partitions of a subscription that this relay serves (feed.c) share its
 * endpoint: the breaker, the number of requests in flight, and the pause that
 * the endpoint has asked for.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/endpoint.h"
#include "relay/feed.h"

/*
 * How long a request to a URL that the subscription does not have any more may
 * still take.
 */
#define ENDPOINT_LEAVE_MS 1000
/* With fewer events, the next ones are often read too late. */
#define ENDPOINT_CHUNK_MIN 2

List	   *endpoints_busy = NIL;

void
endpoint_be_busy(Endpoint *endpoint)
{
	MemoryContext old;

	if (endpoint->busy)
		return;
	old = MemoryContextSwitchTo(GetMemoryChunkContext(endpoint));
	endpoints_busy = lappend(endpoints_busy, endpoint);
	MemoryContextSwitchTo(old);
	endpoint->busy = true;
}

List *
endpoints_busy_feeds(void)
{
	List	   *feeds = NIL;
	ListCell   *cell;

	foreach(cell, endpoints_busy)
		feeds = list_concat(feeds, ((Endpoint *) lfirst(cell))->feeds);
	return feeds;
}

static bool
endpoint_is_at_rest(const Endpoint *endpoint)
{
	ListCell   *cell;

	if (endpoint->breaker.open || endpoint_wants_settle(endpoint) ||
		endpoint->stale || endpoint->in_flight > 0 || endpoint->feeds == NIL)
		return false;
	foreach(cell, endpoint->feeds)
	{
		if (!feed_is_at_rest(lfirst(cell)))
			return false;
	}
	return true;
}

TimestampTz
endpoints_rest(TimestampTz next_due_at)
{
	ListCell   *cell;
	ListCell   *inner;

	foreach(cell, endpoints_busy)
	{
		Endpoint   *endpoint = lfirst(cell);

		Assert(endpoint->busy);
		if (!endpoint_is_at_rest(endpoint))
			continue;
		endpoint->busy = false;
		endpoints_busy = foreach_delete_current(endpoints_busy, cell);
		foreach(inner, endpoint->feeds)
		{
			const Feed *feed = lfirst(inner);

			next_due_at = backoff_earlier(next_due_at, feed->next_due_at);
		}
	}
	return next_due_at;
}

Endpoint *
endpoint_create(int64 subscription)
{
	Endpoint   *endpoint = palloc0(sizeof(Endpoint));

	endpoint->subscription = subscription;
	breaker_init(&endpoint->breaker);
	endpoint_be_busy(endpoint);
	return endpoint;
}

void
endpoint_free(Endpoint *endpoint)
{
	Assert(endpoint->feeds == NIL && endpoint->in_flight == 0);
	if (endpoint->busy)
		endpoints_busy = list_delete_ptr(endpoints_busy, endpoint);
	if (endpoint->settings_context != NULL)
		MemoryContextDelete(endpoint->settings_context);
	pfree(endpoint);
}

Feed *
endpoint_find_feed(const Endpoint *endpoint, int32 partition)
{
	ListCell   *cell;

	foreach(cell, endpoint->feeds)
	{
		Feed	   *feed = lfirst(cell);

		if (feed->id.number == partition)
			return feed;
	}
	return NULL;
}

void
endpoint_set_name(Endpoint *endpoint, const OutboxSubscription *subscription)
{
	if (subscription->name != NULL)
		strlcpy(endpoint->name, subscription->name, sizeof(endpoint->name));
	else
		snprintf(endpoint->name, sizeof(endpoint->name), "%lld",
				 (long long) endpoint->subscription);
}

bool
endpoint_is_quiet(const Endpoint *endpoint)
{
	ListCell   *cell;

	foreach(cell, endpoint->feeds)
	{
		if (!feed_is_quiet(lfirst(cell)))
			return false;
	}
	return true;
}

/*
 * The subscription was altered.  What was read but not sent is given back, to
 * be read again with the new settings.  If the endpoint hangs, and the change
 * is about that, requests in flight need not be waited for.
 */
static void
endpoint_alter(Endpoint *endpoint, bool url_changes)
{
	int			left_ms = endpoint->settings->timeout_ms;
	ListCell   *cell;

	if (url_changes)
		left_ms = Min(left_ms, ENDPOINT_LEAVE_MS);
	foreach(cell, endpoint->feeds)
	{
		feed_give_back(lfirst(cell));
		feed_shorten(lfirst(cell), left_ms);
	}
	breaker_forget(&endpoint->breaker, GetCurrentTimestamp());
	endpoint->probe_misses = 0;
}

static void
endpoint_copy_settings(Endpoint *endpoint,
					   const OutboxSubscription *subscription)
{
	MemoryContext old;

	if (endpoint->settings_context == NULL)
		endpoint->settings_context =
			AllocSetContextCreate(GetMemoryChunkContext(endpoint),
								  "idempotency endpoint",
								  ALLOCSET_SMALL_SIZES);
	endpoint->settings = NULL;
	MemoryContextReset(endpoint->settings_context);
	old = MemoryContextSwitchTo(endpoint->settings_context);
	endpoint->settings = outbox_copy_settings(subscription);
	MemoryContextSwitchTo(old);
}

static void
endpoint_stop(Endpoint *endpoint)
{
	ListCell   *cell;

	foreach(cell, endpoint->feeds)
		feed_stop(lfirst(cell));
}

void
endpoint_set(Endpoint *endpoint, const OutboxSubscription *subscription)
{
	const OutboxSubscription *before = endpoint->settings;
	bool		altered = before == NULL ||
		before->version != subscription->version;
	bool		url_changes = before != NULL &&
		strcmp(before->url, subscription->url) != 0;

	endpoint_set_name(endpoint, subscription);
	endpoint_copy_settings(endpoint, subscription);
	if (altered)
		endpoint_alter(endpoint, url_changes);
	if (subscription->failing && !endpoint->breaker.open)
		endpoint_stop(endpoint);
	breaker_set(&endpoint->breaker, subscription->failing,
				GetCurrentTimestamp());
	endpoint->stale = false;
	endpoint_be_busy(endpoint);
}

/*
 * An answer to a request from before the last change of the subscription is not
 * about the endpoint as it is now: it may come from another URL.  Nor does the
 * end of a request that was told to end tell anything.
 */
void
endpoint_take_response(const HttpResponse *response, Places *places)
{
	GroupAnswer answer = groups_take_response(response);
	Feed	   *feed = answer.owner;
	Endpoint   *endpoint = feed->endpoint;
	Breaker    *breaker = &endpoint->breaker;
	int			window_max = endpoint->settings->max_in_flight *
		list_length(endpoint->feeds);

	Assert(feed->in_flight > 0 && endpoint->in_flight >= feed->in_flight);
	place_leave(places, endpoint->in_flight--);
	feed->in_flight--;
	if (answer.version != endpoint->settings->version || answer.shortened)
		return;
	if (answer.class == RETRY_DONE)
		breaker_success(breaker, window_max);
	else if (answer.blames_event)
		breaker_works(breaker);
	else
		breaker_failure(breaker, answer.position, answer.status,
						answer.retry_after_s, GetCurrentTimestamp());
	if (answer.class == RETRY_GONE || breaker->trip_wanted)
		endpoint_stop(endpoint);
}

/*
 * Returns the feed whose turn it is to send a probe, or NULL.
 */
static const Feed *
endpoint_prober(const Endpoint *endpoint)
{
	int			feeds = list_length(endpoint->feeds);

	for (int i = 0; i < feeds; i++)
	{
		const Feed *feed = list_nth(endpoint->feeds,
									(endpoint->probe_turn + i) % feeds);

		if (feed_can_probe(feed))
			return feed;
	}
	return NULL;
}

/*
 * Sends at most room requests, at most share of each feed.  Returns how many.
 * Each event takes a token.
 */
static int
endpoint_send_shares(Endpoint *endpoint, int room, int share, int *tokens,
					 const char *identity)
{
	int			feeds = list_length(endpoint->feeds);
	int			sent = 0;

	for (int i = 0; i < feeds && sent < room; i++)
	{
		Feed	   *feed = list_nth(endpoint->feeds,
									endpoint->send_turn++ % feeds);

		sent += feed_send(feed, Min(share, room - sent), tokens, identity);
	}
	return sent;
}

/*
 * Returns how many events the limit of the rate lets this relay send now.  The
 * relays of a subscription share the limit by the partitions that they serve.
 */
static int
endpoint_tokens(Endpoint *endpoint, TimestampTz now)
{
	int			served = 0;
	ListCell   *cell;

	if (endpoint->settings->rate_limit == 0)
	{
		memset(&endpoint->rate, 0, sizeof(endpoint->rate));
		return PG_INT32_MAX;
	}
	foreach(cell, endpoint->feeds)
	{
		const Feed *feed = lfirst(cell);

		served += feed->active && feed->loaded ? 1 : 0;
	}
	rate_fill(&endpoint->rate,
			  endpoint->settings->rate_limit * served /
			  endpoint->settings->partitions, now);
	return rate_tokens(&endpoint->rate);
}

/*
 * Do events wait only because tokens are missing?
 */
static bool
endpoint_lacks_tokens(const Endpoint *endpoint)
{
	ListCell   *cell;

	if (endpoint->settings->rate_limit == 0 || rate_tokens(&endpoint->rate) > 0)
		return false;
	foreach(cell, endpoint->feeds)
	{
		if (feed_can_send(lfirst(cell)))
			return true;
	}
	return false;
}

bool
endpoint_goes_first(const Endpoint *endpoint)
{
	return endpoint->in_flight == 0 && endpoint->breaker.works;
}

/*
 * The feeds take turns, and get the same share if there is not enough room.
 */
int
endpoint_send(Endpoint *endpoint, Places *places, int most,
			  const char *identity)
{
	TimestampTz now = GetCurrentTimestamp();
	int			feeds = list_length(endpoint->feeds);
	int			before = endpoint->in_flight;
	int			room;
	int			sent;
	int			had;
	int			tokens;

	endpoint->rate_limited = false;
	if (endpoint->settings == NULL || endpoint->breaker.asked_until > now)
		return 0;
	room = place_room(places, before, endpoint->breaker.window,
					  endpoint->settings->priority);
	room = Min(room, most);
	had = tokens = endpoint_tokens(endpoint, now);
	while (room > 0 && tokens > 0)
	{
		sent = endpoint_send_shares(endpoint, room, Max(room / feeds, 1),
									&tokens, identity);
		Assert(sent >= 0 && sent <= room);
		if (sent == 0)
			break;
		room -= sent;
		while (sent-- > 0)
			place_take(places, endpoint->in_flight++);
	}
	rate_take(&endpoint->rate, had - tokens);
	endpoint->rate_limited = endpoint_lacks_tokens(endpoint);
	return endpoint->in_flight - before;
}

TimestampTz
endpoint_next_send(const Endpoint *endpoint)
{
	return endpoint->rate_limited ? rate_next_at(&endpoint->rate) : 0;
}

int
endpoint_chunk_max(const Endpoint *endpoint)
{
	double		a_second;

	if (endpoint->settings->rate_limit == 0)
		return OUTBOX_CHUNK_MAX;
	a_second = endpoint->settings->rate_limit / endpoint->settings->partitions;
	return (int) Min(Max(a_second, ENDPOINT_CHUNK_MIN), OUTBOX_CHUNK_MAX);
}

TimestampTz
endpoint_next_timer(const Endpoint *endpoint)
{
	const Breaker *breaker = &endpoint->breaker;
	TimestampTz next = 0;
	ListCell   *cell;

	foreach(cell, endpoint->feeds)
		next = backoff_earlier(next, feed_next_timer(lfirst(cell)));
	if (!endpoint_is_quiet(endpoint))
		return breaker->asked_until > GetCurrentTimestamp() ?
			backoff_earlier(next, breaker->asked_until) : next;
	if (breaker->open && !breaker->idle && endpoint_prober(endpoint) != NULL)
		return backoff_earlier(next, breaker_probe_at(breaker));
	return next;
}

bool
endpoint_may_probe(const Endpoint *endpoint, const Feed *feed, TimestampTz now)
{
	const Breaker *breaker = &endpoint->breaker;
	bool		its_turn = breaker->idle ?
		feed_can_probe(feed) : endpoint_prober(endpoint) == feed;

	return its_turn && endpoint_is_quiet(endpoint) &&
		now >= breaker_probe_at(breaker);
}

/*
 * If no feed has an event, the next one that comes is the probe.  Until then
 * each pass asks every feed once, and no pass is made for that alone.
 */
void
endpoint_probed(Endpoint *endpoint, bool found, TimestampTz now)
{
	Breaker    *breaker = &endpoint->breaker;

	Assert(breaker->open);
	endpoint->probe_turn++;
	if (!found)
	{
		if (!breaker->idle &&
			++endpoint->probe_misses >= list_length(endpoint->feeds))
		{
			breaker->idle = true;
			endpoint->probe_misses = 0;
		}
		return;
	}
	breaker->idle = false;
	endpoint->probe_misses = 0;
	breaker_probe(breaker, now, pg_prng_double(&pg_global_prng_state));
	ereport(DEBUG1,
			(errmsg_internal("probing the endpoint of subscription \"%s\"",
							 endpoint->name)));
}

bool
endpoint_wants_settle(const Endpoint *endpoint)
{
	return endpoint->breaker.trip_wanted || endpoint->breaker.reset_wanted;
}

bool
endpoint_settle(Endpoint *endpoint)
{
	Assert(endpoint->breaker.trip_wanted != endpoint->breaker.reset_wanted);
	return outbox_set_failing(endpoint->subscription,
							  endpoint->settings->version,
							  endpoint->breaker.trip_wanted);
}

void
endpoint_settled(Endpoint *endpoint)
{
	Breaker    *breaker = &endpoint->breaker;
	bool		failing = breaker->trip_wanted;

	if (!endpoint_wants_settle(endpoint))
		return;
	breaker->trip_wanted = false;
	breaker->reset_wanted = false;
	endpoint->stale = true;
	if (failing)
		ereport(LOG,
				(errmsg("the endpoint of subscription \"%s\" fails",
						endpoint->name),
				 errdetail("%d different requests in a row have failed. Only probes are sent until one of them is accepted.",
						   breaker->failures)));
	else
		ereport(LOG,
				(errmsg("the endpoint of subscription \"%s\" works again",
						endpoint->name)));
}
