/*
 * in_doubt.h
 *		What prepared transactions have done to the counters of items.  For the
 *		stock module only, except in_doubt_request and in_doubt_startup, which
 *		idempotency.c calls, and in_doubt_resolve and in_doubt_forget_database,
 *		which the hooks of COMMIT PREPARED and DROP DATABASE call.
 */
#ifndef STOCK_IN_DOUBT_H
#define STOCK_IN_DOUBT_H

#include "stock/escrow.h"

/* Request the memory; create it or attach to it. */
extern void in_doubt_request(void);
extern void in_doubt_startup(void);

/*
 * PREPARE TRANSACTION.  in_doubt_enter records what this transaction has done
 * to an item, and raises an error if there is no room.  in_doubt_activate takes
 * over the pins of these items when the transaction is prepared, and
 * in_doubt_cancel forgets all if it is not; neither can fail.
 */
extern void in_doubt_enter(EscrowItem *item, const EscrowPart *part);
extern void in_doubt_activate(void);
extern void in_doubt_cancel(void);

/*
 * Settles what transactions of this database have done that have ended.  Needs
 * no catalog.
 */
extern void in_doubt_resolve(void);

/* Takes the locks that in_doubt_load needs. */
extern void in_doubt_lock_for_load(void);

/*
 * Loads and publishes the counter of an item that is being loaded.  What
 * transactions have done to it that were prepared before the last start is in
 * doubt then.
 */
extern void in_doubt_load(EscrowItem *item, Oid log, const text *sku);

/* Forgets all of a database that is being dropped. */
extern void in_doubt_forget_database(Oid database);

#endif							/* STOCK_IN_DOUBT_H */
