/*
 * endpoint.h
 *		The endpoint of a subscription: what it may be sent, and when.
 */
#ifndef RELAY_ENDPOINT_H
#define RELAY_ENDPOINT_H

#include "nodes/pg_list.h"

#include "outbox/subscription.h"
#include "relay/breaker.h"
#include "relay/http.h"
#include "relay/place.h"
#include "relay/rate.h"

struct Feed;

typedef struct Endpoint
{
	int64		subscription;
	char		name[NAMEDATALEN * 4];	/* of the subscription, for the log */
	OutboxSubscription *settings;	/* as loaded, or NULL */
	MemoryContext settings_context;
	bool		stale;			/* they have changed since */
	bool		busy;			/* in endpoints_busy */
	uint64		seen;			/* number of the look that has found it */
	List	   *feeds;			/* of struct Feed *, the partitions here */
	uint32		send_turn;		/* number of the feed that sends first */
	uint32		probe_turn;		/* number of the feed that probes next */
	int			probe_misses;	/* feeds in a row without an event for that */
	int			in_flight;		/* requests */
	Breaker		breaker;
	Rate		rate;			/* of this relay, if there is a limit */
	bool		rate_limited;	/* events wait for it */
} Endpoint;

/*
 * The endpoints (Endpoint *) with something to do, or to wait for.  All others
 * are at rest: their feeds follow the head, and nothing is deferred, or not due
 * yet.
 */
extern List *endpoints_busy;

/* Returns all their feeds (struct Feed *). */
extern List *endpoints_busy_feeds(void);

/* Adds an endpoint to them. */
extern void endpoint_be_busy(Endpoint *endpoint);

/*
 * Takes those from the list that are at rest.  Returns when the first of these
 * has something due, if that is before next_due_at; 0: none has.
 */
extern TimestampTz endpoints_rest(TimestampTz next_due_at);

/*
 * Creates the endpoint of a subscription in the current memory context, without
 * feeds; frees it when it has none any more.
 */
extern Endpoint *endpoint_create(int64 subscription);
extern void endpoint_free(Endpoint *endpoint);

/* Returns its feed of a partition, or NULL. */
extern struct Feed *endpoint_find_feed(const Endpoint *endpoint,
									   int32 partition);

/* Sets the subscription's name for the log, or its id if it has no name. */
extern void endpoint_set_name(Endpoint *endpoint,
							  const OutboxSubscription *subscription);

/* Copies the settings of the subscription, and takes over its state. */
extern void endpoint_set(Endpoint *endpoint,
						 const OutboxSubscription *subscription);

/* Handles an answer; the tag tells to which request. */
extern void endpoint_take_response(const HttpResponse *response,
								   Places *places);

/*
 * Is it to send before others?  It works and has nothing in flight: endpoints
 * that hang must not delay it.
 */
extern bool endpoint_goes_first(const Endpoint *endpoint);

/* Sends as many requests as allowed, at most so many; returns how many. */
extern int	endpoint_send(Endpoint *endpoint, Places *places, int most,
						  const char *identity);

/* When it may send what waits for the limit of its rate; 0: nothing does. */
extern TimestampTz endpoint_next_send(const Endpoint *endpoint);

/*
 * Returns how many events a feed may read at once, and have undecided before it
 * reads more.  With a limit, that is as much as can be sent in one second:
 * what is read is kept in memory, and sent again if the relay dies.
 */
extern int	endpoint_chunk_max(const Endpoint *endpoint);

/* Has none of its feeds anything in flight, or to be sent? */
extern bool endpoint_is_quiet(const Endpoint *endpoint);

/* When it has to be looked at again; 0: not before the next event. */
extern TimestampTz endpoint_next_timer(const Endpoint *endpoint);

/*
 * May this feed send a probe now?  Then endpoint_probed must be called, with
 * whether there was an event for it.
 */
extern bool endpoint_may_probe(const Endpoint *endpoint,
							   const struct Feed *feed, TimestampTz now);
extern void endpoint_probed(Endpoint *endpoint, bool found, TimestampTz now);

/* Is there something to record of the endpoint? */
extern bool endpoint_wants_settle(const Endpoint *endpoint);

/*
 * endpoint_settle records in a transaction that the endpoint fails as a whole,
 * or works again; false: the subscription is locked, or was altered.  After the
 * commit endpoint_settled must be called.  Any feed can do both, since the rows
 * of another one may be locked; it does no harm if several do.
 */
extern bool endpoint_settle(Endpoint *endpoint);
extern void endpoint_settled(Endpoint *endpoint);

#endif							/* RELAY_ENDPOINT_H */
