/*
 * reader.h
 *		How a relay reads the log and records outcomes.  Every function here
 *		must be called in a transaction with SPI.
 */
#ifndef OUTBOX_READER_H
#define OUTBOX_READER_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/snapshot.h"

#include "outbox/event.h"
#include "outbox/partition.h"
#include "outbox/xacts.h"

#define OUTBOX_HASHES 65536		/* values of the hash of a key */
#define OUTBOX_CHUNK_MIN 8		/* room for events at first */
#define OUTBOX_CHUNK_MAX 500	/* events that are read at once */
#define OUTBOX_CHUNK_BYTES_MAX (8 * 1024 * 1024)	/* of memory for them */
#define OUTBOX_RANGE_MAX 5000	/* positions that are scanned at once */
#define OUTBOX_CHAINS_MAX 1000	/* parked events that are read at once */
#define OUTBOX_CHAIN_MIN 5		/* of each key at least */
#define OUTBOX_ATTEMPTS_MAX (PG_INT32_MAX - 1)	/* the highest count */
#define OUTBOX_GRACE_MS 100		/* wait for an open transaction */
#define OUTBOX_STANDBY_MS 50	/* wait for a synchronous standby */
#define OUTBOX_ROW_LOCK_MS "100"	/* wait for a row lock */

/*
 * What a pass read, in this order: the sequence, the set of open transactions,
 * a snapshot.
 */
typedef struct OutboxHorizon
{
	int64		max_position;
	Snapshot	snapshot;		/* active until outbox_horizon_end */
	bool		replicated;		/* otherwise, nothing may be read */
	OutboxXact *stragglers;		/* those that are open in snapshot */
	int			straggler_count;
	int64		young_lo;		/* lowest position of those within the grace */
	TimestampTz grace_ends_at;	/* for the first of those; 0: none */
} OutboxHorizon;

/* An event that is delivered to one subscription. */
typedef struct OutboxDelivery
{
	OutboxEvent *event;
	bool		in_order;		/* ordered with other events of its key */
	bool		blocked;		/* an earlier event of its key is waiting, or
								 * is read with it */
	int			attempts;		/* number of earlier attempts */
} OutboxDelivery;

typedef struct OutboxChunk
{
	OutboxDelivery *deliveries;
	int			room;			/* allocated deliveries; it grows */
	int			count;
	int64		last;			/* the last position that was read */
	Size		bytes;			/* memory of the events */
	OutboxCursor before;		/* where this was read from */
	OutboxCursor after;			/* where to go on when all of this is settled */
	int			still_open;		/* stragglers in after that are not in ended */
	OutboxStraggler *ended;		/* stragglers whose events come first */
	int			ended_count;
	bool		moved;			/* after differs from before */
	bool		cut;			/* there is more to read */
	FilterCounts filtered;		/* events that the filter did not let pass */
	int			chain_max;		/* parked events that were read of each key */
} OutboxChunk;

typedef enum OutboxOutcome
{
	OUTBOX_DELIVERED,
	OUTBOX_RETRY,				/* failed; the next attempt is after delay_ms */
	OUTBOX_DEAD,				/* failed, and the schedule is exhausted */
	OUTBOX_PARKED,				/* not sent, perhaps behind one of its key */
	OUTBOX_SCHEDULED,			/* not sent: its time has not come */
	OUTBOX_CANCELLED			/* will never be sent */
} OutboxOutcome;

typedef struct OutboxResult
{
	OutboxOutcome outcome;
	int			attempts;		/* number of attempts that count */
	bool		uncounted;		/* the last one does not count */
	int64		delay_ms;
	/* The last attempt, if it failed or has to be kept. */
	int			status;			/* 0: no answer */
	int			duration_ms;
	const char *error;			/* NULL: none */
	const char *answer;			/* start of the answer's body; NULL: none */
	TimestampTz at;				/* when the last attempt ended, if it has to
								 * be kept; 0: there was none */
} OutboxResult;

/*
 * Begins a pass: finds out how far the log can be read, leaves a snapshot
 * active, and makes the commits durable that the snapshot shows.
 */
extern OutboxHorizon outbox_horizon_begin(void);
extern void outbox_horizon_end(OutboxHorizon *horizon);

/* Is a transaction open in the snapshot? */
extern bool outbox_xid_is_open(FullTransactionId xid, Snapshot snapshot);

/*
 * Reads the next events of a partition from a cursor on: at most max_events,
 * and none after the one with which the chunk exceeds max_bytes.  A filter is
 * NULL if there is none.  Up to again_to, the log was perhaps read before, and
 * what is deferred is left out.  This and the next functions read into the
 * current memory context.
 */
extern OutboxChunk outbox_read_chunk(const OutboxHorizon *horizon,
									 OutboxPartitionId id, JsonPath *filter,
									 const OutboxCursor *cursor, int64 again_to,
									 int max_events, Size max_bytes);

/*
 * Where rows of the log come from, and what takes them.  stragglers has the
 * parameters: xids, their first positions, the range of positions; range has
 * the two ends of a range, the first of which it leaves out.  After them come
 * the subscription, the number of the partition, and extra.
 */
typedef struct OutboxSource
{
	struct SavedQuery *stragglers;
	struct SavedQuery *range;
	OutboxPartitionId id;
	int64		extra;
	int			rows;			/* that are fetched at a time, at most */
	/* Takes a row of SPI_tuptable; returns whether to read no more. */
	bool		(*take) (OutboxChunk *chunk, uint64 row, void *arg);
	void	   *arg;
} OutboxSource;

#define OUTBOX_FROM_STRAGGLERS \
	" JOIN unnest($1, $2) AS k(xid, first)" \
	" ON e.xid = k.xid AND e.position >= k.first" \
	" WHERE e.position >= $3 AND e.position <= $4"

#define OUTBOX_FROM_RANGE " WHERE e.position > $1 AND e.position <= $2"

/*
 * A subscription, as s, with the log, as e; whether the event is behind another
 * one of its key; whether it belongs to a partition.
 */
#define OUTBOX_SUBSCRIBED(subscription) \
	" FROM (SELECT * FROM idempotency_internal.outbox_subscription" \
	"  WHERE id = " subscription ") s CROSS JOIN idempotency_internal.outbox_event e"
#define OUTBOX_IS_BLOCKED \
	" s.ordered AND (SELECT d.position FROM idempotency_internal.outbox_delivery d" \
	"  WHERE d.subscription = s.id AND d.key = e.key AND d.blocks_key" \
	"  LIMIT 1) IS NOT NULL"
#define OUTBOX_AND_WANTED(partition) \
	" AND idempotency_internal.outbox_is_wanted(s.topics, e.topic)" \
	" AND (s.partitions = 1 OR " partition " = idempotency_internal.outbox_partition_number(" \
	"  e.key, e.position, s.partitions))"

/*
 * Up to a position, events may have become deferred deliveries when the log was
 * read before.  Then these are what is delivered.
 */
#define OUTBOX_AND_NEW(again_to) \
	" AND (e.position > " again_to " OR (" \
	"  SELECT d.position FROM idempotency_internal.outbox_delivery d" \
	"  WHERE d.subscription = s.id AND d.position = e.position) IS NULL)"

/*
 * Reads the next rows of the log from a cursor on.  The take function of the
 * source sets last in the chunk.
 */
extern OutboxChunk outbox_read(const OutboxHorizon *horizon,
							   const OutboxCursor *cursor,
							   const OutboxSource *source);

/* An event of the log. */
typedef struct OutboxLogRow
{
	uint64		number;			/* of the row in SPI_tuptable */
	int64		position;
	Datum		topic;			/* text */
	bool		has_topic;		/* otherwise topic is not valid */
	Datum		payload;		/* jsonb */
	bool		has_payload;	/* the same */
	int			hash;			/* its remainder is the number of a partition */
} OutboxLogRow;

/*
 * Called for each event that outbox_read_log reads; outbox_event_read(number)
 * makes it.  Returns whether to read no more.
 */
typedef bool (*OutboxTake) (void *arg, const OutboxLogRow *row);

/*
 * Reads the next events of the log from a cursor on.  The chunk has none of
 * them.
 */
extern OutboxChunk outbox_read_log(const OutboxHorizon *horizon,
								   const OutboxCursor *cursor,
								   OutboxTake take, void *arg);

/* Returns the cursor of somebody who has read all that can be read now. */
extern OutboxCursor outbox_cursor_at_end(const OutboxHorizon *horizon);

/* Copies a chunk without its deliveries. */
extern OutboxChunk outbox_empty_part(const OutboxChunk *whole);

/* Adds a delivery to a chunk. */
extern void outbox_chunk_add(OutboxChunk *chunk,
							 const OutboxDelivery *delivery);

/*
 * Sets which of these deliveries, each for the partition at the same place and
 * with a key, are blocked.
 */
extern void outbox_find_blocked(OutboxPartitionId *ids,
								OutboxDelivery **deliveries, int count);

/* Shortens a chunk to this number of events, at least one. */
extern void outbox_cut_chunk(OutboxChunk *chunk, int count);

/*
 * Reads deferred deliveries of a partition that are due, except those in
 * positions, an array of bigint, which are in flight.  After them come parked
 * ones of their keys, which are blocked.
 *
 * This and the next functions leave alone what is after passed, where the log
 * is read again: if one of these were delivered and deleted, nothing would tell
 * that the event in the log must not be sent.
 */
extern OutboxChunk outbox_read_due(OutboxPartitionId id, Datum positions,
								   int64 passed, Size max_bytes);

/*
 * Reads deferred deliveries that are not due yet, but have failed before the
 * endpoint worked again, without their parked ones.  Leaves out those that have
 * failed with a status in event_statuses, an array of integer.
 */
extern OutboxChunk outbox_read_early(OutboxPartitionId id, Datum positions,
									 int64 passed, TimestampTz recovered_at,
									 Datum event_statuses, Size max_bytes);

/* Reads the deferred delivery that was tried or due the longest time ago. */
extern OutboxChunk outbox_read_longest_waiting(OutboxPartitionId id,
											   int64 passed);

/* Returns the keys of these deliveries (OutboxDelivery *), an array of text. */
extern Datum outbox_delivery_keys(List *deliveries);

/* When the next deferred delivery, except those, is due; 0: there is none. */
extern TimestampTz outbox_next_due_at(OutboxPartitionId id, Datum positions,
									  int64 passed);

/*
 * Is a deferred delivery due?  One that an open transaction may have cancelled
 * does not count.
 */
extern bool outbox_has_due(OutboxPartitionId id);

/*
 * Begins to settle: until the end of the transaction, waits for locked rows are
 * limited to OUTBOX_ROW_LOCK_MS if patient, and to 1 ms otherwise.
 */
extern void outbox_settle_begin(bool patient);

/* Records the outcome of an event that outbox_read_chunk has read. */
extern void outbox_settle_new(OutboxPartitionId id,
							  const OutboxDelivery *delivery,
							  const OutboxResult *result);

/* Records the outcome of a deferred delivery that was not delivered. */
extern void outbox_settle_due(OutboxPartitionId id,
							  const OutboxDelivery *delivery,
							  const OutboxResult *result);

/*
 * Records that deferred deliveries (OutboxDelivery *) were delivered.  Call it
 * before outbox_release_keys.
 */
extern void outbox_delete_delivered(OutboxPartitionId id, List *deliveries);

/*
 * The next parked events of the keys of these deliveries (OutboxDelivery *),
 * which are delivered or dead, become due.
 */
extern void outbox_release_keys(OutboxPartitionId id, List *deliveries);

/*
 * Disables a subscription and returns true.  Does nothing and returns false if
 * it is locked, not active, or not in this version any more; the endpoint will
 * give the same answer again.
 */
extern bool outbox_disable(int64 subscription, int64 version,
						   const char *reason);

/*
 * Records that the endpoint of a subscription fails as a whole, or works again.
 * Returns false if the subscription is locked, or not in this version any more,
 * and the caller has to try again.
 */
extern bool outbox_set_failing(int64 subscription, int64 version, bool failing);

#endif							/* OUTBOX_READER_H */
