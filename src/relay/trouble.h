/*
 * trouble.h
 *		Why a partition cannot be served, and when it is tried again.
 */
#ifndef RELAY_TROUBLE_H
#define RELAY_TROUBLE_H

#include "datatype/timestamp.h"

#include "base/backoff.h"
#include "base/shared.h"

#define TROUBLE_WAIT_MIN_MS 1000	/* wait before the first new try */
#define TROUBLE_WAIT_MAX_MS 30000	/* the longest wait */

typedef struct Trouble
{
	char		error[SHARED_TROUBLE_MAX];	/* empty: no trouble */
	Backoff		wait;			/* before another try */
} Trouble;

/* Is there trouble? */
extern bool trouble_present(const Trouble *trouble);

/* Returns whether another try is too early. */
extern bool trouble_waits(const Trouble *trouble, TimestampTz now);

/* Records a failed try; returns whether the text differs from the last one. */
extern bool trouble_note(Trouble *trouble, const char *error, TimestampTz now);

/* Makes the next try due: the cause may be gone. */
extern void trouble_hurry(Trouble *trouble, TimestampTz now);

/* Records a successful try; returns whether there was trouble before. */
extern bool trouble_end(Trouble *trouble);

#endif							/* RELAY_TROUBLE_H */
