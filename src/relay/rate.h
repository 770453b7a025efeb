/*
 * rate.h
 *		How many events a second may be sent to an endpoint.  Pure functions,
 *		without I/O.
 */
#ifndef RELAY_RATE_H
#define RELAY_RATE_H

#include "datatype/timestamp.h"

#define RATE_WAIT_MIN_MS 10		/* shortest wait for tokens */
#define RATE_WAIT_MAX_MS (60 * 60 * 1000)	/* longest wait */

/* A token bucket.  All 0: it is new. */
typedef struct Rate
{
	double		per_second;		/* tokens that it gets */
	double		tokens;			/* below 0: more were taken than it had */
	TimestampTz filled_at;		/* tokens is as of then; 0: never */
} Rate;

/*
 * Adds the tokens that are due by now, and sets how many it gets from now on.
 * A new bucket gets one, so the first event need not wait.
 */
extern void rate_fill(Rate *rate, double per_second, TimestampTz now);

/* Returns how many tokens can be taken. */
extern int	rate_tokens(const Rate *rate);

/* Takes tokens. */
extern void rate_take(Rate *rate, int count);

/*
 * Returns when to try again after there were none; 0: not before the rate is
 * changed.
 */
extern TimestampTz rate_next_at(const Rate *rate);

#endif							/* RELAY_RATE_H */
