/*
 * run.h
 *		A batch of events on its way to one subscription.
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
	RUN_NEW,					/* of outbox_read_batch */
	RUN_DUE,					/* exceptions whose time has come */
	RUN_PROBE_NEW,				/* likewise, but to see if the endpoint works: */
	RUN_PROBE_DUE				/* a failed attempt does not count */
} RunKind;

/* What an answer means for those who asked. */
typedef struct RunAnswer
{
	void	   *owner;			/* given to run_start */
	RetryVerdict verdict;
	bool		first_attempt;	/* at this event */
	bool		blames_event;	/* it failed, but the endpoint works */
	bool		overloaded;		/* it failed, and the endpoint should get less */
	int			retry_after_s;
} RunAnswer;

/*
 * Takes over a batch, and the current memory context, which it and the
 * subscription are in.  before is the last run of new events that is on its way, or NULL: events
 * of one key wait for those in there.
 */
extern Run *run_start(const OutboxSubscription *subscription, OutboxBatch batch,
					  RunKind kind, Run *before, void *owner);

/* Sends what may go now, at most room requests; returns how many went. */
extern int	run_send(Run *run, int room, const char *identity);

/* Takes an answer to one of a run's requests; its tag says which. */
extern RunAnswer run_take_response(const HttpResponse *response);

/*
 * Drops what comes after the last event that was sent or written down, as if it
 * had never been read; call it for the last run first.  False: there is none,
 * so all of it can be dropped; the runs before have forgotten it then.
 */
extern bool run_cut(Run *run);

/* Sends nothing more; what is in flight is still waited for. */
extern void run_stop(Run *run);

/* The lane moves on to after without any event for this subscription. */
extern void run_extend(Run *run, const OutboxLane *after);

/* The run before it is no more. */
extern void run_is_first(Run *run);

/* Has everything in it been decided, and can be written down? */
extern bool run_is_finished(const Run *run);

extern int	run_in_flight(const Run *run);	/* requests out */
extern int	run_undecided(const Run *run);	/* events still to be decided */
extern int	run_count(const Run *run);	/* events in all */
extern Size run_bytes(const Run *run);
extern int64 run_delivered(const Run *run);
extern const OutboxLane *run_lane_before(const Run *run);
extern const OutboxLane *run_lane_after(const Run *run);

/* Is there something to be written down before the run is finished? */
extern bool run_has_news(const Run *run);

/*
 * Inside a transaction: writes down what is news, or, of a run that is
 * finished, the whole of what is not yet written.  What is parked in a run must
 * not be written before the runs ahead of it are: an earlier event of its key
 * may be parked there, and would be overtaken.
 *
 * Returns how many delivered exceptions it has deleted, which must be counted
 * in the same transaction: after a crash nothing tells of them.
 */
extern int64 run_settle(Run *run, bool whole);

/* That has been committed; whole as it was then. */
extern void run_settled(Run *run, bool whole);

/* Appends the positions of events that are still to be written down. */
extern List *run_positions(const Run *run, List *positions);

/* Frees a run; call after the transaction that settled it has committed. */
extern void run_free(Run *run);

#endif							/* RELAY_RUN_H */
