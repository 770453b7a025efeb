/*
 * endpoint.h
 *		A lane of a subscription, as this relay serves it.
 */
#ifndef RELAY_ENDPOINT_H
#define RELAY_ENDPOINT_H

#include "nodes/pg_list.h"

#include "outbox/subscription.h"
#include "relay/breaker.h"
#include "relay/run.h"
#include "relay/trouble.h"

typedef struct Endpoint
{
	OutboxLaneId id;
	char		name[NAMEDATALEN * 4];	/* of the subscription, for the log */
	bool		active;			/* served by this relay, as of the last pass */
	bool		owned;			/* locked by this relay */
	int64		version;		/* of the subscription, as of the last pass */
	int			max_in_flight;
	Size		max_bytes;		/* of what is read next; 0: nothing can be */
	List	   *new_runs;		/* of Run *, oldest first */
	List	   *due_runs;		/* likewise */
	bool		more;			/* the log has more than was read */
	bool		draining;		/* nothing is read until all runs are gone */
	bool		discarding;		/* likewise, and they are not written down */
	bool		gone;			/* there is no such subscription any more */
	Breaker		breaker;
	TimestampTz next_due_at;	/* 0: nothing waits, or a due run is on */
	TimestampTz busy_until;		/* its rows were locked; 0: they were not */
	OutboxLock	lock;			/* what endpoint_settle found */
	bool		breaker_settled;	/* and did */
	Trouble		trouble;
	int64		tried_version;	/* of the subscription, when last tried */
	uint64		read_in_pass;
} Endpoint;

/* Makes one, in the current memory context. */
extern Endpoint *endpoint_create(OutboxLaneId id);

/* Notes the name of the subscription, or something like it if it has none. */
extern void endpoint_set_name(Endpoint *endpoint,
							  const OutboxSubscription *subscription);

/* Lets go of its lane; it has no runs any more. */
extern void endpoint_free(Endpoint *endpoint);

/* Takes an answer to a request; its tag says whose. */
extern void endpoint_take_response(const HttpResponse *response);

/* Sends what there is room for, at most limit. */
extern void endpoint_send(Endpoint *endpoint, int limit, const char *identity);

/* Is there something to settle, or room for events known to be there? */
extern bool endpoint_wants_pass(const Endpoint *endpoint);

/* Could it take new events? */
extern bool endpoint_wants_events(const Endpoint *endpoint);

/* When it is to be looked at again; 0: when something happens. */
extern TimestampTz endpoint_next_timer(const Endpoint *endpoint);

/* Sends nothing more of what was read, and gives back what it can. */
extern void endpoint_stop(Endpoint *endpoint);

/* Has it nothing on its way? */
extern bool endpoint_is_idle(const Endpoint *endpoint);

/* Requests out, and bytes of events that it holds. */
extern int	endpoint_in_flight(const Endpoint *endpoint);
extern Size endpoint_bytes(const Endpoint *endpoint);

/* Is there something that can be written down? */
extern bool endpoint_can_settle(const Endpoint *endpoint);

/* And is it time for that? */
extern bool endpoint_is_to_settle(Endpoint *endpoint, TimestampTz now);

/*
 * Inside a transaction: writes down what can be.  endpoint_settled is for when
 * that has been committed; if it is not, nothing is forgotten of it.
 */
extern void endpoint_settle(Endpoint *endpoint);
extern void endpoint_settled(Endpoint *endpoint);

/*
 * Inside a transaction: reads what is next, with the subscription as it is
 * now; context is the parent of what it keeps.  Returns whether to read again
 * at once.
 */
extern bool endpoint_read(Endpoint *endpoint,
						  const OutboxSubscription *subscription,
						  const OutboxHorizon *horizon, MemoryContext context);

#endif							/* RELAY_ENDPOINT_H */
