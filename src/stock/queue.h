/*
 * queue.h
 *		The queue of an item: reservations that wait until it is available.  For
 *		the stock module only.
 */
#ifndef STOCK_QUEUE_H
#define STOCK_QUEUE_H

#include "storage/itemptr.h"
#include "utils/snapshot.h"

#include "stock/hold.h"
#include "stock/lines.h"

/* The columns of stock_queue, counted from 0. */
enum
{
	QUEUE_ATT_ID,
	QUEUE_ATT_QUANTITY,
	QUEUE_ATT_TTL_US,
	QUEUE_ATT_SKU,
	QUEUE_ATT_RESERVATION,
	QUEUE_ATTS
};

/* A reservation that waits. */
typedef struct QueueEntry
{
	int64		id;				/* the order of the queue */
	int64		quantity;
	int64		ttl_us;			/* how long it is open once it is served */
	text	   *reservation;
	ItemPointerData tid;
} QueueEntry;

/* Must be called before queue_call, which cannot fail then. */
extern void queue_begin(void);

/* What the sweeper is called for. */
typedef enum QueueCall
{
	QUEUE_NONE = 0,
	QUEUE_SOME = 1,				/* items of which the counter knows it */
	QUEUE_ALL = 2
} QueueCall;

/*
 * Calls the sweeper: the queues of these items may be served.  queue_take_call
 * returns what it was called for since it last asked, as bits.
 */
extern void queue_call(QueueCall items);
extern int	queue_take_call(void);

/* The same, for a database of which a counter was evicted. */
extern void queue_call_evicted(Oid database);

/*
 * Ignores this session's own calls.  What it gives back while it serves, since
 * something has failed, would make it look again at once, and fail again.
 */
extern void queue_ignore_calls(bool ignore);

/*
 * Takes the locks that queue_count needs, until the end of the transaction;
 * counts the reservations that wait for an item.
 */
extern void queue_lock_for_count(void);
extern int	queue_count(const text *sku, Snapshot snapshot);

/*
 * Adds a reservation, whose line is held and says that it waits.
 */
extern void queue_join(const text *reservation, const StockLine *line,
					   int64 ttl_us);

/*
 * Finds the first that waits for an item, as committed now; none has a smaller
 * id than "from".
 */
extern bool queue_first(const text *sku, int64 from, QueueEntry *first);

/*
 * Sets the quantity of a line that waits.  Returns false if it does not wait
 * any more.
 */
extern bool queue_read(StockLine *line);

/*
 * Removes a line that waits, after its row in stock_hold was closed or locked.
 */
extern void queue_leave(StockLine *line);

#endif							/* STOCK_QUEUE_H */
