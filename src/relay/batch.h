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

typedef struct BatchEvent
{
	Batch	   *batch;
	const OutboxDelivery *delivery;
	const OutboxEvent *event;
	OutboxResult result;
	bool		sent;			/* a request has it, or had it */
	bool		decided;
	bool		settled;		/* recorded */
	bool		shortened;		/* its request was told to end soon */
	struct BatchEvent *next_of_key; /* waits for this one */
	struct BatchEvent *last_of_key; /* this one waits for it, or NULL */
	struct BatchEvent *next_ready;	/* in the queue of ready items */
} BatchEvent;

/*
 * Starts a batch.  Takes over the chunk, and the current memory context, which
 * the chunk and the subscription are in.  before is the last batch of new
 * events in flight, or NULL, and deferred are those (Batch *) of deferred
 * deliveries: events of one key wait for those in them.
 */
extern Batch *batch_start(const OutboxSubscription *subscription,
						  OutboxChunk chunk, BatchKind kind, Batch *before,
						  List *deferred);

extern const OutboxSubscription *batch_subscription(const Batch *batch);
extern bool batch_is_stopped(const Batch *batch);

/*
 * The first item of the queue of those that can be sent now; the others follow
 * by next_ready.
 */
extern BatchEvent *batch_first_ready(const Batch *batch);

/* Takes an item from the queue; before is the one before it, or NULL. */
extern void batch_take_ready(BatchEvent *item, BatchEvent *before);

/* Is it too late to send an item? */
extern bool batch_has_expired(const BatchEvent *item);

/* An item that was taken from the queue is dead: it is too late to send it. */
extern void batch_expire(BatchEvent *item);

/*
 * An event was delivered, or an attempt has failed.  Those behind it can be
 * sent, or are parked; the caller has to deal with those that were sent.
 */
extern void batch_deliver(BatchEvent *item, const HttpResponse *response);
extern void batch_fail(BatchEvent *item, const HttpResponse *response,
					   RetryClass class);

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
 * An item that was sent has to be sent again by another request.  Call it for
 * all items of the request, in their order; those that are decided stay so.
 */
extern void batch_take_back(BatchEvent *item);

/* The preceding batch was freed. */
extern void batch_is_first(Batch *batch);

/* Have all its events been decided, so that all can be recorded? */
extern bool batch_is_finished(const Batch *batch);

extern int	batch_undecided(const Batch *batch);	/* undecided events */

/* Undecided events that do not wait for another one of their key. */
extern int	batch_unchained(const Batch *batch);
extern int	batch_count(const Batch *batch);	/* events in all */
extern int	batch_rows(const Batch *batch); /* that can be written now */
extern Size batch_bytes(const Batch *batch);	/* memory of its events */
extern Size batches_bytes(void);	/* memory of all batches, without events */
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
