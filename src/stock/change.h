/*
 * change.h
 *		Takes quantities from items and gives them back.  For the stock module
 *		only.
 */
#ifndef STOCK_CHANGE_H
#define STOCK_CHANGE_H

#include "base/catalog.h"
#include "stock/hold.h"
#include "stock/ledger.h"
#include "stock/lines.h"

/* A line that cannot be taken. */
typedef struct Shortage
{
	const StockLine *line;
	int64		available;
	bool		known;			/* the item exists */
} Shortage;

typedef struct Shortages
{
	int			count;
	bool		unknown;		/* one of the items does not exist */
	Shortage   *line;
} Shortages;

/*
 * Takes all lines or none.  If an item falls short, lapsed reservations of it
 * expire first.  If others wait for it, nothing of it is available, unless
 * overtake.  If shortages.count is 0 the lines are taken, and
 * stock_xact_undo(*mark) gives them back.
 */
extern Shortages change_take(const StockLines *lines, bool overtake, int *mark);

/* Records that the lines are about to be held until this time. */
extern void change_note_expiry(const StockLines *lines, TimestampTz expires_at);

/* Adds quantities to items: new on hand (is_new), or reserved until now. */
extern void change_add(const StockLines *lines, bool is_new);

/* The shortages as jsonb: [{"sku", "wanted", "available", "missing"}, ...]. */
extern Datum change_shortages_datum(const Shortages *shortages);

/*
 * Keeps others who open lines of a closed reservation waiting until the end of
 * the transaction.  They could choose other lines, so that no key is the same.
 */
extern void change_lock_closed(const text *reservation);

/* Keeps others who set the backorder of an item waiting, likewise. */
extern void change_lock_backorder(const text *sku);

/*
 * Numbers the lines that a reservation shall have, for change_reopen.  The line
 * of an item keeps its number, unless it is confirmed.
 */
extern void change_number_lines(StockLines *lines, const Holds *open,
								const LedgerLines *past);

/*
 * Opens closed lines of a reservation again, or new ones; their quantities are
 * taken.  Returns false if one of them is open already.
 */
extern bool change_reopen(const text *reservation, const text *actor,
						  const StockLines *lines, TimestampTz expires_at);

/*
 * change_end_lines deletes the holds of lines and writes the log.
 * change_close also gives the quantities back, unless they are confirmed, and
 * announces the change; or ends the wait of a reservation that waits.  The
 * caller has locked the lines, or there is only one.
 * Returns false if that one was not free; see holds_close.
 */
extern bool change_end_lines(StockChange change, const text *reservation,
							 const text *actor, const Holds *holds, bool wait);
extern bool change_close(StockChange change, const text *reservation,
						 const text *actor, const Holds *holds, bool wait);

/*
 * Lets a lapsed reservation expire, unless another transaction has locked it.
 * Returns the number of lines.
 */
extern int	change_expire(const text *reservation);

#endif							/* STOCK_CHANGE_H */
