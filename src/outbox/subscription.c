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
	UNLESS("s.rate_limit IS NULL OR s.rate_limit BETWEEN 0.00001 AND 1000000", "rate_limit") \
	UNLESS("s.batch = 1 OR s.batch BETWEEN 2 AND 1000 AND s.format = 'cloudevents'", "batch") \
	UNLESS("s.priority BETWEEN 1 AND 100", "priority") \
	" WHEN p.number IS NULL THEN 'outbox_partition has no row of it'" \
	UNLESS("p.number BETWEEN 0 AND s.partitions - 1", "number") \
	UNLESS("p.position >= 0", "position") \
	" WHEN p.position > (SELECT CASE WHEN is_called THEN last_value ELSE 0 END" \
	"  FROM idempotency_internal.outbox_position_seq)" \
	"  THEN 'its position is beyond the end of the log'" \
	" END"

#define NEXT_DUE_AT \
	" (SELECT d.due_at FROM idempotency_internal.outbox_delivery d" \
	"  WHERE d.subscription = s.id AND d.partition = p.number" \
	"  AND d.state = 'waiting' ORDER BY d.due_at LIMIT 1)"

/*
 * The highest position of a deferred delivery.  One that was written by hand
 * may be beyond the end of the log.
 */
#define LAST_DEFERRED \
	" (SELECT d.position FROM idempotency_internal.outbox_delivery d" \
	"  WHERE d.subscription = s.id AND d.position <=" \
	"  (SELECT last_value FROM idempotency_internal.outbox_position_seq)" \
	"  ORDER BY d.position DESC LIMIT 1)"

#define PARTITIONS \
	" LEFT JOIN LATERAL (SELECT number, position, head" \
	"  FROM idempotency_internal.outbox_partition" \
	"  WHERE subscription = s.id OFFSET 0) p ON true"

static SavedQuery read_subscriptions = {
	.sql = "SELECT s.id, coalesce(p.number, 0), s.name, s.url, s.secret, s.old_secret,"
	" s.failing_since IS NOT NULL, s.format = 'cloudevents', s.ordered, s.max_in_flight,"
	" CASE WHEN s.timeout BETWEEN '1 ms' AND '1 h' THEN idempotency_internal.outbox_milliseconds(s.timeout) END,"
	" CASE WHEN cardinality(s.retry_schedule) <= 100 THEN"
	"  ARRAY(SELECT CASE WHEN r.wait BETWEEN '0' AND '366 days' THEN idempotency_internal.outbox_milliseconds(r.wait) END"
	"   FROM unnest(s.retry_schedule) WITH ORDINALITY AS r(wait, number)"
	"   ORDER BY r.number) END,"
	" r.position, r.stragglers, r.straggler_froms, s.version, s.partitions, s.recovered_at," WRONG_COLUMN ","
	" CASE WHEN jsonb_typeof(s.headers) = 'object' THEN"
	"  ARRAY(SELECT h.key || ': ' || h.value FROM jsonb_each_text(s.headers) h) END,"
	" s.old_until, s.topics, s.xmin, s.ctid, p.position, p.head," NEXT_DUE_AT ","
	" CASE WHEN s.rate_limit BETWEEN 0.00001 AND 1000000 THEN s.rate_limit::float8 ELSE 0 END, s.batch, s.filter,"
	" s.signing_key, s.old_signing_key, s.old_key_until, s.authorization_file, s.client_certificate, s.priority,"
	" s.keep_deliveries IS NOT NULL," LAST_DEFERRED
	" FROM idempotency_internal.outbox_subscription s" PARTITIONS
	" LEFT JOIN LATERAL (SELECT r.position, r.stragglers, r.straggler_froms"
	"  FROM idempotency_internal.outbox_reached r"
	"  WHERE r.subscription = s.id AND r.number = p.number OFFSET 0) r ON true"
	" WHERE s.id = ANY ($1) AND s.state = 'active' AND s.url IS NOT NULL"
	" ORDER BY s.id, p.number",
	.types = {INT8ARRAYOID}
};

#define SEE_PARTITIONS(due_at) \
	"SELECT s.id, coalesce(p.number, 0), s.xmin, s.ctid, p.position, p.head," \
	due_at \
	" FROM idempotency_internal.outbox_subscription s" PARTITIONS \
	" WHERE s.state = 'active' AND s.url IS NOT NULL"

static SavedQuery see_partitions = {.sql = SEE_PARTITIONS("NULL")};
static SavedQuery see_partitions_due = {.sql = SEE_PARTITIONS(NEXT_DUE_AT)};

static SavedQuery read_identity = {
	.sql = "SELECT CASE WHEN bool_and(h.system_identifier = $1 AND h.database = $2"
	"  AND h.relation = h.tableoid)"
	"  THEN replace(min(h.identity::text), '-', '') END,"
	" EXISTS (SELECT FROM idempotency_internal.outbox_subscription)"
	" FROM idempotency_internal.outbox_home h",
	.types = {INT8OID, OIDOID}
};

/* Returns a time, or 0 for null. */
static TimestampTz
subscription_time(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);

	return isnull ? 0 : DatumGetTimestampTz(value);
}

/* Returns a time that something is due, which is not 0, or 0 for null. */
static TimestampTz
subscription_due_at(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);

	return isnull ? 0 : Max(DatumGetTimestampTz(value), 1);
}

static JsonPath *
subscription_filter(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);

	return isnull ? NULL : DatumGetJsonPathPCopy(value);
}

static OutboxVersion
subscription_version(uint64 row, int column)
{
	OutboxVersion version;
	bool		isnull;

	version.xmin = DatumGetTransactionId(query_datum(row, column, &isnull));
	version.place =
		*(ItemPointer) DatumGetPointer(query_datum(row, column + 1, &isnull));
	return version;
}

/*
 * If a relay has recorded a failed event, and died before its partition passed
 * the event, the log has it, too.  Events of stragglers are read after others
 * with higher positions.
 */
static int64
subscription_again_to(const OutboxCursor *cursor, int64 last_deferred)
{
	return last_deferred > cursor->position || cursor->straggler_count > 0 ?
		last_deferred : 0;
}

static OutboxSubscription
subscription_row(uint64 row)
{
	OutboxSubscription subscription = {0};
	bool		isnull;

	subscription.id.subscription = query_int64(row, 1);
	subscription.id.number = DatumGetInt32(query_datum(row, 2, &isnull));
	subscription.version = query_int64(row, 16);
	subscription.partitions = DatumGetInt32(query_datum(row, 17, &isnull));
	subscription.name = query_text(row, 3);
	subscription.row_version = subscription_version(row, 23);
	subscription.row = outbox_row(row, 25);
	subscription.wrong = query_text(row, 19);
	if (subscription.wrong != NULL)
		return subscription;
	subscription.url = query_text(row, 4);
	subscription.secret = query_text(row, 5);
	subscription.old_secret = query_text(row, 6);
	subscription.headers = outbox_text_list(row, 20);
	subscription.failing = DatumGetBool(query_datum(row, 7, &isnull));
	subscription.recovered_at = subscription_time(row, 18);
	subscription.old_until = subscription_time(row, 21);
	subscription.topics = DatumGetArrayTypePCopy(query_datum(row, 22, &isnull));
	subscription.filter = subscription_filter(row, 30);
	subscription.signing_key = query_text(row, 31);
	subscription.old_signing_key = query_text(row, 32);
	subscription.old_key_until = subscription_time(row, 33);
	subscription.authorization_file = query_text(row, 34);
	subscription.client_certificate = query_text(row, 35);
	subscription.due_at = subscription_due_at(row, 27);
	subscription.cloudevents = DatumGetBool(query_datum(row, 8, &isnull));
	subscription.ordered = DatumGetBool(query_datum(row, 9, &isnull));
	subscription.max_in_flight = DatumGetInt32(query_datum(row, 10, &isnull));
	subscription.batch = DatumGetInt32(query_datum(row, 29, &isnull));
	subscription.priority = DatumGetInt32(query_datum(row, 36, &isnull));
	subscription.keeps_deliveries =
		DatumGetBool(query_datum(row, 37, &isnull));
	subscription.timeout_ms = (int) query_int64(row, 11);
	subscription.rate_limit = DatumGetFloat8(query_datum(row, 28, &isnull));
	subscription.schedule_ms =
		query_int64_elements(row, 12, &subscription.schedule_count);
	if (subscription.schedule_ms == NULL)
		subscription.wrong = "column \"retry_schedule\" has no valid value";
	else if (!outbox_cursor_from_row(row, 13, &subscription.cursor))
		subscription.wrong = "column \"stragglers\" has no valid value";
	else
		subscription.again_to = subscription_again_to(&subscription.cursor,
													  query_int64(row, 38));
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
outbox_read_subscriptions(const int64 *ids, int id_count,
						  OutboxSubscription **subscriptions)
{
	Datum		values[1];
	uint64		count;
	uint64		first = 0;		/* row of this subscription */

	values[0] = query_int64_array(ids, id_count);
	count = query_run(&read_subscriptions, values, NULL, true);
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

static char **
subscription_copy_headers(char **headers)
{
	int			count = 0;
	char	  **copy;

	while (headers[count] != NULL)
		count++;
	copy = palloc((count + 1) * sizeof(char *));
	for (int i = 0; i < count; i++)
		copy[i] = pstrdup(headers[i]);
	copy[count] = NULL;
	return copy;
}

static char *
subscription_copy_text(const char *text)
{
	return text == NULL ? NULL : pstrdup(text);
}

OutboxSubscription *
outbox_copy_settings(const OutboxSubscription *from)
{
	OutboxSubscription *copy = palloc(sizeof(OutboxSubscription));
	Size		schedule_size = from->schedule_count * sizeof(int64);

	*copy = *from;
	copy->name = pstrdup(from->name);
	copy->url = pstrdup(from->url);
	copy->secret = pstrdup(from->secret);
	copy->old_secret = subscription_copy_text(from->old_secret);
	copy->signing_key = subscription_copy_text(from->signing_key);
	copy->old_signing_key = subscription_copy_text(from->old_signing_key);
	copy->authorization_file = subscription_copy_text(from->authorization_file);
	copy->client_certificate = subscription_copy_text(from->client_certificate);
	copy->headers = subscription_copy_headers(from->headers);
	copy->schedule_ms = memcpy(palloc(schedule_size),
							   from->schedule_ms, schedule_size);
	copy->topics =
		DatumGetArrayTypePCopy(PointerGetDatum(from->topics));
	if (from->filter)
		copy->filter = DatumGetJsonPathPCopy(PointerGetDatum(from->filter));
	memset(&copy->cursor, 0, sizeof(copy->cursor));
	return copy;
}

int
outbox_see_partitions(bool with_due, OutboxSeen **seen)
{
	SavedQuery *query = with_due ? &see_partitions_due : &see_partitions;
	uint64		count = query_run(query, NULL, NULL, true);

	*seen = palloc((count + 1) * sizeof(OutboxSeen));
	for (uint64 i = 0; i < count; i++)
	{
		OutboxSeen *one = &(*seen)[i];
		bool		isnull;

		one->id.subscription = query_int64(i, 1);
		one->id.number = DatumGetInt32(query_datum(i, 2, &isnull));
		one->row_version = subscription_version(i, 3);
		one->row = outbox_row(i, 5);
		one->due_at = subscription_due_at(i, 7);
	}
	SPI_freetuptable(SPI_tuptable);
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
