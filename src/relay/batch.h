/*
 * batch.h
 *		A batch: the events of a chunk, in flight to one subscription.
 */
#ifndef RELAY_BATCH_H
#define RELAY_BATCH_H

#include "nodes/pg_list.h"

#include "outbox/subscription.h"
#include "relay/http.h"
#include "relay/retry.h"

typedef struct Batch Batch;

typedef enum BatchKind
{
	BATCH_NEW,					/* read by outbox_read_chunk */
	BATCH_DUE,					/* deferred deliveries that are due */
	BATCH_EARLY,				/* deferred deliveries that are not due yet */
	BATCH_PROBE_NEW,			/* one new event as a probe */
	BATCH_PROBE_DUE				/* one deferred delivery as a probe */
} BatchKind;

/* What an answer means for the caller. */
typedef struct BatchAnswer
{
	void	   *owner;			/* as passed to batch_start */
	RetryClass	class;
	int64		position;		/* of the event */
	int			status;
	int			retry_after_s;
	bool		blames_event;	/* it failed, but the endpoint works */
	int64		version;		/* of the subscription that it was sent by */
} BatchAnswer;

/*
 * Starts a batch.  Takes over the chunk, and the current memory context, which
 * the chunk and the subscription are in.  before is the last batch of new
 * events in flight, or NULL, and deferred are those (Batch *) of deferred
 * deliveries: events of one key wait for those in them.
 */
extern Batch *batch_start(const OutboxSubscription *subscription,
						  OutboxChunk chunk, BatchKind kind, Batch *before,
						  List *deferred, void *owner);

/* Is there an event that can be sent now? */
extern bool batch_is_ready(const Batch *batch);

/* Sends what may be sent now, at most room requests; returns how many. */
extern int	batch_send(Batch *batch, int room, const char *identity);

/* Handles an answer to a request of a batch; the tag tells to which. */
extern BatchAnswer batch_take_response(const HttpResponse *response);

/*
 * Drops the events after the last one that was sent or recorded, as if they had
 * not been read; call it for the last batch first.  Returns false if no event
 * was sent or recorded: then the whole batch can be freed, and the batches
 * before do not refer to it any more.
 */
extern bool batch_cut(Batch *batch);

/* Stops sending; requests in flight are still waited for. */
extern void batch_stop(Batch *batch);

/*
 * Requests in flight must end within this time.  Events whose requests are not
 * answered by then are sent again at once.
 */
extern void batch_shorten(Batch *batch, int left_ms);

/* The preceding batch was freed. */
extern void batch_is_first(Batch *batch);

/* Have all its events been decided, so that all can be recorded? */
extern bool batch_is_finished(const Batch *batch);

extern int	batch_in_flight(const Batch *batch);	/* requests in flight */
extern int	batch_undecided(const Batch *batch);	/* undecided events */

/* Undecided events that do not wait for another one of their key. */
extern int	batch_unchained(const Batch *batch);
extern int	batch_count(const Batch *batch);	/* events in all */
extern int	batch_rows(const Batch *batch); /* that can be written now */
extern Size batch_bytes(const Batch *batch);
extern int64 batch_delivered(const Batch *batch);
extern const OutboxCursor *batch_cursor_before(const Batch *batch);
extern const OutboxCursor *batch_cursor_after(const Batch *batch);

/* Is there something to record before the batch is finished? */
extern bool batch_has_news(const Batch *batch);

/*
 * Records in a transaction the outcomes that are news or, if whole, all
 * outcomes of a finished batch that are not recorded yet.  Parked events of a
 * batch must not be recorded before the batches ahead of it: an earlier event
 * of the same key may be parked there, and would be overtaken.
 *
 * Returns how many delivered deferred deliveries it has deleted.  They must be
 * counted in the same transaction, since they leave no other trace.
 */
extern int64 batch_settle(Batch *batch, bool whole);

/*
 * Must be called after the commit, with the same value of whole, and with the
 * batches (Batch *) of deferred deliveries that are in flight.
 */
extern void batch_settled(Batch *batch, bool whole, List *deferred);

/* Appends the events (OutboxEvent *) that are not recorded yet. */
extern List *batch_open_events(const Batch *batch, List *events);

/* Frees a batch, after the transaction that settled it has committed. */
extern void batch_free(Batch *batch);

#endif							/* RELAY_BATCH_H */
