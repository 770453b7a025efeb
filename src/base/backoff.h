/*
 * backoff.h
 *		Exponential back-off: a pause that doubles with each failure.
 */
#ifndef BASE_BACKOFF_H
#define BASE_BACKOFF_H

#include "datatype/timestamp.h"

/* All 0: there is no pause. */
typedef struct Backoff
{
	int			pause_ms;		/* the last one */
	TimestampTz until;			/* no try before that time */
} Backoff;

/* Begins a pause after a failure, twice as long as the last one, in limits. */
extern void backoff_fail(Backoff *backoff, int min_ms, int max_ms,
						 TimestampTz now);

/* Ends the pause; the next one is the shortest again. */
extern void backoff_reset(Backoff *backoff);

/* Returns the earlier one of two times; 0 is none. */
extern TimestampTz backoff_earlier(TimestampTz one, TimestampTz other);

#endif							/* BASE_BACKOFF_H */
