/*
 * trouble.h
 *		What keeps a partition from being served, and when it is tried again.
 */
#ifndef RELAY_TROUBLE_H
#define RELAY_TROUBLE_H

#include "datatype/timestamp.h"

#include "base/backoff.h"
#include "base/shared.h"

#define TROUBLE_WAIT_MIN_MS 1000	/* before the first new try */
#define TROUBLE_WAIT_MAX_MS 30000	/* between two, at most */

typedef struct Trouble
{
	char		text[SHARED_TROUBLE_MAX];	/* empty: there is none */
	Backoff		wait;			/* before another try */
} Trouble;

/* Is there any? */
extern bool trouble_present(const Trouble *trouble);

/* Whether it is too early for another try. */
extern bool trouble_waits(const Trouble *trouble, TimestampTz now);

/* A try has failed; returns whether this is another trouble than before. */
extern bool trouble_note(Trouble *trouble, const char *text, TimestampTz now);

/* What was wrong may have changed: the next try is due. */
extern void trouble_hurry(Trouble *trouble, TimestampTz now);

/* A try has succeeded; returns whether there was any trouble. */
extern bool trouble_end(Trouble *trouble);

#endif							/* RELAY_TROUBLE_H */
