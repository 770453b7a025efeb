/*
 * breaker.h
 *		When an endpoint counts as failing, and how it is tried then.  Pure.
 */
#ifndef RELAY_BREAKER_H
#define RELAY_BREAKER_H

#include "base/backoff.h"

#define BREAKER_FAILURES 20		/* events in a row that make an endpoint fail */
#define BREAKER_PROBE_MIN_MS 1000	/* before the first probe */
#define BREAKER_PROBE_MAX_MS (5 * 60 * 1000)	/* between two, at most */
#define BREAKER_WINDOW_START 8	/* requests in flight, before any success */
#define BREAKER_WINDOW_MIN 4	/* however much the endpoint is at pains */

typedef struct Breaker
{
	int			window;			/* requests that may be in flight */
	int			failures;		/* events in a row whose first attempt failed */
	bool		open;			/* the endpoint fails: only probes go out */
	bool		trip_wanted;	/* that is yet to be written down, or its end */
	bool		reset_wanted;
	bool		probe_new;		/* the next probe takes a new event */
	bool		idle;			/* there was nothing to probe with */
	Backoff		probe;			/* before the next one */
} Breaker;

extern void breaker_init(Breaker *breaker);

/* The endpoint has answered well. */
extern void breaker_success(Breaker *breaker, int max_in_flight);

/* It has answered that it cannot take this one event. */
extern void breaker_works(Breaker *breaker);

/* It fails. */
extern void breaker_failure(Breaker *breaker, bool first_attempt,
							bool overloaded, int retry_after_s,
							TimestampTz now);

/* What is written down says that the endpoint fails, or that it works. */
extern void breaker_set(Breaker *breaker, bool open, TimestampTz now);

/* The endpoint may be another now: it is probed soon. */
extern void breaker_hurry(Breaker *breaker, TimestampTz now);

/* A probe goes out; says when the next one may. */
extern void breaker_probe(Breaker *breaker, TimestampTz now, double jitter);

#endif							/* RELAY_BREAKER_H */
