/*
 * breaker.h
 *		How many requests an endpoint may have in flight, when it counts as
 *		failing, and how it is probed then.  Pure functions, without I/O.
 */
#ifndef RELAY_BREAKER_H
#define RELAY_BREAKER_H

#include "base/backoff.h"

#define BREAKER_FAILURES 20		/* failed events in a row that open it */
#define BREAKER_UNANSWERED 5	/* the same if none of them was answered, */
#define BREAKER_UNANSWERED_MS 60000 /* and the row has lasted for this time */
#define BREAKER_WINDOW_START 8	/* requests in flight before any success */
#define BREAKER_PROBE_MIN_MS 1000	/* wait before the first probe */
#define BREAKER_PROBE_MAX_MS (5 * 60 * 1000)	/* longest wait for a probe */

typedef struct Breaker
{
	int			window;			/* requests that may be in flight */
	bool		works;			/* as its last answer has shown */
	int64		failed[BREAKER_FAILURES];	/* first events of the requests
											 * that failed in a row */
	int			failures;		/* their number */
	bool		unanswered;		/* none of them was answered */
	TimestampTz failed_from;	/* when the first one failed */
	TimestampTz asked_until;	/* the endpoint wants no request before, */
	TimestampTz probe_asked_until;	/* or no probe */
	bool		open;			/* the endpoint fails: only probes are sent */
	bool		trip_wanted;	/* open has to be recorded in the database */
	bool		reset_wanted;	/* its end has to be recorded */
	bool		probe_new;		/* the next probe sends a new event */
	bool		idle;			/* there was no event for a probe */
	Backoff		probe;			/* before the next one */
} Breaker;

extern void breaker_init(Breaker *breaker);

/* The endpoint has accepted an event. */
extern void breaker_success(Breaker *breaker, int max_in_flight);

/* The endpoint has refused an event, but works. */
extern void breaker_works(Breaker *breaker);

/*
 * The endpoint has failed, with this event; status 0 means that there was no
 * answer.
 */
extern void breaker_failure(Breaker *breaker, int64 position, int status,
							int retry_after_s, TimestampTz now);

/* Sets the state that is recorded in the database. */
extern void breaker_set(Breaker *breaker, bool open, TimestampTz now);

/*
 * The subscription was altered: what is known of the endpoint may not be true
 * any more, so the next request is sent soon, and few at first.
 */
extern void breaker_forget(Breaker *breaker, TimestampTz now);

/* The clock was set back: no wait is longer than its limit. */
extern void breaker_limit_waits(Breaker *breaker, TimestampTz now);

/* Returns the time before which no probe may be sent. */
extern TimestampTz breaker_probe_at(const Breaker *breaker);

/* A probe is being sent; sets when the next one may be sent. */
extern void breaker_probe(Breaker *breaker, TimestampTz now, double jitter);

#endif							/* RELAY_BREAKER_H */
