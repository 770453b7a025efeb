/*
 * run.h
 *		A run: a batch of events in flight to one subscription.
 */
#ifndef RELAY_RUN_H
#define RELAY_RUN_H

#include "nodes/pg_list.h"

#include "outbox/subscription.h"
#include "relay/http.h"
#include "relay/retry.h"

typedef struct Run Run;

typedef enum RunKind
{
	RUN_NEW,					/* read by outbox_read_batch */
	RUN_DUE,					/* deferred deliveries that are due */
	RUN_PROBE_NEW,				/* the same as probes: a failed attempt */
	RUN_PROBE_DUE				/* does not count */
} RunKind;

/* What an answer means for the caller. */
typedef struct RunAnswer
{
	void	   *owner;			/* as passed to run_start */
	RetryVerdict verdict;
	bool		first_attempt;	/* at this event */
	bool		blames_event;	/* it failed, but the endpoint works */
	bool		overloaded;		/* it failed because of overload */
	int			retry_after_s;
} RunAnswer;

/*
 * Starts a run.  Takes over the batch, and the current memory context, which
 * the batch and the subscription are in.  before is the last run of new events
 * in flight, or NULL: events of one key wait for those in it.
 */
extern Run *run_start(const OutboxSubscription *subscription, OutboxBatch batch,
					  RunKind kind, Run *before, void *owner);

/* Sends what may be sent now, at most room requests; returns how many. */
extern int	run_send(Run *run, int room, const char *identity);

/* Handles an answer to a request of a run; the tag tells to which. */
extern RunAnswer run_take_response(const HttpResponse *response);

/*
 * Drops the events after the last one that was sent or recorded, as if they had
 * not been read; call it for the last run first.  Returns false if no event was
 * sent or recorded: then the whole run can be freed, and the runs before do not
 * refer to it any more.
 */
extern bool run_cut(Run *run);

/* Stops sending; requests in flight are still waited for. */
extern void run_stop(Run *run);

/* Records that the cursor has moved to after, without events in between. */
extern void run_extend(Run *run, const OutboxCursor *after);

/* The preceding run was freed. */
extern void run_is_first(Run *run);

/* Have all its events been decided, so that all can be recorded? */
extern bool run_is_finished(const Run *run);

extern int	run_in_flight(const Run *run);	/* requests in flight */
extern int	run_undecided(const Run *run);	/* undecided events */
extern int	run_count(const Run *run);	/* events in all */
extern Size run_bytes(const Run *run);
extern int64 run_delivered(const Run *run);
extern const OutboxCursor *run_cursor_before(const Run *run);
extern const OutboxCursor *run_cursor_after(const Run *run);

/* Is there something to record before the run is finished? */
extern bool run_has_news(const Run *run);

/*
 * Records in a transaction the outcomes that are news or, if whole, all
 * outcomes of a finished run that are not recorded yet.  Parked events of a
 * run must not be recorded before the runs ahead of it: an earlier event of
 * the same key may be parked there, and would be overtaken.
 *
 * Returns how many delivered deferred deliveries it has deleted.  They must be
 * counted in the same transaction, since they leave no other trace.
 */
extern int64 run_settle(Run *run, bool whole);

/* Must be called after the commit, with the same value of whole. */
extern void run_settled(Run *run, bool whole);

/* Appends the events (OutboxEvent *) that are not recorded yet. */
extern List *run_positions(const Run *run, List *positions);

/* Frees a run, after the transaction that settled it has committed. */
extern void run_free(Run *run);

#endif							/* RELAY_RUN_H */
