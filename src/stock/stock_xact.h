/*
 * stock_xact.h
 *		What the open transaction has done with the counters of items.  Within
 *		the stock module.
 */
#ifndef STOCK_STOCK_XACT_H
#define STOCK_STOCK_XACT_H

#include "stock/escrow.h"
#include "stock/lines.h"

/*
 * To be called first by whatever changes stock: locks the log to the end of the
 * transaction.  Returns its OID.
 */
extern Oid	stock_xact_begin(void);

/*
 * Gets hold of the counter of a line's item to the end of the transaction, or of
 * the savepoint; the line remembers it.  false: there is no such item, and it is
 * not to be created.
 */
extern bool stock_xact_touch(StockLine *line, bool create);

/*
 * Of lines that were touched.
 *
 * The item was created; others know it once this transaction has committed.
 */
extern void stock_xact_create(const StockLine *line);
extern bool stock_xact_is_new(const StockLine *line);

/* Takes the quantity, own additions first; false: there is not so much. */
extern bool stock_xact_take(const StockLine *line);

/*
 * Adds the quantity, for this transaction at once, for others at its commit:
 * what is new on hand, or was reserved.
 */
extern void stock_xact_add(const StockLine *line, bool is_new);

/* With the commit the quantity, which was taken, will not be on hand any more. */
extern void stock_xact_remove(const StockLine *line);

/* Reservations of the item that are being made lapse at a time, or later. */
extern void stock_xact_will_lapse(const StockLine *line, TimestampTz at);

/* What this transaction could take. */
extern int64 stock_xact_available(const StockLine *line);

/* The counter itself. */
extern EscrowItem *stock_xact_item(const StockLine *line);

/* As stock_xact_remove, of a reserved quantity, and a line that is not touched. */
extern void stock_xact_confirm(StockLine *line);

/* How many steps there are, and back to that. */
extern int	stock_xact_mark(void);
extern void stock_xact_undo(int mark);

/* External DML changes the tables: see guard.c. */
extern void stock_xact_note_external(void);
extern bool stock_xact_is_external(void);

#endif							/* STOCK_STOCK_XACT_H */
