/*
 * subscription.h
 *		What a relay needs to know to serve the subscriptions.
 */
#ifndef OUTBOX_SUBSCRIPTION_H
#define OUTBOX_SUBSCRIPTION_H

#include "storage/itemptr.h"
#include "utils/array.h"
#include "utils/jsonpath.h"

#include "outbox/reader.h"

/* The version of a row, which another transaction replaces. */
typedef struct OutboxVersion
{
	TransactionId xmin;
	ItemPointerData place;
} OutboxVersion;

/* A partition, with the columns of its subscription. */
typedef struct OutboxSubscription
{
	OutboxPartitionId id;
	OutboxVersion row_version;	/* of the row */
	int64		version;		/* changes whenever it is altered */
	char	   *name;
	char	   *url;
	ArrayType  *topics;
	JsonPath   *filter;			/* NULL: none */
	char	   *secret;
	char	   *old_secret;		/* NULL: only secret signs */
	TimestampTz old_until;		/* until when old_secret signs, too */
	char	   *signing_key;	/* NULL: secrets only */
	char	   *old_signing_key;	/* NULL: none */
	TimestampTz old_key_until;	/* until when it signs, too */
	char	   *authorization_file; /* NULL: none */
	char	   *client_certificate; /* name of a file; NULL: none */
	char	  **headers;		/* "Name: value", NULL-terminated */
	bool		cloudevents;	/* false: body as in Standard Webhooks */
	bool		ordered;
	int			max_in_flight;
	int			batch;			/* the most events of a request; if it is not
								 * 1, format is cloudevents */
	int			timeout_ms;
	double		rate_limit;		/* events a second; 0: none */
	int			schedule_count;
	int64	   *schedule_ms;
	bool		failing;		/* its endpoint fails as a whole */
	TimestampTz recovered_at;	/* when it worked again; 0: it never failed */
	int			partitions;
	int			priority;		/* weight of its share of the places */
	bool		keeps_deliveries;	/* all attempts are recorded */
	/* Of the partition: */
	OutboxRow	row;
	OutboxCursor cursor;		/* how far it has read */
	TimestampTz due_at;			/* its next deferred delivery; 0: none */
	int64		again_to;		/* up to there, events that are read may be
								 * deferred already; 0: none is */
	const char *wrong;			/* why it cannot be served, or NULL; if set,
								 * name may be NULL, and the columns after it
								 * are not set */
} OutboxSubscription;

/* What tells whether a partition, or its subscription, has changed. */
typedef struct OutboxSeen
{
	OutboxPartitionId id;
	OutboxVersion row_version;	/* of the subscription */
	OutboxRow	row;
	TimestampTz due_at;			/* if it was asked for; 0: nothing waits */
} OutboxSeen;

/*
 * Reads the partitions of these active subscriptions, as the active snapshot
 * shows them, into the current memory context, in the order of subscriptions.
 * Returns how many.
 */
extern int	outbox_read_subscriptions(const int64 *ids, int id_count,
									  OutboxSubscription **subscriptions);

/* Copies the columns of the subscription into the current memory context. */
extern OutboxSubscription *outbox_copy_settings(const OutboxSubscription *from);

/*
 * Looks at the partitions of all active subscriptions, and at what is due if
 * wanted.  The same otherwise.
 */
extern int	outbox_see_partitions(bool with_due, OutboxSeen **seen);

/*
 * Returns the identity that webhook ids begin with.  Returns NULL
 * if this database must not send because it is not the outbox's home: it is a
 * copy, or there was never a subscription.
 */
extern char *outbox_read_identity(bool *any_subscription);

#endif							/* OUTBOX_SUBSCRIPTION_H */
