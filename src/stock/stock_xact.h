/*
 * stock_xact.h
 *		What the open transaction has done with the counters of items.  Within
 *		the stock module.
 */
#ifndef STOCK_STOCK_XACT_H
#define STOCK_STOCK_XACT_H

#include "stock/escrow.h"

/*
 * To be called first by whatever changes stock: locks the log to the end of the
 * transaction.  Returns its OID.
 */
extern Oid	stock_xact_begin(void);

/*
 * Gets hold of an item's counter to the end of the transaction; what is
 * returned names it.  -1: there is no such item, and it is not to be created.
 */
extern int	stock_xact_touch(const text *sku, bool create);

/* The item was created; others know it once this transaction has committed. */
extern void stock_xact_create(int entry);
extern bool stock_xact_is_new(int entry);

/* Takes a quantity, own additions first; false: there is not so much. */
extern bool stock_xact_take(int entry, int64 quantity);

/*
 * Adds a quantity, for this transaction at once, for others at its commit: what
 * is new on hand, or was reserved.
 */
extern void stock_xact_add(int entry, int64 quantity, bool is_new);

/*
 * With the commit a quantity will not be on hand any more.  The first is for
 * one that was taken, the second for one that was reserved.
 */
extern void stock_xact_remove(int entry, int64 quantity);
extern void stock_xact_confirm(const text *sku, int64 quantity);

/* Reservations of the item that are being made lapse at a time, or later. */
extern void stock_xact_will_lapse(int entry, TimestampTz at);

/* What this transaction could take. */
extern int64 stock_xact_available(int entry);

/* The counter itself. */
extern EscrowItem *stock_xact_item(int entry);

/* How many steps there are, and back to that. */
extern int	stock_xact_mark(void);
extern void stock_xact_undo(int mark);

/* External DML changes the tables: see guard.c. */
extern void stock_xact_note_external(void);
extern bool stock_xact_is_external(void);

#endif							/* STOCK_STOCK_XACT_H */
