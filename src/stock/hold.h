/*
 * hold.h
 *		Rows of open reservations.  For the stock module only.
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
	ItemPointerData *tids;		/* of the rows */
	TimestampTz *expiries;
	TimestampTz expires_at;		/* the earliest of expiries */
} Holds;

/* Where a search for lapsed lines continues: after this line. */
typedef struct HoldsPosition
{
	TimestampTz expires_at;
	ItemPointerData tid;		/* orders lines with the same expiry */
} HoldsPosition;

#define HOLDS_START {.expires_at = DT_NOBEGIN}

/* Reads the open lines of a reservation as they are now. */
extern Holds holds_read(const text *reservation);

/*
 * As holds_read, but first waits for transactions that are opening or closing
 * the reservation.
 */
extern Holds holds_read_settled(const text *reservation);

/*
 * Locks the lines until the end of the transaction.  Returns false if another
 * transaction has changed or locked one of them; with wait, only after that
 * transaction has ended.
 */
extern bool holds_lock(const Holds *holds, bool wait);

/* Closes a line that is locked, or is the only one; result: holds_lock. */
extern bool holds_close(const Holds *holds, int line, bool wait);

/* Sets the expiry of locked lines, unless it is later already. */
extern void holds_extend(const Holds *holds, const text *reservation,
						 TimestampTz expires_at);

/*
 * holds_open opens all lines; if one of them is open already, it opens none and
 * returns false.  holds_withdraw deletes the rows again.
 */
extern bool holds_open(const text *reservation, const StockLines *lines,
					   TimestampTz expires_at, ItemPointerData *tids);
extern void holds_withdraw(const ItemPointerData *tids, int count);

/* Has a reservation open lines, committed or not? */
extern bool holds_are_there(const text *reservation);

/*
 * Returns the names of lapsed reservations of an item, oldest first, at most
 * max.  No other reservation of the item lapses before *next.
 */
extern int	holds_lapsed(const text *sku, int max, text ***reservations,
						 TimestampTz *next);

/*
 * Returns the names of lapsed reservations of all items, from a position on,
 * which moves to the last line that was read.  When there are no more, it is
 * set to HOLDS_START.
 */
extern int	holds_lapsed_from(HoldsPosition *position, int max,
							  text ***reservations);

#endif							/* STOCK_HOLD_H */
