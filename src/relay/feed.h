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
#include "relay/group.h"
#include "relay/head.h"
#include "relay/trouble.h"

typedef enum FeedTogether
{
	FEED_CAN_READ_TOGETHER,
	FEED_READS_TOGETHER,
	FEED_HAS_READ_TOGETHER,
	FEED_READS_ALONE			/* it could not take what it wanted */
} FeedTogether;

typedef struct Feed
{
	OutboxPartitionId id;
	Endpoint   *endpoint;
	Head	   *head;			/* of this relay */
	bool		active;			/* this relay has to serve it */
	bool		wrong;			/* something is wrong with its row, or with
								 * the subscription */
	bool		loaded;			/* what follows is set */
	OutboxRow	row;			/* as last read or written */
	bool		attached;		/* it follows the head */
	FeedTogether together;		/* reading with others in this pass */
	OutboxCursor cursor;		/* otherwise, how far it has read */
	int64		again_to;		/* up to there, events that it reads may be
								 * deferred already; 0: none is */
	TimestampTz write_at;		/* until then it is not written */
	struct HeadPage *page;		/* while the head reads (head.c) */
	Size		max_bytes;		/* limit of the next chunk; 0: read nothing */
	List	   *new_batches;	/* of Batch *, oldest first */
	List	   *due_batches;	/* the same, of deferred deliveries */
	Groups		groups;			/* what is in requests */
	FilterCounts filtered;		/* not recorded yet */
	int64		filter_us;		/* CPU time of its filter in one read, */
	uint64		filter_read;	/* which is this one of the head */
	TimestampTz alone_until;	/* it does not follow the head */
	TimestampTz rest_until;		/* it reads nothing */
	bool		more;			/* the log has more than was read */
	bool		draining;		/* read nothing until all batches are gone */
	bool		discarding;		/* the same, and do not record them */
	bool		gone;			/* the subscription does not exist any more */
	TimestampTz next_due_at;	/* 0: nothing waits, or a due batch is active */
	bool		ask_due;		/* that may have changed */
	TimestampTz busy_until;		/* when to try locked rows again; 0: none */
	OutboxLock	lock;			/* the result of feed_settle */
	OutboxRow	written;		/* by feed_settle */
	int			whole;			/* new batches that it records as a whole */
	bool		breaker_settled;	/* it has recorded the breaker's state */
	Trouble		trouble;
	int			in_flight;		/* requests */
	TimestampTz tried_early;	/* failures before it were read again */
} Feed;

/*
 * Creates a feed in the current memory context, and adds it to those of the
 * endpoint.
 */
extern Feed *feed_create(OutboxPartitionId id, Endpoint *endpoint,
						 Head *head);

/* Takes the feed from its endpoint and frees it.  It must have no batches. */
extern void feed_free(Feed *feed);

/*
 * Takes over what is recorded of the partition, unless that is what it has
 * recorded itself.  If something is wrong with it, it is not served.
 */
extern void feed_load(Feed *feed, const OutboxSubscription *subscription);

/* Is that out of date? */
extern bool feed_is_out_of_date(const Feed *feed, const OutboxSeen *seen);

/* Has it to be loaded again, and can it be? */
extern bool feed_is_to_load(const Feed *feed);

/* It does not follow the head any more, and reads on from this cursor. */
extern void feed_detach(Feed *feed, const OutboxCursor *cursor);

/* It can be freed: nothing is left to be done or recorded. */
extern bool feed_is_done(const Feed *feed);

/* Does it follow the head, with nothing to do before it gets a page? */
extern bool feed_is_at_rest(const Feed *feed);

/* Does its row say that it follows the head, although it does not? */
extern bool feed_holds_head(const Feed *feed);

/* May some of its deliveries be deferred? */
extern bool feed_may_have_deferred(const Feed *feed);

/* Can it take events from the head?  Then max_bytes is set. */
extern bool feed_can_take_page(Feed *feed);

/* Comes before the others in each pass. */
extern void feed_begin_pass(Feed *feed);

/* Does it lag, and could read with others in this pass? */
extern bool feed_can_read_together(const Feed *feed);

/* Can it read with this other feed, which lags: have they read equally far? */
extern bool feed_reads_with(const Feed *feed, const Feed *other);

/* It has got what it wants of this chunk, which was read for several feeds. */
extern void feed_move(Feed *feed, const OutboxChunk *chunk);

/*
 * Takes these deliveries (OutboxDelivery *), which the head has found for it in
 * what it has read.
 */
extern void feed_take_page(Feed *feed, const OutboxChunk *whole,
						   List *deliveries);

/*
 * Does the filter let an event that the head has for it pass?
 */
extern bool feed_filter_passes(Feed *feed, Jsonb *payload);

/*
 * Its filter has taken much time: it reads alone, and rests if that was very
 * much.
 */
extern void feed_tire(Feed *feed, int64 filter_us);

/* Its subscription was altered: what has made it wait may be gone. */
extern void feed_hurry(Feed *feed);

/* Has it an event that feed_send would send? */
extern bool feed_can_send(const Feed *feed);

/*
 * Sends as many requests as allowed, at most limit; returns how many.  Each
 * event takes a token.
 */
extern int	feed_send(Feed *feed, int limit, int *tokens, const char *identity);

/*
 * Is there something to settle, or, if new events can be read, room for some
 * that are known to exist?
 */
extern bool feed_wants_pass(const Feed *feed, bool can_read);

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

/* Can feed_read be called? */
extern bool feed_can_be_read(const Feed *feed);

/*
 * Reads in a transaction what is next.  Returns whether to read again at once.
 */
extern bool feed_read(Feed *feed, const OutboxHorizon *horizon);

#endif							/* RELAY_FEED_H */
