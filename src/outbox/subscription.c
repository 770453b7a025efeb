/*
 * subscription.c
 *		Reads subscriptions, their partitions, and the home of the outbox.
 *
 * The functions that change them are in functions.sql.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/timestamp.h"

#include "base/query.h"
#include "outbox/subscription.h"

/*
 * Constraints refuse such rows, but constraints can be dropped.  A wrong value
 * in one row must not raise an error, which would stop all subscriptions.
 */
#define WRONG_COLUMN \
	" CASE" \
	UNLESS("octet_length(s.name) BETWEEN 1 AND 255", "name") \
	UNLESS("octet_length(s.url) BETWEEN 1 AND 2048", "url") \
	UNLESS("cardinality(s.topics) BETWEEN 1 AND 100", "topics") \
	UNLESS("s.secret IS NOT NULL", "secret") \
	UNLESS("s.headers IS NULL OR jsonb_typeof(s.headers) = 'object'", "headers") \
	UNLESS("s.format IN ('standard', 'cloudevents')", "format") \
	UNLESS("s.ordered IS NOT NULL", "ordered") \
	UNLESS("s.max_in_flight BETWEEN 1 AND 256", "max_in_flight") \
	UNLESS("s.timeout BETWEEN '1 ms' AND '1 h'", "timeout") \
	UNLESS("cardinality(s.retry_schedule) BETWEEN 1 AND 100", "retry_schedule") \
	UNLESS("isfinite(s.recovered_at) IS NOT FALSE", "recovered_at") \
	UNLESS("s.partitions BETWEEN 1 AND 64", "partitions") \
	" WHEN p.number IS NULL THEN 'outbox_partition has no row of it'" \
	UNLESS("p.number BETWEEN 0 AND s.partitions - 1", "number") \
	UNLESS("p.position >= 0", "position") \
	" WHEN p.position > (SELECT CASE WHEN is_called THEN last_value ELSE 0 END" \
	"  FROM idempotency_internal.outbox_position_seq)" \
	"  THEN 'its position is beyond the end of the log'" \
	" END"

static SavedQuery read_subscriptions = {
	.sql = "SELECT s.id, coalesce(p.number, 0), s.name, s.url, s.secret,"
	" CASE WHEN s.old_until > clock_timestamp() THEN s.old_secret END,"
	" s.failing_since IS NOT NULL, s.format = 'cloudevents', s.ordered, s.max_in_flight,"
	" CASE WHEN s.timeout BETWEEN '1 ms' AND '1 h' THEN idempotency_internal.outbox_milliseconds(s.timeout) END,"
	" CASE WHEN cardinality(s.retry_schedule) <= 100 THEN"
	"  ARRAY(SELECT CASE WHEN r.wait BETWEEN '0' AND '366 days' THEN idempotency_internal.outbox_milliseconds(r.wait) END"
	"   FROM unnest(s.retry_schedule) WITH ORDINALITY AS r(wait, number)"
	"   ORDER BY r.number) END,"
	" p.position, p.stragglers, p.straggler_froms, s.version, s.partitions, s.recovered_at," WRONG_COLUMN ","
	" CASE WHEN jsonb_typeof(s.headers) = 'object' THEN"
	"  ARRAY(SELECT h.key || ': ' || h.value FROM jsonb_each_text(s.headers) h) END"
	" FROM idempotency_internal.outbox_subscription s"
	" LEFT JOIN idempotency_internal.outbox_partition p ON p.subscription = s.id"
	" WHERE s.state = 'active' ORDER BY s.id, p.number"
};

static SavedQuery read_identity = {
	.sql = "SELECT CASE WHEN bool_and(h.system_identifier = $1 AND h.database = $2"
	"  AND h.relation = h.tableoid)"
	"  THEN replace(min(h.identity::text), '-', '') END,"
	" EXISTS (SELECT FROM idempotency_internal.outbox_subscription)"
	" FROM idempotency_internal.outbox_home h",
	.types = {INT8OID, OIDOID}
};

/*
 * Returns the elements of a bigint[] or xid8[], of eight bytes each; NULL if
 * the array or one of its elements is null.
 */
static int64 *
subscription_array(uint64 row, int column, int *count)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);
	ArrayType  *array;

	if (isnull)
		return NULL;
	array = DatumGetArrayTypePCopy(value);
	if (array_contains_nulls(array))
		return NULL;
	*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int64 *) ARR_DATA_PTR(array);
}

static void
subscription_cursor(OutboxSubscription *subscription, uint64 row)
{
	OutboxCursor *cursor = &subscription->cursor;
	int			count;
	int64	   *xids = subscription_array(row, 14, &count);
	int64	   *froms = subscription_array(row, 15, &cursor->straggler_count);

	if (xids == NULL || froms == NULL || count != cursor->straggler_count)
	{
		subscription->wrong = "column \"stragglers\" has no valid value";
		return;
	}
	cursor->position = query_int64(row, 13);
	cursor->stragglers = palloc(count * sizeof(OutboxStraggler) + 1);
	for (int i = 0; i < count; i++)
	{
		cursor->stragglers[i].xid = FullTransactionIdFromU64((uint64) xids[i]);
		cursor->stragglers[i].from = froms[i];
	}
}

static OutboxSubscription
subscription_row(uint64 row)
{
	OutboxSubscription subscription = {0};
	Datum		recovered_at;
	bool		isnull;

	subscription.id.subscription = query_int64(row, 1);
	subscription.id.number = DatumGetInt32(query_datum(row, 2, &isnull));
	subscription.version = query_int64(row, 16);
	subscription.partitions = DatumGetInt32(query_datum(row, 17, &isnull));
	subscription.name = query_text(row, 3);
	subscription.wrong = query_text(row, 19);
	if (subscription.wrong != NULL)
		return subscription;
	subscription.url = query_text(row, 4);
	subscription.secret = query_text(row, 5);
	subscription.old_secret = query_text(row, 6);
	subscription.headers = outbox_text_list(row, 20);
	subscription.failing = DatumGetBool(query_datum(row, 7, &isnull));
	recovered_at = query_datum(row, 18, &isnull);
	subscription.recovered_at = isnull ? 0 : DatumGetTimestampTz(recovered_at);
	subscription.cloudevents = DatumGetBool(query_datum(row, 8, &isnull));
	subscription.ordered = DatumGetBool(query_datum(row, 9, &isnull));
	subscription.max_in_flight = DatumGetInt32(query_datum(row, 10, &isnull));
	subscription.timeout_ms = (int) query_int64(row, 11);
	subscription.schedule_ms = subscription_array(row, 12,
												  &subscription.schedule_count);
	if (subscription.schedule_ms == NULL)
		subscription.wrong = "column \"retry_schedule\" has no valid value";
	else
		subscription_cursor(&subscription, row);
	return subscription;
}

/*
 * Checks that a subscription has one row for each partition.  Events of a
 * partition without a row would never be read.
 */
static void
subscription_count_partitions(OutboxSubscription *rows, int count)
{
	int			found = 0;

	for (int i = 0; i < count; i++)
		found += i < rows[i].partitions && rows[i].id.number == i;
	for (int i = 0; i < count; i++)
	{
		if (rows[i].wrong == NULL && found != rows[i].partitions)
			rows[i].wrong = "outbox_partition does not have a row for each of its partitions";
	}
}

int
outbox_read_subscriptions(OutboxSubscription **subscriptions)
{
	uint64		count = query_run(&read_subscriptions, NULL, NULL, true);
	uint64		first = 0;		/* row of this subscription */

	*subscriptions = palloc((count + 1) * sizeof(OutboxSubscription));
	for (uint64 i = 0; i < count; i++)
	{
		OutboxSubscription *row = &(*subscriptions)[i];

		*row = subscription_row(i);
		if (row->id.subscription != (*subscriptions)[first].id.subscription)
		{
			subscription_count_partitions(&(*subscriptions)[first], i - first);
			first = i;
		}
	}
	subscription_count_partitions(&(*subscriptions)[first], count - first);
	return (int) count;
}

char *
outbox_read_identity(bool *any_subscription)
{
	Datum		values[2];
	bool		isnull;

	values[0] = Int64GetDatum((int64) GetSystemIdentifier());
	values[1] = ObjectIdGetDatum(MyDatabaseId);
	query_run(&read_identity, values, NULL, true);
	*any_subscription = DatumGetBool(query_datum(0, 2, &isnull));
	return query_text(0, 1);
}
