/*
 * stuck.c
 *		Stuck partitions: excluded for a while, logged, and shown in
 *		outbox_subscriptions.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "relay/endpoint.h"
#include "relay/stuck.h"

/* Has something changed since stuck_show? */
static bool stuck_changed;

/*
 * Has another partition of the subscription the same trouble?
 */
static bool
stuck_is_known(const Feed *feed, const char *error)
{
	ListCell   *cell;

	foreach(cell, feed->endpoint->feeds)
	{
		const Feed *other = lfirst(cell);

		if (other != feed && strcmp(other->trouble.error, error) == 0)
			return true;
	}
	return false;
}

void
stuck_note(Feed *feed, const char *error, const char *where)
{
	if (feed->attached)
		feed_detach(feed, &feed->head->cursor);
	endpoint_be_busy(feed->endpoint);
	if (!trouble_note(&feed->trouble, error, GetCurrentTimestamp()))
		return;
	stuck_changed = true;
	if (stuck_is_known(feed, feed->trouble.error))
		return;
	ereport(WARNING,
			(errmsg("subscription \"%s\" is stuck: %s",
					feed->endpoint->name, feed->trouble.error),
			 where ? errdetail_log("%s", where) : 0,
			 errhint("It is tried again from time to time, and at once after outbox_alter() or outbox_resume().")));
}

void
stuck_end(Feed *feed)
{
	char		error[SHARED_TROUBLE_MAX];

	strlcpy(error, feed->trouble.error, sizeof(error));
	if (!trouble_end(&feed->trouble))
		return;
	stuck_changed = true;
	if (stuck_is_known(feed, error))
		return;
	ereport(LOG,
			(errmsg("subscription \"%s\" is not stuck any more: %s",
					feed->endpoint->name, error)));
}

void
stuck_forget(const Feed *feed)
{
	stuck_changed |= trouble_present(&feed->trouble);
}

/*
 * Each subscription is shown once, with the trouble of one of its partitions.
 */
void
stuck_show(SharedDatabase *database, int relay)
{
	SharedTrouble troubles[SHARED_TROUBLES_MAX];
	int			count = 0;
	ListCell   *cell;

	if (!stuck_changed)
		return;
	foreach(cell, endpoints_busy_feeds())
	{
		const Feed *feed = lfirst(cell);
		int			known = 0;

		if (!trouble_present(&feed->trouble))
			continue;
		while (known < count &&
			   troubles[known].subscription != feed->id.subscription)
			known++;
		if (known < count || count == SHARED_TROUBLES_MAX)
			continue;
		troubles[count].relay = relay;
		troubles[count].subscription = feed->id.subscription;
		strlcpy(troubles[count++].error, feed->trouble.error,
				SHARED_TROUBLE_MAX);
	}
	shared_show_troubles(database, relay, troubles, count);
	stuck_changed = false;
}
