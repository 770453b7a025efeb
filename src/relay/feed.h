/*
 * feed.h
 *		A feed: a partition of a subscription, as this relay serves it.
 */
#ifndef RELAY_FEED_H
#define RELAY_FEED_H

#include "nodes/pg_list.h"

#include "outbox/subscription.h"
#include "relay/batch.h"
#include "relay/endpoint.h"
#include "relay/trouble.h"

typedef struct Feed
{
	OutboxPartitionId id;
	Endpoint   *endpoint;
	bool		active;			/* this relay has to serve it */
	bool		owned;			/* this relay has its lock */
	Size		max_bytes;		/* limit of the next chunk; 0: read nothing */
	List	   *new_batches;	/* of Batch *, oldest first */
	List	   *due_batches;	/* the same, of deferred deliveries */
	bool		more;			/* the log has more than was read */
	bool		draining;		/* read nothing until all batches are gone */
	bool		discarding;		/* the same, and do not record them */
	bool		gone;			/* the subscription does not exist any more */
	TimestampTz next_due_at;	/* 0: nothing waits, or a due batch is active */
	TimestampTz busy_until;		/* when to try locked rows again; 0: none */
	OutboxLock	lock;			/* the result of feed_settle */
	int			heads;			/* new batches that it records as a whole */
	bool		breaker_settled;	/* it has recorded the breaker's state */
	Trouble		trouble;
	int64		tried_version;	/* of the subscription, at the last try */
	uint64		read_in_pass;
	int			in_flight;		/* requests */
	TimestampTz tried_early;	/* failures before it were read again */
} Feed;

/*
 * Creates a feed in the current memory context, and adds it to those of the
 * endpoint.
 */
extern Feed *feed_create(OutboxPartitionId id, Endpoint *endpoint);

/*
 * Releases the partition, takes the feed from its endpoint and frees it.  It
 * must have no batches.
 */
extern void feed_free(Feed *feed);

/* Sends as many requests as allowed, at most limit; returns how many. */
extern int	feed_send(Feed *feed, int limit, const char *identity);

/* Is there something to settle, or room for events that are known to exist? */
extern bool feed_wants_pass(const Feed *feed);

/* Could it take new events? */
extern bool feed_wants_events(const Feed *feed);

/* When it has to be looked at again; 0: not before the next event. */
extern TimestampTz feed_next_timer(const Feed *feed);

/*
 * Gives back what was read and not sent, to be read again.  feed_stop also
 * reads nothing until all batches are gone.
 */
extern void feed_give_back(Feed *feed);
extern void feed_stop(Feed *feed);

/*
 * Requests in flight must end within this time.  Events whose requests are not
 * answered by then are sent again at once.
 */
extern void feed_shorten(Feed *feed, int left_ms);

/* Has it no batches? */
extern bool feed_is_idle(const Feed *feed);

/* Has it no events whose outcome is not known? */
extern bool feed_is_quiet(const Feed *feed);

/* Can it send a probe, if it has an event for that? */
extern bool feed_can_probe(const Feed *feed);

/* Bytes of events in memory. */
extern Size feed_bytes(const Feed *feed);

/* Is there something that can be recorded? */
extern bool feed_can_settle(const Feed *feed);

/* Is there something to record now?  Also ends a wait for locked rows. */
extern bool feed_is_to_settle(Feed *feed, TimestampTz now);

/* How many rows have to be written for that, at most. */
extern int	feed_rows(const Feed *feed);

/*
 * feed_settle records in a transaction what can be recorded.  After its commit
 * feed_settled must be called; if the transaction fails, nothing is forgotten.
 */
extern void feed_settle(Feed *feed);
extern void feed_settled(Feed *feed);

/*
 * Reads in a transaction what is next, with the subscription as it is now.
 * context is the parent of the memory that is kept.  Returns whether to read
 * again at once.
 */
extern bool feed_read(Feed *feed,
					  const OutboxSubscription *subscription,
					  const OutboxHorizon *horizon, MemoryContext context);

#endif							/* RELAY_FEED_H */
