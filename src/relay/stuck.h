/*
 * stuck.h
 *		Stuck partitions: excluded for a while, logged, and shown in
 *		outbox_subscriptions.
 */
#ifndef RELAY_STUCK_H
#define RELAY_STUCK_H

#include "base/shared.h"
#include "relay/feed.h"

/*
 * Excludes a partition until another try succeeds.  where, the context of the
 * error, is for the log only; NULL: none.
 */
extern void stuck_note(Feed *feed, const char *error, const char *where);

/* A try has succeeded. */
extern void stuck_end(Feed *feed);

/* The relay does not serve it any more. */
extern void stuck_forget(const Feed *feed);

/* Shows the stuck subscriptions of this relay, if they have changed. */
extern void stuck_show(SharedDatabase *database, int relay);

#endif							/* RELAY_STUCK_H */
