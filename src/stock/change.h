/*
 * change.h
 *		Takes quantities from items and gives them back.  Within the stock
 *		module.
 */
#ifndef STOCK_CHANGE_H
#define STOCK_CHANGE_H

#include "base/catalog.h"
#include "stock/hold.h"
#include "stock/lines.h"

/* A line that cannot be had. */
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
 * Takes all lines or none, after lapsed reservations have made way for them.
 * Without shortages they are taken; stock_xact_undo(*mark) gives them back.
 */
extern Shortages change_take(const StockLines *lines, int *mark);

/* Does it look as if all lines could be taken? */
extern bool change_can_take(const StockLines *lines);

/* Lines that were taken are going to be held until a time. */
extern void change_note_expiry(const StockLines *lines, TimestampTz expires_at);

/* Adds quantities to items, which are new on hand or were reserved. */
extern void change_add(const StockLines *lines, bool is_new);

/* The shortages as jsonb: [{"sku", "wanted", "available", "missing"}, ...]. */
extern Datum change_shortages_datum(const Shortages *shortages);

/*
 * Closes lines that are locked, or the only one, by this change, and writes
 * that down.  false: the only one was not free; see holds_close.
 */
extern bool change_close(StockChange change, const text *reservation,
						 const text *actor, const Holds *holds, bool wait);

/* Lets a lapsed reservation expire, unless somebody has it; how many lines. */
extern int	change_expire(const text *reservation);

#endif							/* STOCK_CHANGE_H */
