/*
 * hold.h
 *		Rows of open reservations.  For the stock module only.
 */
#ifndef STOCK_HOLD_H
#define STOCK_HOLD_H

#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "utils/snapshot.h"

#include "stock/lines.h"
#include "stock/names.h"

/* The columns of stock_hold, counted from 0. */
enum
{
	HOLD_ATT_QUANTITY,
	HOLD_ATT_EXPIRES_AT,
	HOLD_ATT_LINE,
	HOLD_ATT_RESERVATION,
	HOLD_ATT_SKU,
	HOLD_ATT_LINES,
	HOLD_ATT_ID,
	HOLD_ATT_AT,
	HOLD_ATT_ACTOR,
	HOLD_ATTS
};

/* The open lines of a reservation, in the order of their skus. */
typedef struct Holds
{
	StockLines	lines;			/* the only one may wait, with quantity 0 */
	ItemPointerData *tids;		/* of the rows */
	TimestampTz *expiries;
	TimestampTz expires_at;		/* the earliest of expiries */
} Holds;

/*
 * Where a search of all items for lapsed lines continues: after this line, or
 * after all lines of the item.
 */
typedef struct HoldsPosition
{
	text	   *sku;			/* NULL: at the start */
	TimestampTz expires_at;		/* DT_NOEND: after the item */
	ItemPointerData tid;		/* orders lines with the same expiry */
} HoldsPosition;

/*
 * Takes the locks that holds_sum needs, until the end of the transaction; adds
 * up the quantities of an item's holds.  *lapses_at becomes the time when the
 * first of them lapses, if that is sooner.
 */
extern void holds_lock_for_sum(void);
extern int64 holds_sum(const text *sku, Snapshot snapshot,
					   TimestampTz *lapses_at);

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

/* Does the reservation wait, so that nothing is reserved? */
extern bool holds_wait(const Holds *holds);

/* Writes the locked line of a reservation that does not wait any more. */
extern void holds_serve(const Holds *holds, const text *reservation,
						TimestampTz expires_at);

/* Sets the expiry of locked lines, unless it is later already. */
extern void holds_extend(const Holds *holds, const text *reservation,
						 TimestampTz expires_at);

/*
 * holds_open opens all lines.  If one of them is open already, or names_begin
 * fails, it opens none and returns false.  holds_withdraw deletes the rows
 * again.
 */
extern bool holds_open(const text *reservation, const ReservationName *name,
					   const StockLines *lines, TimestampTz expires_at,
					   ItemPointerData *tids);
extern void holds_withdraw(const ItemPointerData *tids, int count);

/*
 * Returns the names of lapsed reservations of an item, of which none lapses
 * before "from", oldest first, at most max.  No reservation of the item lapses
 * before *next.  Unless "repeated", leaves out those that are returned for
 * another item, too.
 */
extern int	holds_lapsed(const text *sku, TimestampTz from, int max,
						 bool repeated, text ***reservations,
						 TimestampTz *next);

/*
 * Returns the names of lapsed reservations, item by item, from a position on.
 * Reads a limited number of lines.  The position moves to the last one, and
 * back to the start when there are no more; its sku is allocated in the current
 * context.  *next becomes the time when the first other line lapses of an item
 * without a counter, if that is sooner.
 */
extern int	holds_lapsed_from(HoldsPosition *position, int max,
							  text ***reservations, TimestampTz *next);

#endif							/* STOCK_HOLD_H */
