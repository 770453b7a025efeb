/*
 * settle.c
 *		Writes down what became of the events that a relay has read.
 *
 * Success writes nothing but the lane's new position.  An event that could not
 * be delivered gets a row of its own in outbox_delivery, in the transaction
 * that moves the lane past it; so the log is never needed again for what lies
 * behind the lane.
 *
 * Order per key: a waiting or parked row with blocks_key makes later events of
 * the key park behind it.  When it goes, delivered or dead, the next parked
 * one becomes due.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/xid8.h"

#include "base/query.h"
#include "outbox/reader.h"

/* $3 to $8: state, blocks_key, attempts, delay or null, status, error. */
static SavedQuery insert_delivery = {
	.sql = "INSERT INTO @extschema@.outbox_delivery"
	" (subscription, position, state, blocks_key, attempts, due_at, last_at,"
	"  last_status, last_error, created_at, topic, key, type, payload, headers)"
	" SELECT s.id, e.position, $3, $4, $5,"
	"  CASE WHEN $3 = 'waiting' THEN"
	"   coalesce(clock_timestamp() + $6 * interval '1 ms', e.deliver_at) END,"
	"  CASE WHEN $5 > 0 THEN clock_timestamp() END,"
	"  $7, $8, e.created_at, e.topic, e.key, e.type, e.payload, e.headers"
	" FROM @extschema@.outbox_subscription s, @extschema@.outbox_log e"
	" WHERE s.id = $1 AND e.position = $2"
	" ON CONFLICT DO NOTHING",
	.types = {INT8OID, INT8OID, TEXTOID, BOOLOID, INT4OID, INT8OID, INT4OID, TEXTOID}
};

static SavedQuery lock_subscription = {
	.sql = "SELECT FROM @extschema@.outbox_subscription s"
	" JOIN @extschema@.outbox_lane l ON l.subscription = s.id"
	" WHERE s.id = $1 FOR NO KEY UPDATE SKIP LOCKED",
	.types = {INT8OID}
};

static SavedQuery find_subscription = {
	.sql = "SELECT FROM @extschema@.outbox_subscription WHERE id = $1",
	.types = {INT8OID}
};

static SavedQuery find_blocker = {
	.sql = "SELECT FROM @extschema@.outbox_delivery"
	" WHERE subscription = $1 AND key = $2 AND blocks_key LIMIT 1",
	.types = {INT8OID, TEXTOID}
};

static SavedQuery delete_delivery = {
	.sql = "DELETE FROM @extschema@.outbox_delivery"
	" WHERE subscription = $1 AND position = $2",
	.types = {INT8OID, INT8OID}
};

static SavedQuery update_delivery = {
	.sql = "UPDATE @extschema@.outbox_delivery SET state = $3, blocks_key = $4,"
	" attempts = $5,"
	" due_at = CASE WHEN $3 = 'waiting' THEN"
	"  clock_timestamp() + $6 * interval '1 ms' END,"
	" last_at = clock_timestamp(), last_status = $7, last_error = $8"
	" WHERE subscription = $1 AND position = $2",
	.types = {INT8OID, INT8OID, TEXTOID, BOOLOID, INT4OID, INT8OID, INT4OID, TEXTOID}
};

static SavedQuery release_parked = {
	.sql = "UPDATE @extschema@.outbox_delivery"
	" SET state = 'waiting', due_at = clock_timestamp()"
	" WHERE subscription = $1 AND position ="
	"  (SELECT position FROM @extschema@.outbox_delivery"
	"   WHERE subscription = $1 AND key = $2 AND blocks_key"
	"   ORDER BY position LIMIT 1)"
	" AND state = 'parked'",
	.types = {INT8OID, TEXTOID}
};

static SavedQuery move_lane = {
	.sql = "UPDATE @extschema@.outbox_lane"
	" SET position = $3, stragglers = $4, straggler_froms = $5"
	" WHERE subscription = $1 AND position = $2",
	.types = {INT8OID, INT8OID, INT8OID, XID8ARRAYOID, INT8ARRAYOID}
};

static SavedQuery disable = {
	.sql = "UPDATE @extschema@.outbox_subscription"
	" SET state = 'disabled', reason = $2 WHERE id = $1 AND state = 'active'",
	.types = {INT8OID, TEXTOID}
};

OutboxLock
outbox_lock_subscription(int64 subscription)
{
	Datum		values[1];

	values[0] = Int64GetDatum(subscription);
	if (query_run(&lock_subscription, values, NULL, false) > 0)
		return OUTBOX_LOCKED;
	if (query_run(&find_subscription, values, NULL, false) > 0)
		return OUTBOX_BUSY;
	return OUTBOX_GONE;
}

static bool
settle_is_blocked(int64 subscription, const OutboxEvent *event)
{
	Datum		values[2];

	values[0] = Int64GetDatum(subscription);
	values[1] = CStringGetTextDatum(event->key);
	return query_run(&find_blocker, values, NULL, false) > 0;
}

static void
settle_release_next(int64 subscription, const char *key)
{
	Datum		values[2];

	values[0] = Int64GetDatum(subscription);
	values[1] = CStringGetTextDatum(key);
	query_run(&release_parked, values, NULL, false);
}

/*
 * Runs one of the two queries that write a row.
 */
static void
settle_write(SavedQuery *query, int64 subscription, const OutboxEvent *event,
			 const char *state, const OutboxResult *result)
{
	bool		failed = result->fate == OUTBOX_RETRY || result->fate == OUTBOX_DEAD;
	Datum		values[8];
	char		nulls[9] = "        ";

	values[0] = Int64GetDatum(subscription);
	values[1] = Int64GetDatum(event->position);
	values[2] = CStringGetTextDatum(state);
	values[3] = BoolGetDatum(event->in_order && strcmp(state, "dead") != 0);
	values[4] = Int32GetDatum(result->attempts);
	values[5] = Int64GetDatum(result->delay_ms);
	nulls[5] = result->fate == OUTBOX_SCHEDULED ? 'n' : ' ';
	values[6] = Int32GetDatum(result->status);
	nulls[6] = failed && result->status != 0 ? ' ' : 'n';
	values[7] = result->error ? CStringGetTextDatum(result->error) : (Datum) 0;
	nulls[7] = failed && result->error ? ' ' : 'n';
	query_run(query, values, nulls, false);
}

/*
 * Of the events of a key one waits and the others are parked.  What this one
 * was to be parked behind may be gone by now, or the other way round.
 */
void
outbox_settle_new(int64 subscription, const OutboxEvent *event,
				  const OutboxResult *result)
{
	const char *state = "waiting";

	if (result->fate == OUTBOX_DELIVERED)
		return;
	if (result->fate == OUTBOX_DEAD)
		state = "dead";
	else if (event->in_order && settle_is_blocked(subscription, event))
		state = "parked";
	settle_write(&insert_delivery, subscription, event, state, result);
}

void
outbox_settle_due(int64 subscription, const OutboxEvent *event,
				  const OutboxResult *result)
{
	Datum		values[2];

	values[0] = Int64GetDatum(subscription);
	values[1] = Int64GetDatum(event->position);
	if (result->fate == OUTBOX_DELIVERED)
		query_run(&delete_delivery, values, NULL, false);
	else if (result->fate == OUTBOX_PARKED)
		return;					/* not sent: it stays as it is */
	else
		settle_write(&update_delivery, subscription, event,
					 result->fate == OUTBOX_DEAD ? "dead" : "waiting", result);
	if (result->fate != OUTBOX_RETRY && event->in_order)
		settle_release_next(subscription, event->key);
}

void
outbox_move_lane(int64 subscription, const OutboxBatch *batch)
{
	const OutboxLane *after = &batch->after;
	Datum	   *xids = palloc((after->straggler_count + 1) * sizeof(Datum));
	Datum	   *froms = palloc((after->straggler_count + 1) * sizeof(Datum));
	Datum		values[5];

	for (int i = 0; i < after->straggler_count; i++)
	{
		xids[i] = FullTransactionIdGetDatum(after->stragglers[i].xid);
		froms[i] = Int64GetDatum(after->stragglers[i].from);
	}
	values[0] = Int64GetDatum(subscription);
	values[1] = Int64GetDatum(batch->before.position);
	values[2] = Int64GetDatum(after->position);
	values[3] = query_array8(xids, after->straggler_count, XID8OID);
	values[4] = query_array8(froms, after->straggler_count, INT8OID);
	query_run(&move_lane, values, NULL, false);
}

void
outbox_disable(int64 subscription, const char *reason)
{
	Datum		values[2];

	values[0] = Int64GetDatum(subscription);
	values[1] = CStringGetTextDatum(reason);
	query_run(&disable, values, NULL, false);
}
