/*
 * escrow.h
 *		What is available of each item, in shared memory.  Within the stock
 *		module, but for the first two, which the server's start calls, and
 *		escrow_forget_database, which DROP DATABASE calls.
 */
#ifndef STOCK_ESCROW_H
#define STOCK_ESCROW_H

#include "datatype/timestamp.h"

#include "stock/item.h"

/* An item's counter.  It stays where it is for as long as it is pinned. */
typedef struct EscrowItem EscrowItem;

/* What an open transaction has done with an item. */
typedef struct EscrowPart
{
	int64		taken;			/* from what is available */
	int64		received;		/* new on hand */
	int64		left;			/* on hand no more: confirmed, or corrected */
} EscrowPart;

/* Asks for the memory, creates or attaches it. */
extern void escrow_request(void);
extern void escrow_startup(void);

/*
 * Pins the item's counter, which may have to be loaded.  log is the table
 * stock_log that the item is in.  Raises an error if there is no room.
 */
extern EscrowItem *escrow_pin(Oid log, const text *sku);

/* Likewise, but only a counter that is loaded; NULL: it is not. */
extern EscrowItem *escrow_pin_loaded(Oid log, const text *sku);

extern void escrow_unpin(EscrowItem *item);

/*
 * Loading.  The first says whether it is there; the second, whether the caller
 * is to load it (else somebody has, which it waits for).  A load ends with one
 * of the other two.
 */
extern bool escrow_is_loaded(EscrowItem *item);
extern bool escrow_begin_load(EscrowItem *item);
extern void escrow_publish(EscrowItem *item, const ItemLevel *level);
extern void escrow_fail_load(EscrowItem *item);

/* Does the item exist, for all?  And what is available of it, to all? */
extern bool escrow_is_known(EscrowItem *item);
extern int64 escrow_available(EscrowItem *item);

/* Takes a quantity if it is there. */
extern bool escrow_take(EscrowItem *item, int64 quantity);

/* A quantity is going to be new on hand; false: that would be too many. */
extern bool escrow_receive(EscrowItem *item, int64 quantity);

/* Takes back what a savepoint did. */
extern void escrow_undo(EscrowItem *item, const EscrowPart *part);

/*
 * The end of a transaction: the item then has so much more available and so
 * much less on hand (and exists, if it was created, and has reservations that
 * lapse), and is unpinned.
 */
extern void escrow_settle(EscrowItem *item, int64 more, int64 less,
						  bool created, TimestampTz lapses_at);

/*
 * When the item's reservations lapse, so that not everyone who is refused has
 * to look for lapsed ones.  The first says whether there may be any.  A caller
 * that looks and finds none says so by the second, with the same look, and
 * until when that holds.  A caller that makes a reservation says by the third
 * when it lapses.
 */
extern bool escrow_may_lapse(EscrowItem *item, TimestampTz now, uint64 *look);
extern void escrow_none_lapses(EscrowItem *item, TimestampTz before,
							   uint64 look);
extern void escrow_will_lapse(EscrowItem *item, TimestampTz at);

/* Forgets every counter of a log; none of them may be pinned. */
extern void escrow_forget_all(Oid log);

/* Likewise, of a database that is being dropped. */
extern void escrow_forget_database(Oid database);

/*
 * Counts a row that was added to an item's log, or rows that have left it, be
 * it all; a hint.  What was rolled back is not counted any more once all have
 * left.
 */
extern void escrow_count_row(EscrowItem *item);
extern void escrow_count_compacted(EscrowItem *item, int rows, bool complete);

/* What a counter says. */
typedef struct EscrowLevel
{
	text	   *sku;			/* palloc'd */
	int64		available;
	uint64		touches;		/* how often it was pinned */
	bool		pinned;
	int			rows;			/* in the item's log, about */
} EscrowLevel;

/*
 * The counter in one of the settings_stock_items places, or that of an item.
 * false: there is none that is loaded, or it is another log's.
 */
extern bool escrow_level_at(int place, Oid log, EscrowLevel *level);
extern bool escrow_level_of(Oid log, const text *sku, EscrowLevel *level);

/*
 * Items whose log has more rows than the first says are noted; the second finds
 * the next of a log, until it has looked at all places.  *looks is 0 at first.
 */
extern void escrow_set_crowd(int rows);
extern bool escrow_next_crowded(int *looks, Oid log, int rows,
								EscrowLevel *level);

#endif							/* STOCK_ESCROW_H */
