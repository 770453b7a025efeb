/*
 * backoff.h
 *		Exponential back-off: a pause that doubles with each failure.
 */
#ifndef BASE_BACKOFF_H
#define BASE_BACKOFF_H

#include "datatype/timestamp.h"

/* All 0: nothing has failed, or what has failed may be tried at once. */
typedef struct Backoff
{
	int			pause_ms;		/* the last one */
	TimestampTz until;			/* not before is the next try */
} Backoff;

/* A try has failed: the next pause is twice the last one, within limits. */
extern void backoff_fail(Backoff *backoff, int min_ms, int max_ms,
						 TimestampTz now);

#endif							/* BASE_BACKOFF_H */
