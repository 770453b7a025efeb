/*
 * settle.c
 *		Records the outcome of the events that a relay has read.
 *
 * A success writes only the partition's new cursor.  An event that could not be
 * delivered gets a row in outbox_delivery, in the same transaction that moves
 * the partition past it.  So the log up to the partition's position is not
 * needed any more.
 *
 * Order per key: a waiting or parked row with blocks_key makes later events of
 * its key park.  When that row is delivered or dead, the next parked one
 * becomes due.
 *
 * With idempotency.outbox_events, the same transaction enqueues an event when
 * an event is dead, or a subscription is disabled, fails or works again.  There
 * is none about events of the extension itself, nor about a subscription that
 * gets any: no event can lead to another one.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/query.h"
#include "base/settings.h"
#include "outbox/reader.h"

/*
 * $4 to $9: state, blocks_key, attempts, delay or null, status, error; $10 of
 * update_delivery: whether the attempt does not count, so that the event is not
 * due sooner.  If an event is dead because one of its values is not valid, a
 * valid value is stored instead.
 */
static SavedQuery insert_delivery = {
	.sql = "INSERT INTO idempotency_internal.outbox_delivery"
	" (subscription, partition, position, state, blocks_key, attempts, due_at,"
	"  last_at, last_status, last_error, created_at, topic, key, type, payload,"
	"  headers, expires_at, deliver_at)"
	" SELECT $1, $2, e.position, $4, $5, $6,"
	"  CASE WHEN $4 = 'waiting' THEN"
	"   coalesce(clock_timestamp() + $7 * interval '1 ms', e.deliver_at) END,"
	"  CASE WHEN $9 IS NOT NULL THEN clock_timestamp() END,"
	"  $8, $9, CASE WHEN isfinite(e.created_at) THEN e.created_at ELSE clock_timestamp() END,"
	"  coalesce(e.topic, ''), e.key, e.type, coalesce(e.payload, 'null'), e.headers,"
	"  CASE WHEN isfinite(e.expires_at) THEN e.expires_at END,"
	"  CASE WHEN isfinite(e.deliver_at) THEN e.deliver_at END"
	" FROM idempotency_internal.outbox_event e WHERE e.position = $3"
	"  AND NOT EXISTS (SELECT FROM idempotency_internal.outbox_cancelled c"
	"   WHERE c.position = e.position)"
	" ON CONFLICT DO NOTHING",
	.types = {
		INT8OID, INT4OID, INT8OID, TEXTOID, BOOLOID, INT4OID, INT8OID, INT4OID,
		TEXTOID
	}
};

static SavedQuery insert_attempt = {
	.sql = "INSERT INTO idempotency_internal.outbox_attempt"
	" (subscription, position, attempt, at, duration_ms, status, error, answer)"
	" VALUES ($1, $2, $3, clock_timestamp(), $4, $5, $6, $7)",
	.types = {INT8OID, INT8OID, INT4OID, INT4OID, INT4OID, TEXTOID, TEXTOID}
};

/* Takes the table locks of the statements below. */
static SavedQuery lock_tables = {
	.sql = "LOCK TABLE idempotency_internal.outbox_subscription,"
	" idempotency_internal.outbox_partition, idempotency_internal.outbox_head,"
	" idempotency_internal.outbox_delivery,"
	" idempotency_internal.outbox_attempt,"
	" idempotency_internal.outbox_history_ring IN ROW EXCLUSIVE MODE"
};

static SavedQuery lock_log = {
	.sql = "LOCK TABLE idempotency_internal.outbox_event IN ACCESS SHARE MODE"
};

static SavedQuery find_blocker = {
	.sql = "SELECT FROM idempotency_internal.outbox_delivery"
	" WHERE subscription = $1 AND key = $2 AND blocks_key LIMIT 1",
	.types = {INT8OID, TEXTOID}
};

/*
 * The partition is locked, so the rows of this query and of release_parked stay
 * in their places.
 */
static SavedQuery delete_deliveries = {
	.sql = "DELETE FROM idempotency_internal.outbox_delivery"
	" WHERE ctid = ANY (ARRAY(SELECT own.ctid FROM unnest($2) AS k(position)"
	"  CROSS JOIN LATERAL (SELECT d.ctid"
	"   FROM idempotency_internal.outbox_delivery d"
	"   WHERE d.subscription = $1 AND d.position = k.position OFFSET 0) own))",
	.types = {INT8OID, INT8ARRAYOID}
};

/*
 * An attempt that does not count keeps the number of attempts: outbox_retry may
 * have changed it while the request was in flight.
 */
static SavedQuery update_delivery = {
	.sql = "UPDATE idempotency_internal.outbox_delivery SET state = $4, blocks_key = $5,"
	" attempts = CASE WHEN $10 THEN attempts ELSE $6 END,"
	" due_at = CASE WHEN $4 = 'waiting' THEN greatest("
	"  CASE WHEN $10 THEN due_at END,"
	"  clock_timestamp() + $7 * interval '1 ms') END,"
	" last_at = clock_timestamp(), last_status = $8, last_error = $9"
	" WHERE subscription = $1 AND partition = $2 AND position = $3",
	.types = {
		INT8OID, INT4OID, INT8OID, TEXTOID, BOOLOID, INT4OID, INT8OID, INT4OID,
		TEXTOID, BOOLOID
	}
};

static SavedQuery release_parked = {
	.sql = "UPDATE idempotency_internal.outbox_delivery"
	" SET state = 'waiting', due_at = clock_timestamp()"
	" WHERE ctid = ANY (ARRAY(SELECT first.ctid FROM unnest($2) AS k(key)"
	"  CROSS JOIN LATERAL (SELECT b.ctid, b.state"
	"   FROM idempotency_internal.outbox_delivery b"
	"   WHERE b.subscription = $1 AND b.key = k.key AND b.blocks_key"
	"   ORDER BY b.position LIMIT 1) AS first"
	"  WHERE first.state = 'parked'))",
	.types = {INT8OID, TEXTARRAYOID}
};

static SavedQuery disable = {
	.sql = "UPDATE idempotency_internal.outbox_subscription"
	" SET state = 'disabled', reason = $2 WHERE id = $1 AND state = 'active'",
	.types = {INT8OID, TEXTOID}
};

static SavedQuery lock_subscription = {
	.sql = "SELECT FROM idempotency_internal.outbox_subscription"
	" WHERE id = $1 AND version = $2 FOR NO KEY UPDATE SKIP LOCKED",
	.types = {INT8OID, INT8OID}
};

static SavedQuery set_failing = {
	.sql = "UPDATE idempotency_internal.outbox_subscription"
	" SET failing_since = clock_timestamp()"
	" WHERE id = $1 AND failing_since IS NULL",
	.types = {INT8OID}
};

static SavedQuery set_working = {
	.sql = "UPDATE idempotency_internal.outbox_subscription"
	" SET failing_since = NULL, recovered_at = clock_timestamp()"
	" WHERE id = $1 AND failing_since IS NOT NULL",
	.types = {INT8OID}
};

/* These queries do nothing if there is to be no event. */
#define ANNOUNCE(topic, about, source) \
	"SELECT idempotency_internal.outbox_announce('" topic "', s.name, " \
	about ") FROM idempotency_internal.outbox_subscription s " source

static SavedQuery announce_dead = {
	.sql = ANNOUNCE("outbox.dead",
					"jsonb_build_object('position', d.position,"
					" 'topic', d.topic, 'key', d.key, 'type', d.type,"
					" 'attempts', d.attempts, 'last_status', d.last_status,"
					" 'last_error', left(d.last_error, 1000),"
					" 'created_at', d.created_at)",
					"JOIN idempotency_internal.outbox_delivery d ON d.subscription = s.id"
					" WHERE d.subscription = $1 AND d.position = $2"
					" AND d.state = 'dead' AND NOT starts_with(d.topic, 'outbox.')"),
	.types = {INT8OID, INT8OID}
};

#define ANNOUNCED \
	"WHERE s.id = $1 AND idempotency_internal.outbox_is_announced(s.topics)"

static SavedQuery announce_disabled = {
	.sql = ANNOUNCE("outbox.disabled", "jsonb_build_object('reason', s.reason)",
					ANNOUNCED),
	.types = {INT8OID}
};

static SavedQuery announce_failing = {
	.sql = ANNOUNCE("outbox.failing",
					"jsonb_build_object('failing', s.failing_since IS NOT NULL)",
					ANNOUNCED),
	.types = {INT8OID}
};

static void
settle_announce(SavedQuery *query, int64 subscription, int64 position)
{
	Datum		values[2];

	if (!settings_outbox_events)
		return;
	values[0] = Int64GetDatum(subscription);
	values[1] = Int64GetDatum(position);
	query_run_patiently(query, values, NULL);
}

/*
 * Locks on whole tables concern all partitions alike, so they are waited for
 * here, or by query_run_patiently.  A locked row concerns one partition: the
 * wait for it is limited, and ends in an error of that partition, so that the
 * others go on.
 */
void
outbox_settle_begin(bool patient)
{
	query_run(&lock_tables, NULL, NULL, false);
	query_run(&lock_log, NULL, NULL, false);
	(void) set_config_option("lock_timeout", patient ? OUTBOX_ROW_LOCK_MS : "1",
							 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true,
							 0, false);
}

static bool
settle_is_blocked(OutboxPartitionId id, const OutboxDelivery *delivery)
{
	Datum		values[2];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = CStringGetTextDatum(delivery->event->key);
	return query_run(&find_blocker, values, NULL, false) > 0;
}

static Datum
settle_text(const char *text, char *null)
{
	*null = text ? ' ' : 'n';
	return text ? CStringGetTextDatum(text) : (Datum) 0;
}

/*
 * Runs insert_delivery or update_delivery.
 */
static void
settle_write(SavedQuery *query, OutboxPartitionId id,
			 const OutboxDelivery *delivery, const char *state,
			 const OutboxResult *result)
{
	Datum		values[10];
	char		nulls[11] = "          ";

	Assert(result->attempts >= 0);
	Assert(result->outcome != OUTBOX_DEAD || result->error != NULL);
	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = Int64GetDatum(delivery->event->position);
	values[3] = CStringGetTextDatum(state);
	values[4] = BoolGetDatum(delivery->in_order && strcmp(state, "dead") != 0);
	values[5] = Int32GetDatum(result->attempts);
	values[6] = Int64GetDatum(result->delay_ms);
	nulls[6] = result->outcome == OUTBOX_SCHEDULED ? 'n' : ' ';
	values[7] = Int32GetDatum(result->status);
	nulls[7] = result->status != 0 ? ' ' : 'n';
	values[8] = settle_text(result->error, &nulls[8]);
	values[9] = BoolGetDatum(result->uncounted);
	query_run(query, values, nulls, false);
}

/*
 * Records a failed attempt.  An attempt that does not count gets no row, so
 * there are no more rows than the schedule has entries.
 */
static void
settle_attempt(OutboxPartitionId id, const OutboxDelivery *delivery,
			   const OutboxResult *result)
{
	Datum		values[7];
	char		nulls[8] = "       ";

	if (result->error == NULL || result->uncounted)
		return;
	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int64GetDatum(delivery->event->position);
	values[2] = Int32GetDatum(result->attempts);
	values[3] = Int32GetDatum(result->duration_ms);
	values[4] = Int32GetDatum(result->status);
	nulls[4] = result->status != 0 ? ' ' : 'n';
	values[5] = settle_text(result->error, &nulls[5]);
	values[6] = settle_text(result->answer, &nulls[6]);
	query_run(&insert_attempt, values, nulls, false);
}

/*
 * Records what goes with the row of an event.
 */
static void
settle_written(OutboxPartitionId id, const OutboxDelivery *delivery,
			   const OutboxResult *result)
{
	settle_attempt(id, delivery, result);
	if (result->outcome == OUTBOX_DEAD)
		settle_announce(&announce_dead, id.subscription,
						delivery->event->position);
}

/*
 * One event of a key waits, and the others are parked.  Whether this event is
 * blocked is read again here, since that may have changed since the
 * event was read.  If the log is read again, the event may have a row in
 * outbox_delivery already.
 */
void
outbox_settle_new(OutboxPartitionId id, const OutboxDelivery *delivery,
				  const OutboxResult *result)
{
	const char *state = "waiting";

	Assert(result->outcome != OUTBOX_CANCELLED);
	if (result->outcome == OUTBOX_DELIVERED)
		return;
	if (result->outcome == OUTBOX_DEAD)
		state = "dead";
	else if (delivery->in_order && settle_is_blocked(id, delivery))
		state = "parked";
	settle_write(&insert_delivery, id, delivery, state, result);
	if (SPI_processed > 0)
		settle_written(id, delivery, result);
}

static void
settle_delete(OutboxPartitionId id, Datum *positions, int count)
{
	Datum		values[2];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = query_array8(positions, count, INT8OID);
	query_run(&delete_deliveries, values, NULL, false);
}

void
outbox_settle_due(OutboxPartitionId id, const OutboxDelivery *delivery,
				  const OutboxResult *result)
{
	Datum		position = Int64GetDatum(delivery->event->position);

	Assert(result->outcome == OUTBOX_RETRY || result->outcome == OUTBOX_DEAD ||
		   result->outcome == OUTBOX_CANCELLED);
	if (result->outcome == OUTBOX_CANCELLED)
	{
		settle_delete(id, &position, 1);
		return;
	}
	settle_write(&update_delivery, id, delivery,
				 result->outcome == OUTBOX_DEAD ? "dead" : "waiting", result);
	if (SPI_processed > 0)
		settle_written(id, delivery, result);
}

void
outbox_delete_delivered(OutboxPartitionId id, List *deliveries)
{
	int			count = list_length(deliveries);
	Datum	   *positions = palloc((count + 1) * sizeof(Datum));

	if (count == 0)
		return;
	for (int i = 0; i < count; i++)
	{
		const OutboxDelivery *delivery = list_nth(deliveries, i);

		positions[i] = Int64GetDatum(delivery->event->position);
	}
	settle_delete(id, positions, count);
}

/*
 * A key that is named twice has one next event.
 */
void
outbox_release_keys(OutboxPartitionId id, List *deliveries)
{
	Datum		values[2];

	if (deliveries == NIL)
		return;
	values[0] = Int64GetDatum(id.subscription);
	values[1] = outbox_delivery_keys(deliveries);
	query_run(&release_parked, values, NULL, false);
}

static bool
settle_lock_subscription(int64 subscription, int64 version)
{
	Datum		values[2];

	values[0] = Int64GetDatum(subscription);
	values[1] = Int64GetDatum(version);
	return query_run(&lock_subscription, values, NULL, false) > 0;
}

bool
outbox_disable(int64 subscription, int64 version, const char *reason)
{
	Datum		values[2];

	if (!settle_lock_subscription(subscription, version))
		return false;
	values[0] = Int64GetDatum(subscription);
	values[1] = CStringGetTextDatum(reason);
	if (query_run(&disable, values, NULL, false) == 0)
		return false;
	settle_announce(&announce_disabled, subscription, 0);
	xacts_wake_at_commit();		/* other relays serve it, too */
	return true;
}

bool
outbox_set_failing(int64 subscription, int64 version, bool failing)
{
	Datum		values[1];

	if (!settle_lock_subscription(subscription, version))
		return false;
	values[0] = Int64GetDatum(subscription);
	if (query_run(failing ? &set_failing : &set_working, values, NULL,
				  false) > 0)
		settle_announce(&announce_failing, subscription, 0);
	return true;
}
