/*
 * lapse.h
 *		When the next reservation of this database lapses.  For the stock module
 *		only.
 */
#ifndef STOCK_LAPSE_H
#define STOCK_LAPSE_H

#include "datatype/timestamp.h"

/*
 * Must be called before lapse_note, which cannot fail then.
 */
extern void lapse_begin(void);

/*
 * Records that a reservation lapses at this time.  Called when it is made, and
 * again when its transaction has committed, since a search in between does not
 * see it.
 */
extern void lapse_note(TimestampTz at);

/*
 * May any reservation have lapsed?  If so, the caller searches for all that
 * have, and passes to lapse_note when the first of the others does.  What
 * others note meanwhile is kept.
 */
extern bool lapse_take(TimestampTz now);

#endif							/* STOCK_LAPSE_H */
