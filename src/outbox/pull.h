/*
 * pull.h
 *		Subscriptions that are read by outbox_fetch, and their partitions.
 *		Every function here must be called with SPI.
 */
#ifndef OUTBOX_PULL_H
#define OUTBOX_PULL_H

#include "utils/jsonpath.h"

#include "outbox/reader.h"

#define PULL_PARTITIONS_MAX 64	/* of a subscription */
#define PULL_ERROR_MAX 1000		/* bytes of the error of failed events */

typedef struct PullSubscription
{
	int64		id;
	char	   *name;
	JsonPath   *filter;			/* NULL: none */
	int			schedule_count;
	int64	   *schedule_ms;	/* NULL: it has no valid value */
	int			partitions;
	bool		active;
	char	   *identity;		/* of this outbox, as in the ids of events */
} PullSubscription;

/* A partition, and the batch that was fetched last. */
typedef struct PullPartition
{
	OutboxPartitionId id;
	OutboxCursor cursor;		/* everything before it is acknowledged */
	bool		resting;		/* it has not moved for a second */
	int64		token;			/* of the batch; 0: none can be acknowledged */
	TimestampTz leased_until;	/* 0: the batch is acknowledged */
	bool		deferred;		/* the batch has deferred deliveries */
	OutboxCursor after;			/* otherwise, where it ends */
	int			event_count;	/* of the batch */
	int64	   *events;			/* their positions, if it has deferred
								 * deliveries, or one event */
	int			known_count;	/* of those positions */
	int64		lapsed_to;		/* up to here, events may be deferred that
								 * were not acknowledged */
} PullPartition;

/* Columns of an event that is read. */
enum
{
	PULL_POSITION = 1,
	PULL_TOPIC,
	PULL_KEY,
	PULL_TYPE,
	PULL_PAYLOAD,
	PULL_HEADERS,
	PULL_CREATED_AT,
	PULL_ATTEMPT,
	PULL_SCHEDULED,
	PULL_WRONG,
	PULL_CANCELLED,
	PULL_IN_ORDER,
	PULL_BLOCKED,
	PULL_XID
};

#define PULL_COLUMNS(attempt, scheduled, cancelled) \
	"SELECT e.position, e.topic, e.key, e.type, e.payload, e.headers," \
	" e.created_at, " attempt "," scheduled "," OUTBOX_EVENT_WRONG "," \
	cancelled ","

/*
 * Raises an error unless a function that reads events can run in this
 * transaction.
 */
extern void pull_check_isolation(const char *function);

/*
 * Finds a subscription by name.  Raises an error if there is none, if it has a
 * URL, or if this database is a copy.
 */
extern PullSubscription pull_find(const text *name);

/*
 * Locks the partition that was fetched the longest time ago, of those whose
 * batch is acknowledged or has lapsed, and whose numbers are not in skipped, an
 * array of integer.  Returns false if there is none.
 */
extern bool pull_lock_free(const PullSubscription *subscription,
						   Datum skipped, PullPartition *partition);

/* Locks the partition whose batch has this token, and waits for the lock. */
extern bool pull_lock_token(const PullSubscription *subscription, int64 token,
							PullPartition *partition);

/* Copies the partitions without locks, as they are now.  Returns how many. */
extern int	pull_read_partitions(const PullSubscription *subscription,
								 PullPartition **partitions);

/*
 * Reads the next events of a partition from a cursor on; the columns of rows
 * are those above.  take is as in OutboxSource.
 */
extern OutboxChunk pull_read(const OutboxHorizon *horizon,
							 const PullPartition *partition,
							 const OutboxCursor *cursor, int rows,
							 bool (*take) (OutboxChunk *, uint64, void *),
							 void *arg);

/* Is a row for the subscription?  Counts it if the filter says no. */
extern bool pull_wants(const PullSubscription *subscription, uint64 row,
					   FilterCounts *counts);

/*
 * Records that an attempt at an event has failed, so that it waits for the next
 * one, or is dead.
 */
extern void pull_fail_new(const PullSubscription *subscription,
						  OutboxPartitionId id, OutboxDelivery *delivery,
						  const char *error);
extern void pull_fail_deferred(const PullSubscription *subscription,
							   OutboxPartitionId id, OutboxDelivery *delivery,
							   const char *error);

/*
 * Reads the events at these positions, an array of bigint, into the current
 * memory context: those of the batch of a partition that were read from the
 * log, or deferred deliveries, in the order of the array.  Returns a list of
 * OutboxDelivery *.
 */
extern List *pull_read_new(const PullPartition *partition, Datum positions);
extern List *pull_read_deferred(const PullPartition *partition,
								Datum positions);

#endif							/* OUTBOX_PULL_H */
