/*
 * stock_xact.h
 *		What the open transaction has done to the counters of items.  For the
 *		stock module only.
 */
#ifndef STOCK_STOCK_XACT_H
#define STOCK_STOCK_XACT_H

#include "stock/escrow.h"
#include "stock/lines.h"

/*
 * Must be called first by every function that changes stock.  Locks the log
 * until the end of the transaction and returns its OID.
 */
extern Oid	stock_xact_begin(void);

/*
 * Pins the counter of a line's item until the end of the transaction, or of the
 * savepoint, loads it if necessary, and notes it in the line.  Returns false if
 * the item does not exist and create is false.
 */
extern bool stock_xact_touch(StockLine *line, bool create);

/*
 * The following are for lines that were touched.
 *
 * Marks the item as created; others see it when this transaction commits.
 */
extern void stock_xact_create(const StockLine *line);
extern bool stock_xact_is_new(const StockLine *line);

/*
 * Takes the quantity, own additions first.  Returns false if there is not so
 * much, or if other reservations wait for the item, unless overtake.
 */
extern bool stock_xact_take(const StockLine *line, bool overtake);

/*
 * Counts a reservation that waits in the queue of the item, and one that will
 * not wait there after the commit.
 */
extern void stock_xact_join(const StockLine *line);
extern void stock_xact_leave(const StockLine *line);

/*
 * Adds the quantity, new on hand (is_new) or reserved until now: for this
 * transaction at once, for others when it commits.
 */
extern void stock_xact_add(const StockLine *line, bool is_new);

/* Removes the quantity, which was taken, from what is on hand at the commit. */
extern void stock_xact_remove(const StockLine *line);

/* Records that new reservations of the item lapse at this time or later. */
extern void stock_xact_will_lapse(const StockLine *line, TimestampTz at);

/*
 * Records that this transaction closes or changes holds that lapse at this
 * time, of items that may have no counter.
 */
extern void stock_xact_hide_lapse(TimestampTz lapses_at);

/* Records the id of a row that this transaction writes. */
extern void stock_xact_note_id(int64 id);

/*
 * Announces again that reservations of this transaction have lapsed: searches
 * by others do not see them.
 */
extern void stock_xact_note_lapsed(const StockLine *line);

/*
 * Finds the next item of which reservations of this transaction have lapsed.
 * Start with *at = 0.
 */
extern bool stock_xact_next_lapsed(int *at, EscrowDue *due);

/*
 * Does this transaction see what is committed, since it has changed no stock?
 * Otherwise others must not rely on what it does not find: it may roll back.
 */
extern bool stock_xact_sees_committed(void);

/* What this transaction could take. */
extern int64 stock_xact_available(const StockLine *line);

/* How many reservations wait for the item, for this transaction. */
extern int	stock_xact_waiting(const StockLine *line);

/* The line's counter. */
extern EscrowItem *stock_xact_item(const StockLine *line);

/*
 * As stock_xact_remove, of a quantity that was reserved until a time, for a
 * line not touched yet.
 */
extern void stock_xact_confirm(StockLine *line, TimestampTz lapses_at);

/* stock_xact_undo undoes all steps since stock_xact_mark returned "mark". */
extern int	stock_xact_mark(void);
extern void stock_xact_undo(int mark);

/* Records external DML (guard.c); and whether there was any. */
extern void stock_xact_note_external(void);
extern bool stock_xact_is_external(void);

#endif							/* STOCK_STOCK_XACT_H */
