/*
 * lapse.h
 *		When reservations of items without a counter lapse.  For the stock
 *		module only.
 */
#ifndef STOCK_LAPSE_H
#define STOCK_LAPSE_H

#include "datatype/timestamp.h"
#include "port/atomics.h"

/* Sets a time that others may set, too, unless it is sooner. */
extern void lapse_lower(pg_atomic_uint64 *to, TimestampTz at);

/*
 * Must be called before lapse_note, which cannot fail then.
 */
extern void lapse_begin(void);

/*
 * Records that a reservation may lapse at this time of which no counter knows.
 */
extern void lapse_note(TimestampTz at);

/* The same for an item of which the counter was evicted. */
extern void lapse_note_evicted(Oid database, TimestampTz at);

/*
 * May any such reservation have lapsed?  If so, the caller searches for all
 * that have, and passes to lapse_note when the first of the others does.  What
 * others note meanwhile is kept.
 */
extern bool lapse_take(TimestampTz now);

#endif							/* STOCK_LAPSE_H */
