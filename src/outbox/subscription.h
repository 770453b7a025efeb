/*
 * subscription.h
 *		What a relay has to know to serve the subscriptions.
 */
#ifndef OUTBOX_SUBSCRIPTION_H
#define OUTBOX_SUBSCRIPTION_H

#include "outbox/reader.h"

typedef struct OutboxSubscription
{
	int64		id;
	char	   *name;
	char	   *url;
	char	   *secret;
	bool		cloudevents;	/* else Standard Webhooks' own body */
	bool		ordered;
	int			max_in_flight;
	int			timeout_ms;
	int			schedule_count;
	int64	   *schedule_ms;
	OutboxLane	lane;
} OutboxSubscription;

/*
 * Reads all active subscriptions with their lanes, as the active snapshot
 * shows them, into context.  Returns how many.
 */
extern int	outbox_read_subscriptions(OutboxSubscription **subscriptions,
									  MemoryContext context);

/*
 * The identity that webhook ids begin with, in context; NULL if this database
 * is a copy of the outbox's home and must not send.
 */
extern char *outbox_read_identity(MemoryContext context);

#endif							/* OUTBOX_SUBSCRIPTION_H */
