/*
 * subscription.c
 *		Reads subscriptions, their lanes, and where the outbox is at home.
 *
 * functions.sql has what users call to change them.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"

#include "base/query.h"
#include "outbox/subscription.h"

static SavedQuery read_subscriptions = {
	.sql = "SELECT s.id, l.lane, s.name, s.url, s.secret,"
	" CASE WHEN s.old_until > clock_timestamp() THEN s.old_secret END,"
	" s.failing_since IS NOT NULL, s.format = 'cloudevents', s.ordered, s.max_in_flight,"
	" @extschema@.outbox_milliseconds(s.timeout),"
	" ARRAY(SELECT @extschema@.outbox_milliseconds(r.wait)"
	"  FROM unnest(s.retry_schedule) WITH ORDINALITY AS r(wait, number)"
	"  ORDER BY r.number),"
	" l.position, l.stragglers, l.straggler_froms, s.version"
	" FROM @extschema@.outbox_subscription s"
	" JOIN @extschema@.outbox_lane l ON l.subscription = s.id"
	" WHERE s.state = 'active' ORDER BY s.id, l.lane"
};

static SavedQuery read_identity = {
	.sql = "SELECT CASE WHEN bool_and(h.system_identifier = $1 AND h.database = $2"
	"  AND h.relation = h.tableoid)"
	"  THEN replace(min(h.identity::text), '-', '') END,"
	" EXISTS (SELECT FROM @extschema@.outbox_subscription)"
	" FROM @extschema@.outbox_home h",
	.types = {INT8OID, OIDOID}
};

/*
 * The elements of a bigint[] or xid8[]: eight bytes each.
 */
static int64 *
subscription_array(uint64 row, int column, int *count)
{
	bool		isnull;
	ArrayType  *array = DatumGetArrayTypePCopy(query_datum(row, column, &isnull));

	if (ARR_HASNULL(array))
		elog(ERROR, "an array of subscription \"%s\" has a null in it",
			 query_text(row, 3));
	*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int64 *) ARR_DATA_PTR(array);
}

static OutboxLane
subscription_lane(uint64 row)
{
	OutboxLane	lane;
	int			count;
	int64	   *xids = subscription_array(row, 14, &count);
	int64	   *froms = subscription_array(row, 15, &lane.straggler_count);

	Assert(count == lane.straggler_count);
	lane.position = query_int64(row, 13);
	lane.stragglers = palloc(count * sizeof(OutboxStraggler) + 1);
	for (int i = 0; i < count; i++)
	{
		lane.stragglers[i].xid = FullTransactionIdFromU64((uint64) xids[i]);
		lane.stragglers[i].from = froms[i];
	}
	return lane;
}

static OutboxSubscription
subscription_row(uint64 row)
{
	OutboxSubscription subscription;
	bool		isnull;

	subscription.id.subscription = query_int64(row, 1);
	subscription.id.number = DatumGetInt32(query_datum(row, 2, &isnull));
	subscription.version = query_int64(row, 16);
	subscription.name = query_text(row, 3);
	subscription.url = query_text(row, 4);
	subscription.secret = query_text(row, 5);
	subscription.old_secret = query_text(row, 6);
	subscription.failing = DatumGetBool(query_datum(row, 7, &isnull));
	subscription.cloudevents = DatumGetBool(query_datum(row, 8, &isnull));
	subscription.ordered = DatumGetBool(query_datum(row, 9, &isnull));
	subscription.max_in_flight = DatumGetInt32(query_datum(row, 10, &isnull));
	subscription.timeout_ms = (int) query_int64(row, 11);
	subscription.schedule_ms = subscription_array(row, 12,
												  &subscription.schedule_count);
	subscription.lane = subscription_lane(row);
	return subscription;
}

int
outbox_read_subscriptions(OutboxSubscription **subscriptions,
						  MemoryContext context)
{
	uint64		count = query_run(&read_subscriptions, NULL, NULL, true);
	MemoryContext old = MemoryContextSwitchTo(context);

	*subscriptions = palloc((count + 1) * sizeof(OutboxSubscription));
	for (uint64 i = 0; i < count; i++)
		(*subscriptions)[i] = subscription_row(i);
	MemoryContextSwitchTo(old);
	return (int) count;
}

char *
outbox_read_identity(bool *any_subscription, MemoryContext context)
{
	MemoryContext old;
	char	   *identity;
	Datum		values[2];
	bool		isnull;

	values[0] = Int64GetDatum((int64) GetSystemIdentifier());
	values[1] = ObjectIdGetDatum(MyDatabaseId);
	query_run(&read_identity, values, NULL, true);
	*any_subscription = DatumGetBool(query_datum(0, 2, &isnull));
	old = MemoryContextSwitchTo(context);
	identity = query_text(0, 1);
	MemoryContextSwitchTo(old);
	return identity;
}
