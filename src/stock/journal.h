/*
 * journal.h
 *		What the open transaction has done with the counters of items.  Within
 *		the stock room.
 */
#ifndef STOCK_JOURNAL_H
#define STOCK_JOURNAL_H

#include "stock/escrow.h"

/*
 * To be called first by whatever changes stock: locks the log to the end of the
 * transaction.  Returns its OID.
 */
extern Oid	journal_begin(void);

/*
 * Gets hold of an item's counter to the end of the transaction; what is
 * returned names it.  -1: there is no such item, and it is not to be created.
 */
extern int	journal_touch(const text *sku, bool create);

/* The item was created; others know it once this transaction has committed. */
extern void journal_create(int note);
extern bool journal_is_new(int note);

/* Takes a quantity, own additions first; false: there is not so much. */
extern bool journal_take(int note, int64 quantity);

/*
 * Adds a quantity, for this transaction at once, for others at its commit: what
 * is new on hand, or was reserved.
 */
extern void journal_add(int note, int64 quantity, bool is_new);

/*
 * With the commit a quantity will not be on hand any more.  The first is for one
 * that was taken, the second for one that was reserved.
 */
extern void journal_remove(int note, int64 quantity);
extern void journal_confirm(const text *sku, int64 quantity);

/* Reservations of the item that are being made lapse at a time, or later. */
extern void journal_will_lapse(int note, TimestampTz at);

/* What this transaction could take. */
extern int64 journal_available(int note);

/* The counter itself. */
extern EscrowItem *journal_item(int note);

/* A place in the journal, and back to it. */
extern int	journal_mark(void);
extern void journal_undo(int mark);

/* The tables are being changed by other hands: see guard.c. */
extern void journal_note_foreign(void);
extern bool journal_is_foreign(void);

#endif							/* STOCK_JOURNAL_H */
