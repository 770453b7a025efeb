/*
 * subscription.h
 *		What a relay has to know to serve the subscriptions.
 */
#ifndef OUTBOX_SUBSCRIPTION_H
#define OUTBOX_SUBSCRIPTION_H

#include "outbox/reader.h"

/* A lane, with what its subscription says. */
typedef struct OutboxSubscription
{
	OutboxLaneId id;
	int64		version;		/* another one whenever it is altered */
	char	   *name;
	char	   *url;
	char	   *secret;
	char	   *old_secret;		/* NULL: none is to sign any more */
	bool		cloudevents;	/* else Standard Webhooks' own body */
	bool		ordered;
	int			max_in_flight;
	int			timeout_ms;
	int			schedule_count;
	int64	   *schedule_ms;
	bool		failing;		/* its endpoint, as a whole */
	OutboxLane	lane;
	int			partitions;
	const char *wrong;			/* why it cannot be served; NULL: it can.  If
								 * not, name may be NULL, and url to lane are
								 * not there */
} OutboxSubscription;

/*
 * Reads the lanes of all active subscriptions, as the active snapshot shows
 * them, into the current memory context.  Returns how many.
 */
extern int	outbox_read_subscriptions(OutboxSubscription **subscriptions);

/*
 * The identity that webhook ids begin with; NULL if this database is not the
 * outbox's home and must not send: a copy, or one where nobody has subscribed
 * yet.
 */
extern char *outbox_read_identity(bool *any_subscription);

#endif							/* OUTBOX_SUBSCRIPTION_H */
