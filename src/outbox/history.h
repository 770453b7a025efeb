/*
 * history.h
 *		The attempts at events of subscriptions that keep their deliveries.
 */
#ifndef OUTBOX_HISTORY_H
#define OUTBOX_HISTORY_H

#include "outbox/reader.h"

typedef struct OutboxAttempt
{
	int64		position;
	const OutboxResult *result;
} OutboxAttempt;

/*
 * Records attempts at events of a subscription, in the transaction that settles
 * them.  The events are in the log if they are new; otherwise they are deferred
 * deliveries, which must not be deleted yet.  Must be called with SPI.
 */
extern void outbox_keep_attempts(int64 subscription,
								 const OutboxAttempt *attempts, int count,
								 bool new_events);

#endif							/* OUTBOX_HISTORY_H */
