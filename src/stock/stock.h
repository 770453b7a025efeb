/*
 * stock.h
 *		Limits of what is named in stock.  Within the stock module.
 */
#ifndef STOCK_STOCK_H
#define STOCK_STOCK_H

#define STOCK_NAME_MAX 255		/* bytes of a sku, a reservation, an actor */
#define STOCK_NOTE_MAX 1000		/* bytes of a note */
#define STOCK_LINES_MAX 10000	/* of a reservation */

#endif							/* STOCK_STOCK_H */
