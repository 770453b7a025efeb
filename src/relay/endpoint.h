/*
 * endpoint.h
 *		A partition of a subscription, as this relay serves it.
 */
#ifndef RELAY_ENDPOINT_H
#define RELAY_ENDPOINT_H

#include "nodes/pg_list.h"

#include "outbox/subscription.h"
#include "relay/breaker.h"
#include "relay/batch.h"
#include "relay/trouble.h"

typedef struct Endpoint
{
	OutboxPartitionId id;
	char		name[NAMEDATALEN * 4];	/* of the subscription, for the log */
	bool		active;			/* this relay has to serve it */
	bool		owned;			/* this relay has its lock */
	int64		version;		/* of the subscription, as of the last pass */
	int			max_in_flight;
	Size		max_bytes;		/* limit of the next chunk; 0: read nothing */
	List	   *new_batches;	/* of Batch *, oldest first */
	List	   *due_batches;	/* the same, of deferred deliveries */
	bool		more;			/* the log has more than was read */
	bool		draining;		/* read nothing until all batches are gone */
	bool		discarding;		/* the same, and do not record them */
	bool		gone;			/* the subscription does not exist any more */
	Breaker		breaker;
	TimestampTz next_due_at;	/* 0: nothing waits, or a due batch is active */
	TimestampTz busy_until;		/* when to try locked rows again; 0: none */
	OutboxLock	lock;			/* the result of endpoint_settle */
	bool		breaker_settled;	/* it has recorded the breaker's state */
	Trouble		trouble;
	int64		tried_version;	/* of the subscription, at the last try */
	uint64		read_in_pass;
} Endpoint;

/* Creates an endpoint in the current memory context. */
extern Endpoint *endpoint_create(OutboxPartitionId id);

/* Sets the subscription's name for the log, or its id if it has no name. */
extern void endpoint_set_name(Endpoint *endpoint,
							  const OutboxSubscription *subscription);

/* Releases the partition and frees the endpoint, which must have no batches. */
extern void endpoint_free(Endpoint *endpoint);

/* Handles an answer; the tag tells to which request. */
extern void endpoint_take_response(const HttpResponse *response);

/* Sends as many requests as allowed, at most limit. */
extern void endpoint_send(Endpoint *endpoint, int limit, const char *identity);

/* Is there something to settle, or room for events that are known to exist? */
extern bool endpoint_wants_pass(const Endpoint *endpoint);

/* Could it take new events? */
extern bool endpoint_wants_events(const Endpoint *endpoint);

/* When it has to be looked at again; 0: not before the next event. */
extern TimestampTz endpoint_next_timer(const Endpoint *endpoint);

/* Stops sending what was read, and gives back what was not sent. */
extern void endpoint_stop(Endpoint *endpoint);

/* Has it no batches? */
extern bool endpoint_is_idle(const Endpoint *endpoint);

/* Number of requests in flight, and bytes of events in memory. */
extern int	endpoint_in_flight(const Endpoint *endpoint);
extern Size endpoint_bytes(const Endpoint *endpoint);

/* Is there something that can be recorded? */
extern bool endpoint_can_settle(const Endpoint *endpoint);

/* Is there something to record now?  Also ends a wait for locked rows. */
extern bool endpoint_is_to_settle(Endpoint *endpoint, TimestampTz now);

/*
 * endpoint_settle records in a transaction what can be recorded.  After its
 * commit endpoint_settled must be called; if the transaction fails, nothing is
 * forgotten.
 */
extern void endpoint_settle(Endpoint *endpoint);
extern void endpoint_settled(Endpoint *endpoint);

/*
 * Reads in a transaction what is next, with the subscription as it is now.
 * context is the parent of the memory that is kept.  Returns whether to read
 * again at once.
 */
extern bool endpoint_read(Endpoint *endpoint,
						  const OutboxSubscription *subscription,
						  const OutboxHorizon *horizon, MemoryContext context);

#endif							/* RELAY_ENDPOINT_H */
