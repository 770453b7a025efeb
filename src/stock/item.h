/*
 * item.h
 *		Items: their root records.  Within the stock module.
 */
#ifndef STOCK_ITEM_H
#define STOCK_ITEM_H

#include "c.h"

typedef struct ItemLevel
{
	bool		known;			/* the item exists */
	int64		available;
	int64		on_hand;		/* available and reserved */
	bool		too_many;		/* for a bigint */
	int			rows;			/* of its log, since it was compacted */
} ItemLevel;

/* Takes the locks that item_load needs, to the end of the transaction. */
extern void item_lock_for_load(void);

/* Adds up an item's root record and log, as they are now. */
extern ItemLevel item_load(const text *sku);

/* Makes sure that the item exists; may wait for somebody who creates it. */
extern void item_create(const text *sku);

#endif							/* STOCK_ITEM_H */
