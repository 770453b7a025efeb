/*
 * hold.h
 *		Rows of open reservations.  Within the stock module.
 */
#ifndef STOCK_HOLD_H
#define STOCK_HOLD_H

#include "datatype/timestamp.h"
#include "storage/itemptr.h"

#include "stock/lines.h"

/* The open lines of a reservation, in the order of their numbers. */
typedef struct Holds
{
	StockLines	lines;
	ItemPointerData *tids;		/* one for each line */
	TimestampTz *expiries;
	TimestampTz expires_at;		/* the earliest of these */
} Holds;

/* Where a look for lapsed lines goes on: behind a line. */
typedef struct HoldsPosition
{
	TimestampTz expires_at;
	ItemPointerData tid;		/* of those that lapse at one time */
} HoldsPosition;

#define HOLDS_START {.expires_at = DT_NOBEGIN}

/* The open lines of a reservation as they are now. */
extern Holds holds_read(const text *reservation);

/*
 * As holds_read, but waits for transactions that are opening or closing the
 * reservation.
 */
extern Holds holds_read_settled(const text *reservation);

/*
 * Locks the lines to the end of the transaction.  false: somebody else has
 * changed or locked one; with wait, not until that one has ended.
 */
extern bool holds_lock(const Holds *holds, bool wait);

/* Closes one line, which is locked or the only one.  false: as holds_lock. */
extern bool holds_close(const Holds *holds, int line, bool wait);

/* Lets locked lines expire at a time, or later if they do so already. */
extern void holds_extend(const Holds *holds, const text *reservation,
						 TimestampTz expires_at);

/*
 * Opens lines, or none of them: false, if one is open.  Afterwards they can be
 * withdrawn, which leaves no trace of them.
 */
extern bool holds_open(const text *reservation, const StockLines *lines,
					   TimestampTz expires_at, ItemPointerData *tids);
extern void holds_withdraw(const ItemPointerData *tids, int count);

/* Has a reservation open lines, in progress ones included? */
extern bool holds_are_there(const text *reservation);

/*
 * Names of reservations of an item that have lapsed, oldest first, up to a
 * number.  *next: no other lapses before.
 */
extern int	holds_lapsed(const text *sku, int max, text ***reservations,
						 TimestampTz *next);

/*
 * Likewise of all items, from a position on, which moves behind the last one
 * that was read.  Where there are no more it is back at the start,
 * HOLDS_START.
 */
extern int	holds_lapsed_from(HoldsPosition *position, int max,
							  text ***reservations);

#endif							/* STOCK_HOLD_H */
