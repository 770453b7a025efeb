/*
 * subscription.h
 *		What a relay needs to know to serve the subscriptions.
 */
#ifndef OUTBOX_SUBSCRIPTION_H
#define OUTBOX_SUBSCRIPTION_H

#include "outbox/reader.h"

/* A partition, with the columns of its subscription. */
typedef struct OutboxSubscription
{
	OutboxPartitionId id;
	int64		version;		/* changes whenever it is altered */
	char	   *name;
	char	   *url;
	char	   *secret;
	char	   *old_secret;		/* NULL: only secret signs */
	char	  **headers;		/* "Name: value", NULL-terminated */
	bool		cloudevents;	/* false: body as in Standard Webhooks */
	bool		ordered;
	int			max_in_flight;
	int			timeout_ms;
	int			schedule_count;
	int64	   *schedule_ms;
	bool		failing;		/* its endpoint fails as a whole */
	TimestampTz recovered_at;	/* when it worked again; 0: it never failed */
	OutboxCursor cursor;
	int			partitions;
	const char *wrong;			/* why it cannot be served, or NULL; if set,
								 * name may be NULL, and url to cursor are not
								 * set */
} OutboxSubscription;

/*
 * Reads the partitions of all active subscriptions, as the active snapshot
 * shows them, into the current memory context.  Returns how many.
 */
extern int	outbox_read_subscriptions(OutboxSubscription **subscriptions);

/*
 * Returns the identity that webhook ids begin with.  Returns NULL
 * if this database must not send because it is not the outbox's home: it is a
 * copy, or there was never a subscription.
 */
extern char *outbox_read_identity(bool *any_subscription);

#endif							/* OUTBOX_SUBSCRIPTION_H */
