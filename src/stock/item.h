/*
 * item.h
 *		The root records of items.  For the stock module only.
 */
#ifndef STOCK_ITEM_H
#define STOCK_ITEM_H

#include "datatype/timestamp.h"

typedef struct ItemLevel
{
	bool		known;			/* the item exists */
	int64		available;
	int64		on_hand;		/* available and reserved, with the backorder */
	bool		too_many;		/* on_hand is out of range */
	int			rows;			/* in its log, not compacted yet */
	int			waiting;		/* reservations in its queue */
	TimestampTz lapses_at;		/* when the first of its holds does */
} ItemLevel;

/* Takes the locks that item_load needs, until the end of the transaction. */
extern void item_lock_for_load(void);

/* Adds up an item's root record, log, holds and queue, as they are now. */
extern ItemLevel item_load(const text *sku);

/*
 * What may be promised of an item beyond what is on hand, as it is now; the
 * caller has locked for a load.
 */
extern int64 item_backorder(const text *sku);

/* Creates the item's row; may wait for a transaction that creates it. */
extern void item_create(const text *sku);

#endif							/* STOCK_ITEM_H */
