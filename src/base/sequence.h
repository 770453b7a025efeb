/*
 * sequence.h
 *		Numbers that do not repeat: tokens, positions, ids of the log of stock.
 */
#ifndef BASE_SEQUENCE_H
#define BASE_SEQUENCE_H

#include "base/shared.h"

/*
 * The highest number that a sequence is known to have handed out; 0 if none is,
 * as after a restart.
 */
extern int64 sequence_highest(SharedSequence id, Oid sequence);

/* The next number of a sequence, above that and above a floor. */
extern int64 sequence_next(SharedSequence id, Oid sequence, int64 floor);

#endif							/* BASE_SEQUENCE_H */
