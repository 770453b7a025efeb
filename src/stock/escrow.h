/*
 * escrow.h
 *		The available quantity of each item, in shared memory.  For the stock
 *		module only, except escrow_request and escrow_startup, which
 *		idempotency.c calls, and escrow_forget_database, which DROP DATABASE
 *		calls.
 */
#ifndef STOCK_ESCROW_H
#define STOCK_ESCROW_H

#include "datatype/timestamp.h"

#include "stock/item.h"

/* An item's counter.  It is neither moved nor freed while it is pinned. */
typedef struct EscrowItem EscrowItem;

/* What an open transaction has done to an item. */
typedef struct EscrowPart
{
	int64		taken;			/* from the available quantity */
	int64		received;		/* new on hand */
	int64		left;			/* no longer on hand at commit */
	int64		pending;		/* added: available at commit */
	int			joined;			/* reservations that wait in the queue now */
	int			served;			/* and those that no longer wait at commit */
	int64		first_id;		/* of the rows that it wrote; 0: unknown */
	bool		created;		/* the item */
	TimestampTz lapses_at;		/* when the first new reservation lapses */
} EscrowPart;

/* Request the memory; create it or attach to it. */
extern void escrow_request(void);
extern void escrow_startup(void);

/*
 * Pins the item's counter, which may not be loaded yet.  log is the OID of the
 * stock_log that has the item.  Raises an error if every place is pinned.
 */
extern EscrowItem *escrow_pin(Oid log, const text *sku);

/* As escrow_pin, but returns NULL unless the counter is loaded. */
extern EscrowItem *escrow_pin_loaded(Oid log, const text *sku);

/* Has the item a counter that is loaded, at this moment? */
extern bool escrow_is_there(Oid log, const text *sku);

extern void escrow_unpin(EscrowItem *item);

/* Pins a counter once more that is pinned. */
extern void escrow_pin_again(EscrowItem *item);

/* The name of an item that is pinned; palloc'd. */
extern text *escrow_sku(const EscrowItem *item);

/*
 * Loading.  escrow_begin_load returns whether the caller must load the counter;
 * if another session is loading it, it first waits for that.  The caller ends
 * the load with escrow_publish or escrow_fail_load.
 */
extern bool escrow_is_loaded(EscrowItem *item);
extern bool escrow_begin_load(EscrowItem *item);
extern void escrow_publish(EscrowItem *item, const ItemLevel *level);
extern void escrow_fail_load(EscrowItem *item);

/*
 * Does the item exist, what is available of it, and how many reservations wait
 * in its queue, by committed changes and the queuing of open transactions?
 */
extern bool escrow_is_known(EscrowItem *item);
extern int64 escrow_available(EscrowItem *item);
extern int	escrow_waiting(EscrowItem *item);

/* Takes a quantity if it is available, and if no more than "past" wait. */
extern bool escrow_take(EscrowItem *item, int64 quantity, int past);

/* Adds to what is on hand; false: out of range. */
extern bool escrow_receive(EscrowItem *item, int64 quantity);

/* Counts one more reservation that waits. */
extern void escrow_join(EscrowItem *item);

/*
 * Where the queue of an item begins: no reservation that waits has a smaller
 * id.  A caller that finds its first row with a snapshot of after the call of
 * escrow_queue_from tells its id to escrow_set_queue_from, with the same look.
 */
extern int64 escrow_queue_from(EscrowItem *item, uint64 *look);
extern void escrow_set_queue_from(EscrowItem *item, int64 id, uint64 look);

/*
 * Finds the next item of a log of which the queue could be served, as
 * escrow_next_crowded does, and forgets that it could.  escrow_call notes it
 * again.
 */
extern bool escrow_next_called(int *looks, Oid log, text **sku);
extern void escrow_call(EscrowItem *item);

/*
 * Gives back what a step has taken or received.  Returns whether the queue of
 * the item could be served now.
 */
extern bool escrow_undo(EscrowItem *item, const EscrowPart *part);

/*
 * Settles an item at the end of a transaction that has committed or not, and
 * unpins it: makes available what was added, marks the item as existing if it
 * was created, and notes when its new reservations lapse; or undoes the part.
 * Returns whether the queue of the item could be served now.
 */
extern bool escrow_commit(EscrowItem *item, const EscrowPart *part);
extern bool escrow_abort(EscrowItem *item, const EscrowPart *part);

/* A search for an item's lapsed reservations. */
typedef struct EscrowDue
{
	text	   *sku;			/* palloc'd */
	TimestampTz from;			/* none lapses before */
	uint64		look;			/* for escrow_none_lapses */
} EscrowDue;

/*
 * When an item's reservations lapse, so that nobody has to search for lapsed
 * ones in vain.  escrow_may_lapse returns whether there may be any, and sets
 * *due except for the sku.  A caller that searches and finds none calls
 * escrow_none_lapses with the same look and the time before which that holds. A
 * caller that makes a reservation calls escrow_will_lapse.
 */
extern bool escrow_may_lapse(EscrowItem *item, TimestampTz now,
							 EscrowDue *due);
extern void escrow_none_lapses(EscrowItem *item, TimestampTz before,
							   uint64 look);
extern void escrow_none_lapses_of(Oid log, const EscrowDue *due,
								  TimestampTz before);

/*
 * Finds the next item of a log that may have lapsed reservations, as
 * escrow_next_crowded does.  escrow_any_lapses: is there any?
 */
extern bool escrow_next_due(int *looks, Oid log, TimestampTz now,
							EscrowDue *due);
extern bool escrow_any_lapses(Oid log, TimestampTz now);
extern void escrow_will_lapse(EscrowItem *item, TimestampTz at);

/* Drops every counter of a log; none of them may be pinned. */
extern void escrow_forget_all(Oid log);

/* Drops every counter of a database that is being dropped. */
extern void escrow_forget_database(Oid database);

/*
 * Count a row that was added to an item's log, and rows that have left it
 * (complete: all rows).  The count is a hint: rows that were rolled back are
 * counted until all rows have left.
 */
extern void escrow_count_row(EscrowItem *item);
extern void escrow_count_compacted(EscrowItem *item, int rows, bool complete);

/* A copy of a counter. */
typedef struct EscrowLevel
{
	text	   *sku;			/* palloc'd */
	int64		available;
	uint64		touches;		/* number of pins so far */
	bool		pinned;
	int			rows;			/* approximate number in the item's log */
	int			waiting;		/* reservations in its queue */
} EscrowLevel;

/*
 * Copy the counter in one of settings_stock_items places, or that of an item.
 * false: there is no loaded counter of this log.
 */
extern bool escrow_level_at(int place, Oid log, EscrowLevel *level);
extern bool escrow_level_of(Oid log, const text *sku, EscrowLevel *level);

/*
 * escrow_set_crowd sets the number of rows above which an item's log is
 * crowded.  escrow_next_crowded returns the next crowded item of a log; false
 * after all places were looked at.  Start with *looks = 0.
 */
extern void escrow_set_crowd(int rows);
extern bool escrow_next_crowded(int *looks, Oid log, int rows,
								EscrowLevel *level);

#endif							/* STOCK_ESCROW_H */
