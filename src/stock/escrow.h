/*
 * escrow.h
 *		What is available of each item, in shared memory.  Within the stock room;
 *		the server's start is the caller of the first two.
 */
#ifndef STOCK_ESCROW_H
#define STOCK_ESCROW_H

#include "datatype/timestamp.h"

/* An item's counter.  It stays where it is for as long as it is pinned. */
typedef struct EscrowItem EscrowItem;

/* Asks for the memory, creates or attaches it. */
extern void escrow_request(void);
extern void escrow_startup(void);

/*
 * Pins the item's counter, which may have to be loaded.  log is the table
 * stock_log that the item is in.  Raises an error if there is no room.
 */
extern EscrowItem *escrow_pin(Oid log, const text *sku);
extern void escrow_unpin(EscrowItem *item);

/*
 * Loading.  The first says whether it is there; the second, whether the caller
 * is to load it (else somebody has, which it waits for).  A load ends with one
 * of the other two.
 */
extern bool escrow_is_loaded(EscrowItem *item);
extern bool escrow_begin_load(EscrowItem *item);
extern void escrow_publish(EscrowItem *item, bool known, int64 available,
						   int rows);
extern void escrow_fail_load(EscrowItem *item);

/* Does the item exist, for all?  And what is available of it, to all? */
extern bool escrow_is_known(EscrowItem *item);
extern int64 escrow_available(EscrowItem *item);

/* Takes a quantity if it is there. */
extern bool escrow_take(EscrowItem *item, int64 quantity);

/* Announces an addition; false: the item could become too many. */
extern bool escrow_announce(EscrowItem *item, int64 quantity);

/* Takes back what a savepoint did. */
extern void escrow_undo(EscrowItem *item, int64 taken, int64 announced);

/*
 * The end of a transaction: settles all it did with the item, which then has so
 * much more available (and exists, if it was created, and has reservations that
 * lapse), and unpins it.
 */
extern void escrow_settle(EscrowItem *item, int64 taken, int64 announced,
						  int64 more, bool created, TimestampTz lapses_at);

/*
 * When the item's reservations lapse, so that not everyone who is refused has to
 * look for lapsed ones.  The first says whether there may be any; look is for the
 * second, by which who has found none says that there will be none before a
 * time.  Who makes a reservation says when it will lapse.
 */
extern bool escrow_may_lapse(EscrowItem *item, TimestampTz now, uint64 *look);
extern void escrow_none_lapses(EscrowItem *item, TimestampTz before, uint64 look);
extern void escrow_will_lapse(EscrowItem *item, TimestampTz at);

/* Forgets every counter of a log; none of them may be pinned. */
extern void escrow_forget_all(Oid log);

/* Counts rows that were added to an item's log, or compacted; a hint. */
extern void escrow_count_rows(Oid log, const text *sku, int rows);

#endif							/* STOCK_ESCROW_H */
