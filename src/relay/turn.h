/*
 * turn.h
 *		Shows since when this relay has been in the present turn of its loop,
 *		and at which subscription it is.
 */
#ifndef RELAY_TURN_H
#define RELAY_TURN_H

#include "base/shared.h"

/* Must be called before the others. */
extern void turn_start(SharedDatabase *database, int relay);

/* The loop begins a turn, or rests in between. */
extern void turn_begin(TimestampTz now);
extern void turn_rest(void);

/* What follows is for this subscription; 0: for none in particular. */
extern void turn_at(int64 subscription);

#endif							/* RELAY_TURN_H */
