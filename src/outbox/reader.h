/*
 * reader.h
 *		How a relay reads the log: passes, lanes, events, and what became of
 *		them.  Every function here runs inside a transaction and SPI_connect.
 */
#ifndef OUTBOX_READER_H
#define OUTBOX_READER_H

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "utils/snapshot.h"

#include "outbox/register.h"

#define OUTBOX_BATCH_MIN 8		/* events that there is room for at first */
#define OUTBOX_BATCH_MAX 500	/* events that are read at once for one lane */
#define OUTBOX_BATCH_BYTES_MAX (8 * 1024 * 1024)	/* of memory for them */
#define OUTBOX_RANGE_MAX 5000	/* positions that are looked through at once */
#define OUTBOX_ATTEMPTS_MAX (PG_INT32_MAX - 1)	/* that are counted */
#define OUTBOX_GRACE_MS 100		/* how long an open transaction is waited for */
#define OUTBOX_ROW_LOCK_MS "100"	/* and one that has locked a row */

/* A branch of CASE that says which column of a row is not as it should be. */
#define UNLESS(condition, column) \
	" WHEN (" condition ") IS NOT TRUE THEN 'column \"" column "\" has no valid value'"

/* What one look at log, register and transactions found, in that order. */
typedef struct OutboxHorizon
{
	int64		max_position;
	Snapshot	snapshot;		/* active until outbox_horizon_end */
	OutboxOpen *stragglers;		/* open in snapshot */
	int			straggler_count;
	int64		young_lo;		/* lowest of those within the grace */
	TimestampTz grace_ends_at;	/* when the first of them is past it; 0: none */
} OutboxHorizon;

/* An open transaction that was passed; rows before from were delivered. */
typedef struct OutboxStraggler
{
	FullTransactionId xid;
	int64		from;
} OutboxStraggler;

/* A subscription, and which of its partitions. */
typedef struct OutboxLaneId
{
	int64		subscription;
	int32		number;
} OutboxLaneId;

/* How far a lane has come. */
typedef struct OutboxLane
{
	int64		position;
	OutboxStraggler *stragglers;
	int			straggler_count;
} OutboxLane;

typedef struct OutboxEvent
{
	int64		position;
	char	   *key;			/* NULL: none */
	/* What goes over the wire, in UTF-8. */
	char	   *wire_key;
	char	   *type;
	char	   *payload;		/* JSON */
	char	  **headers;		/* "Name: value", NULL-terminated */
	char	   *created_at;		/* ISO 8601, UTC */
	uint64		created_us;		/* likewise, in microseconds since 1970 */
	bool		scheduled;		/* its deliver_at is yet to come */
	bool		in_order;		/* it goes one by one with others of its key */
	bool		blocked;		/* an earlier one of its key is waiting */
	int			attempts;		/* made before */
	const char *wrong;			/* why it cannot be sent, if so: type, payload
								 * and created_at may be NULL then */
} OutboxEvent;

typedef struct OutboxBatch
{
	OutboxEvent *events;
	int			room;			/* for events; it grows */
	int			count;
	int			left_behind;	/* how many of them are of stragglers */
	Size		bytes;			/* of memory that they take */
	OutboxLane	before;			/* what the lane was when this was read */
	OutboxLane	after;			/* what it is once all of this is settled */
	int			still_open;		/* how many of its stragglers are not in ended */
	OutboxStraggler *ended;		/* stragglers whose events come first here */
	int			ended_count;
	bool		moved;			/* after differs from before */
	bool		cut;			/* there is more to read */
} OutboxBatch;

typedef enum OutboxFate
{
	OUTBOX_DELIVERED,
	OUTBOX_RETRY,				/* failed; again after delay_ms */
	OUTBOX_DEAD,				/* failed, and the schedule is exhausted */
	OUTBOX_PARKED,				/* not sent, be it for an earlier one of its key */
	OUTBOX_SCHEDULED			/* not sent: its time is yet to come */
} OutboxFate;

typedef struct OutboxResult
{
	OutboxFate	fate;
	int			attempts;		/* that count */
	bool		uncounted;		/* the last one does not */
	int64		delay_ms;
	/* The last attempt, if it failed. */
	int			status;			/* 0: no answer */
	int			duration_ms;
	const char *error;			/* NULL: none */
	const char *answer;			/* its start; NULL: none */
} OutboxResult;

/* A copy in the current memory context. */
extern OutboxLane outbox_copy_lane(const OutboxLane *lane);

/*
 * Takes a look; leaves its snapshot active, and makes durable what others have
 * enqueued and committed as far as it shows them.
 */
extern OutboxHorizon outbox_horizon_begin(void);
extern void outbox_horizon_end(OutboxHorizon *horizon);

/* Is a transaction open in the snapshot? */
extern bool outbox_xid_is_open(FullTransactionId xid, Snapshot snapshot);

/*
 * Reads the next events for a lane that has come so far: at most so many, and
 * none after the one that exceeds max_bytes.  This and the next ones read into
 * the current memory context.
 */
extern OutboxBatch outbox_read_batch(const OutboxHorizon *horizon,
									 OutboxLaneId id, const OutboxLane *lane,
									 int max_events, Size max_bytes);

/* Makes a batch end after so many of its events, at least one. */
extern void outbox_stop_batch(OutboxBatch *batch, int count);

/*
 * Reads the exceptions of a lane that are due, but not those at positions, an
 * array of bigint, which are on their way.
 */
extern OutboxBatch outbox_read_due(OutboxLaneId id, Datum positions,
								   Size max_bytes);

/* Reads the exception that was tried, or became due, the longest time ago. */
extern OutboxBatch outbox_read_longest_waiting(OutboxLaneId id);

/* When the next exception of a lane is due, but for those; 0: never. */
extern TimestampTz outbox_next_due_at(OutboxLaneId id, Datum positions);

/*
 * Takes a lane for this process until outbox_disown_lane; false: another has
 * it.
 */
extern bool outbox_own_lane(OutboxLaneId id);
extern void outbox_disown_lane(OutboxLaneId id);

/*
 * Begins to settle: until the end of the transaction, rows that another one has
 * locked are waited for only shortly, or hardly.
 */
extern void outbox_settle_begin(bool patient);

typedef enum OutboxLock
{
	OUTBOX_LOCKED,
	OUTBOX_BUSY,				/* another transaction has it; try again */
	OUTBOX_GONE					/* there is no such subscription any more */
} OutboxLock;

/*
 * Locks a lane without waiting, and says where it is; required before anything
 * below is called for it.
 */
extern OutboxLock outbox_lock_lane(OutboxLaneId id, int64 *position);

/* Writes down what became of an event read by outbox_read_batch. */
extern void outbox_settle_new(OutboxLaneId id, const OutboxEvent *event,
							  const OutboxResult *result);

/* Writes down what became of an event that was an exception already. */
extern void outbox_settle_due(OutboxLaneId id, const OutboxEvent *event,
							  const OutboxResult *result);

/* Moves a lane, and counts events that were delivered. */
extern void outbox_move_lane(OutboxLaneId id, const OutboxLane *after,
							 int64 delivered);

/* Counts exceptions that were delivered. */
extern void outbox_count_delivered(OutboxLaneId id, int64 delivered);

/*
 * Switches a subscription off for a reason, and says whether that was done; not
 * if it is off already, or locked: the endpoint will say so again.
 */
extern bool outbox_disable(int64 subscription, const char *reason);

/*
 * Notes that a subscription's endpoint fails as a whole, or does no longer;
 * what has failed meanwhile is due then.  False: it is locked; try again.
 */
extern bool outbox_set_failing(int64 subscription, bool failing);

#endif							/* OUTBOX_READER_H */
