/*
 * partition.h
 *		How far each partition has read, as recorded, and which relay serves it.
 *		The functions that read or write rows must be called in a transaction
 *		with SPI.
 */
#ifndef OUTBOX_PARTITION_H
#define OUTBOX_PARTITION_H

#include "access/transam.h"

#include "outbox/filter.h"

#define OUTBOX_NO_HEAD (-1)
#define OUTBOX_BUCKETS 64

/* An open transaction that was passed; its rows from "from" are unread. */
typedef struct OutboxStraggler
{
	FullTransactionId xid;
	int64		from;
} OutboxStraggler;

/* Names a partition of a subscription. */
typedef struct OutboxPartitionId
{
	int64		subscription;
	int32		number;
} OutboxPartitionId;

/* How far the log was read: the pair (P, K). */
typedef struct OutboxCursor
{
	int64		position;
	OutboxStraggler *stragglers;
	int			straggler_count;
} OutboxCursor;

/* What tells whether another session has changed the row of a partition. */
typedef struct OutboxRow
{
	int64		position;
	int			head;			/* relay that it follows, or OUTBOX_NO_HEAD */
} OutboxRow;

/* Copies a cursor into the current memory context. */
extern OutboxCursor outbox_copy_cursor(const OutboxCursor *cursor);

/* Returns the straggler with this id, or NULL. */
extern const OutboxStraggler *outbox_cursor_find(const OutboxCursor *cursor,
												 FullTransactionId xid);

/* Compares positions and stragglers, in any order. */
extern bool outbox_cursors_equal(const OutboxCursor *one,
								 const OutboxCursor *other,
								 bool compare_froms);

/*
 * Reads a cursor from three columns of SPI_tuptable into the current memory
 * context; false: one has no valid value.
 */
extern bool outbox_cursor_from_row(uint64 row, int column,
								   OutboxCursor *cursor);

/* Sets three parameters: position, stragglers and straggler_froms. */
extern void outbox_cursor_values(Datum *values, const OutboxCursor *cursor);

/* Reads two columns of SPI_tuptable: position and head. */
extern OutboxRow outbox_row(uint64 row, int column);

typedef enum OutboxLock
{
	OUTBOX_LOCKED,
	OUTBOX_BUSY,				/* another transaction has locked it */
	OUTBOX_GONE					/* the partition does not exist any more */
} OutboxLock;

/*
 * Locks a partition without waiting and reads its row.  Must be called before
 * something is written for the partition.
 */
extern OutboxLock outbox_lock_partition(OutboxPartitionId id, OutboxRow *row);

/*
 * Sets the cursor and head of a partition, and counts events: delivered ones,
 * and those that the filter did not let pass.
 */
extern void outbox_write_partition(OutboxPartitionId id,
								   const OutboxCursor *cursor, int head,
								   int64 delivered, FilterCounts filtered);

/* Counts delivered events, and leaves the cursor as it is. */
extern void outbox_count_delivered(OutboxPartitionId id, int64 delivered);

/*
 * Reads and writes how far a relay's head has read.  outbox_read_head returns
 * false if that was never recorded.
 */
extern bool outbox_read_head(int relay, OutboxCursor *cursor);
extern void outbox_write_head(int relay, const OutboxCursor *cursor);

/* A partition does not follow a head any more. */
extern void outbox_leave_head_alone(OutboxPartitionId id);

/*
 * Partitions that the relay does not serve do not follow its head any more.
 * They are not active, or in none of its buckets, of which there is one element
 * for each number.
 */
extern void outbox_leave_head(int relay, const bool *buckets);

/* The number of the bucket that a partition is in. */
extern int	outbox_bucket(OutboxPartitionId id);

/*
 * Takes a bucket for this process until outbox_disown_bucket; false: another
 * process has it.
 */
extern bool outbox_own_bucket(int bucket);
extern void outbox_disown_bucket(int bucket);

#endif							/* OUTBOX_PARTITION_H */
