/*
 * invalidation.c
 *		Passes the invalidation messages of relations on to all caches of ours.
 *
 * A session has room for ten callbacks, of which the server needs three and
 * Citus five; one more is an error, which ends the session.  So all our caches
 * share one.
 */
#include "postgres.h"

#include "utils/inval.h"

#include "base/invalidation.h"

#define INVALIDATION_CALLBACKS_MAX 5

static RelationChanged callbacks[INVALIDATION_CALLBACKS_MAX];
static int	count = 0;

static void
invalidation_pass_on(Datum arg, Oid relation)
{
	for (int i = 0; i < count; i++)
		callbacks[i] (relation);
}

void
invalidation_watch_relations(RelationChanged changed)
{
	if (count == INVALIDATION_CALLBACKS_MAX)
		elog(ERROR, "out of callbacks");
	if (count == 0)
		CacheRegisterRelcacheCallback(invalidation_pass_on, (Datum) 0);
	callbacks[count++] = changed;
}
