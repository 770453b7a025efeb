/*
 * ack.c
 *		outbox_ack: the reader of a batch is done with it.
 *
 * The partition moves to the end of the batch.  Events that have failed become
 * deferred deliveries, which outbox_fetch hands out again by the schedule of
 * the subscription.  The token tells whether the batch is still the reader's:
 * after a lapse, the next fetch replaces it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/xid8.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/query.h"
#include "outbox/pull.h"

/*
 * $3 to $5: the new cursor.  Events that a lapsed batch has set aside are after
 * its position, or belong to a straggler, whose events can be before it.
 */
static SavedQuery write_acknowledged = {
	.sql = "UPDATE idempotency_internal.outbox_partition"
	" SET position = $3, stragglers = $4, straggler_froms = $5,"
	"  delivered = delivered + $6,"
	"  rate = idempotency_internal.outbox_rate(rate, moved_at, $6),"
	"  moved_at = clock_timestamp(), leased_until = NULL,"
	"  leased_position = NULL, leased_stragglers = NULL, leased_froms = NULL,"
	"  leased_count = 0, leased_events = NULL,"
	"  lapsed_to = CASE WHEN lapsed_to > $3 OR cardinality($4) > 0"
	"   THEN lapsed_to ELSE 0 END"
	" WHERE subscription = $1 AND number = $2",
	.types = {
		INT8OID, INT4OID, INT8OID, XID8ARRAYOID, INT8ARRAYOID, INT8OID
	}
};

/* What outbox_ack was called for. */
typedef struct Ack
{
	PullSubscription subscription;
	PullPartition partition;
	int			failed_count;
	int64	   *failed;			/* in ascending order, each once */
	const char *error;
} Ack;

PG_FUNCTION_INFO_V1(outbox_ack);

static int
ack_compare_positions(const void *one, const void *other)
{
	int64		a = *(const int64 *) one;
	int64		b = *(const int64 *) other;

	return (a > b) - (a < b);
}

static void
ack_set_failed(Ack *ack, ArrayType *array)
{
	int64	   *positions;
	int			count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("failed must be a one-dimensional array")));
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("none of failed must be null")));
	positions = palloc(count * sizeof(int64) + 1);
	memcpy(positions, ARR_DATA_PTR(array), count * sizeof(int64));
	qsort(positions, count, sizeof(int64), ack_compare_positions);
	ack->failed = positions;
	for (int i = 0; i < count; i++)
	{
		if (i == 0 || positions[i] != positions[i - 1])
			positions[ack->failed_count++] = positions[i];
	}
}

static bool
ack_has_failed(const Ack *ack, int64 position)
{
	return bsearch(&position, ack->failed, ack->failed_count, sizeof(int64),
				   ack_compare_positions) != NULL;
}

/*
 * Every position in failed must be that of one of these.
 */
static void
ack_check_failed(const Ack *ack, List *deliveries)
{
	int			count = list_length(deliveries);
	int64	   *positions = palloc(count * sizeof(int64) + 1);

	for (int i = 0; i < count; i++)
	{
		const OutboxDelivery *delivery = list_nth(deliveries, i);

		positions[i] = delivery->event->position;
	}
	qsort(positions, count, sizeof(int64), ack_compare_positions);
	for (int i = 0; i < ack->failed_count; i++)
	{
		if (bsearch(&ack->failed[i], positions, count, sizeof(int64),
					ack_compare_positions) == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("event " INT64_FORMAT " is not in the batch",
							ack->failed[i])));
	}
}

static void
ack_new(Ack *ack)
{
	Datum		positions;
	List	   *deliveries;

	if (ack->failed_count == 0)
		return;
	positions = query_int64_array(ack->failed, ack->failed_count);
	deliveries = pull_read_new(&ack->partition, positions);
	ack_check_failed(ack, deliveries);
	for (int i = 0; i < list_length(deliveries); i++)
		pull_fail_new(&ack->subscription, ack->partition.id,
					  list_nth(deliveries, i), ack->error);
}

/*
 * Has an earlier one of these deliveries of the same key failed?
 */
static bool
ack_is_behind(List *failed, const OutboxDelivery *delivery)
{
	for (int i = 0; i < list_length(failed); i++)
	{
		const OutboxDelivery *earlier = list_nth(failed, i);

		if (delivery->in_order && earlier->in_order &&
			strcmp(earlier->event->key, delivery->event->key) == 0)
			return true;
	}
	return false;
}

/*
 * Deferred deliveries that have succeeded are deleted.  Of those of one key
 * that have failed, the first one waits, and the others stay parked.
 */
static void
ack_deferred(Ack *ack)
{
	const PullPartition *partition = &ack->partition;
	List	   *deliveries;
	List	   *succeeded = NIL;
	List	   *released = NIL;
	List	   *failed = NIL;

	deliveries = pull_read_deferred(partition,
									query_int64_array(partition->events,
													  partition->known_count));
	ack_check_failed(ack, deliveries);
	for (int i = 0; i < list_length(deliveries); i++)
	{
		OutboxDelivery *delivery = list_nth(deliveries, i);

		if (!ack_has_failed(ack, delivery->event->position))
		{
			succeeded = lappend(succeeded, delivery);
			if (delivery->in_order)
				released = lappend(released, delivery);
		}
		else if (!ack_is_behind(failed, delivery))
			failed = lappend(failed, delivery);
	}
	outbox_delete_delivered(partition->id, succeeded);
	for (int i = 0; i < list_length(failed); i++)
		pull_fail_deferred(&ack->subscription, partition->id,
						   list_nth(failed, i), ack->error);
	outbox_release_keys(partition->id, released);
}

static void
ack_write(const Ack *ack)
{
	const PullPartition *partition = &ack->partition;
	Datum		values[6];

	values[0] = Int64GetDatum(partition->id.subscription);
	values[1] = Int32GetDatum(partition->id.number);
	outbox_cursor_values(&values[2], partition->deferred ?
						 &partition->cursor : &partition->after);
	values[5] = Int64GetDatum(partition->event_count - ack->failed_count);
	query_run(&write_acknowledged, values, NULL, false);
	xacts_wake_readers(XACTS_ACKNOWLEDGED);
}

/*
 * Returns false if the batch with this token was acknowledged before.
 */
static bool
ack_batch(Ack *ack, int64 token)
{
	if (!pull_lock_token(&ack->subscription, token, &ack->partition))
		ereport(ERROR,
				(errcode(ERRCODE_LEASE_LOST),
				 errmsg("the lease on a batch of subscription \"%s\" was lost",
						ack->subscription.name),
				 errdetail("Its events were fetched again with a newer token, or are replayed, or this token is another one's.")));
	if (ack->partition.leased_until == 0)
		return false;
	if (ack->partition.deferred)
		ack_deferred(ack);
	else
		ack_new(ack);
	ack_write(ack);
	return true;
}

static char *
ack_error_arg(FunctionCallInfo fcinfo, int failed_count)
{
	char	   *error;

	if (PG_ARGISNULL(3))
		return "failed";
	if (failed_count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("an error needs the events that have failed")));
	error = text_to_cstring(PG_GETARG_TEXT_PP(3));
	error[pg_mbcliplen(error, strlen(error), PULL_ERROR_MAX)] = '\0';
	return error;
}

/*
 * SQL: outbox_ack(name, token, failed, error), acknowledges a batch.
 */
Datum
outbox_ack(PG_FUNCTION_ARGS)
{
	Ack			ack = {0};
	text	   *name;
	int64		token;
	bool		done;

	pull_check_isolation("outbox_ack()");
	name = args_text(fcinfo, 0, "name");
	token = args_token(fcinfo, 1);
	args_require(fcinfo, 2, "failed");
	ack_set_failed(&ack, PG_GETARG_ARRAYTYPE_P(2));
	ack.error = ack_error_arg(fcinfo, ack.failed_count);
	SPI_connect();
	ack.subscription = pull_find(name);
	done = ack_batch(&ack, token);
	SPI_finish();
	PG_RETURN_BOOL(done);
}
