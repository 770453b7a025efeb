/*
 * sequence.h
 *		Numbers that do not repeat: tokens, positions, ids of stock_log.
 */
#ifndef BASE_SEQUENCE_H
#define BASE_SEQUENCE_H

#include "base/shared.h"

/*
 * Returns the highest number that a sequence is known to have handed out; 0 if
 * that is not known, as after a restart.
 */
extern int64 sequence_highest(SharedSequence id, Oid sequence);

/* Sets the sequence so that all numbers from now on are greater than this. */
extern void sequence_advance(SharedSequence id, Oid sequence, int64 beyond);

/* Returns the next number, greater than that one and than floor. */
extern int64 sequence_next(SharedSequence id, Oid sequence, int64 floor);

#endif							/* BASE_SEQUENCE_H */
