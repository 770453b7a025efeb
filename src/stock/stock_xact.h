/*
 * stock_xact.h
 *		What the open transaction has done to the counters of items.  For the
 *		stock module only.
 */
#ifndef STOCK_STOCK_XACT_H
#define STOCK_STOCK_XACT_H

#include "stock/escrow.h"

/*
 * Must be called first by every function that changes stock.  Locks the log
 * until the end of the transaction and returns its OID.
 */
extern Oid	stock_xact_begin(void);

/*
 * Pins an item's counter until the end of the transaction, loads it if
 * necessary, and returns its entry.  Returns -1 if the item does not exist and
 * create is false.
 */
extern int	stock_xact_touch(const text *sku, bool create);

/* Marks an item as created; others see it when this transaction commits. */
extern void stock_xact_create(int entry);
extern bool stock_xact_is_new(int entry);

/* Takes a quantity, own additions first; false: not enough is available. */
extern bool stock_xact_take(int entry, int64 quantity);

/*
 * Adds a quantity, new on hand (is_new) or reserved until now: for this
 * transaction at once, for others when it commits.
 */
extern void stock_xact_add(int entry, int64 quantity, bool is_new);

/*
 * Remove a quantity from what is on hand when the transaction commits:
 * stock_xact_remove one that was taken, stock_xact_confirm one that was
 * reserved.
 */
extern void stock_xact_remove(int entry, int64 quantity);
extern void stock_xact_confirm(const text *sku, int64 quantity);

/* Records that new reservations of the item lapse at this time or later. */
extern void stock_xact_will_lapse(int entry, TimestampTz at);

/* What this transaction could take. */
extern int64 stock_xact_available(int entry);

/* The entry's counter. */
extern EscrowItem *stock_xact_item(int entry);

/* stock_xact_undo undoes all steps since stock_xact_mark returned "mark". */
extern int	stock_xact_mark(void);
extern void stock_xact_undo(int mark);

/* Records external DML (guard.c); and whether there was any. */
extern void stock_xact_note_external(void);
extern bool stock_xact_is_external(void);

#endif							/* STOCK_STOCK_XACT_H */
