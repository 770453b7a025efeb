/*
 * enqueue.c
 *		outbox_enqueue: appends an event to the log, in the caller's
 *		transaction.
 *
 * The row goes directly into the current segment: no query, no trigger, no
 * privilege except EXECUTE on the function.  An INSERT into the view outbox_log
 * calls this function as well.  The commit wakes the relays (xacts.c).
 *
 * The map of segments is locked until the row is inserted, so that a segment
 * gets no more rows once it is closed.  The segment is locked until the end of
 * the transaction, so that it is not retired while a row in it may still
 * commit.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/ring.h"
#include "base/settings.h"
#include "outbox/header.h"
#include "outbox/payload.h"
#include "outbox/topic.h"
#include "outbox/topic_schema.h"
#include "outbox/xacts.h"

#define OUTBOX_NAME_MAX 255		/* bytes of a topic, key or type */
/*
 * The most bytes of text that a byte of jsonb can become: 16 bytes can be a
 * number with 131072 digits before the decimal point and 16383 after it.
 */
#define OUTBOX_PAYLOAD_GROWTH_MAX 10000

/* The columns of outbox_log, counted from 0. */
enum
{
	LOG_ATT_POSITION,
	LOG_ATT_XID,
	LOG_ATT_CREATED_AT,
	LOG_ATT_DELIVER_AT,
	LOG_ATT_TOPIC,
	LOG_ATT_KEY,
	LOG_ATT_TYPE,
	LOG_ATT_PAYLOAD,
	LOG_ATT_HEADERS,
	LOG_ATTS
};

PG_FUNCTION_INFO_V1(outbox_enqueue);
PG_FUNCTION_INFO_V1(outbox_enqueue_reserved);
PG_FUNCTION_INFO_V1(outbox_check_event);
PG_FUNCTION_INFO_V1(outbox_wake);

/*
 * SQL: outbox_wake(), wakes the relays when this transaction commits.  SQL
 * functions that change what the relays read call it.  If the SQL objects are
 * too old for the library, those functions fail here.
 */
Datum
outbox_wake(PG_FUNCTION_ARGS)
{
	(void) catalog_get();
	xacts_wake_at_commit();
	PG_RETURN_VOID();
}

static void
enqueue_check_name(FunctionCallInfo fcinfo, int arg, const char *name)
{
	text	   *value;

	if (PG_ARGISNULL(arg))
		return;
	value = PG_GETARG_TEXT_PP(arg);
	args_check_not_empty(value, name);
	args_check_length(value, name, OUTBOX_NAME_MAX);
	args_check_encoding(value);
}

/*
 * A relay sends the text, which numbers can make much larger than the jsonb.
 * The text is measured only if it could exceed the limit.
 */
static void
enqueue_check_payload_size(FunctionCallInfo fcinfo, int arg)
{
	Size		size = toast_raw_datum_size(PG_GETARG_DATUM(arg));
	Size		limit = (Size) settings_outbox_payload_max_mb * 1024 * 1024;

	if (size > limit)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("payload is too large"),
				 errdetail("It has %zu bytes as jsonb; idempotency.outbox_payload_max is %zu.",
						   size, limit)));
	if (size * OUTBOX_PAYLOAD_GROWTH_MAX > limit &&
		!payload_text_fits(PG_GETARG_JSONB_P(arg), limit))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("payload is too large"),
				 errdetail("It has more bytes as text than idempotency.outbox_payload_max, which is %zu.",
						   limit)));
}

static void
enqueue_check_payload(FunctionCallInfo fcinfo, int arg)
{
	Jsonb	   *payload;
	char	   *string;

	enqueue_check_payload_size(fcinfo, arg);
	if (GetDatabaseEncoding() == PG_UTF8)
		return;
	payload = PG_GETARG_JSONB_P(arg);
	string = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
	args_check_encoding(cstring_to_text(string));
	pfree(string);
}

/*
 * Raises an error unless the event can be delivered: an event in the log that
 * cannot would stop the relay.  The arguments are those of outbox_enqueue.
 */
static void
enqueue_check_args(FunctionCallInfo fcinfo)
{
	args_require(fcinfo, 0, "topic");
	args_require(fcinfo, 1, "payload");
	enqueue_check_name(fcinfo, 0, "topic");
	enqueue_check_payload(fcinfo, 1);
	enqueue_check_name(fcinfo, 2, "key");
	enqueue_check_name(fcinfo, 3, "type");
	if (!PG_ARGISNULL(4))
		header_check(PG_GETARG_JSONB_P(4));
	if (!PG_ARGISNULL(5) && TIMESTAMP_NOT_FINITE(PG_GETARG_TIMESTAMPTZ(5)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("deliver_at must be finite")));
}

/*
 * SQL: outbox_check_event(topic, payload, key, type, headers, deliver_at), used
 * by the constraint of outbox_log for plain INSERTs.
 */
Datum
outbox_check_event(PG_FUNCTION_ARGS)
{
	enqueue_check_args(fcinfo);
	PG_RETURN_BOOL(true);
}

static void
enqueue_store_args(FunctionCallInfo fcinfo, TupleTableSlot *slot)
{
	static const int attributes[] = {
		LOG_ATT_TOPIC, LOG_ATT_PAYLOAD, LOG_ATT_KEY, LOG_ATT_TYPE,
		LOG_ATT_HEADERS, LOG_ATT_DELIVER_AT
	};

	for (int arg = 0; arg < (int) lengthof(attributes); arg++)
	{
		slot->tts_values[attributes[arg]] = PG_GETARG_DATUM(arg);
		slot->tts_isnull[attributes[arg]] = PG_ARGISNULL(arg);
	}
}

static void
enqueue_store_identity(TupleTableSlot *slot, int64 position)
{
	slot->tts_values[LOG_ATT_POSITION] = Int64GetDatum(position);
	slot->tts_isnull[LOG_ATT_POSITION] = false;
	slot->tts_values[LOG_ATT_XID] =
		FullTransactionIdGetDatum(GetTopFullTransactionId());
	slot->tts_isnull[LOG_ATT_XID] = false;
	slot->tts_values[LOG_ATT_CREATED_AT] =
		TimestampTzGetDatum(GetCurrentTimestamp());
	slot->tts_isnull[LOG_ATT_CREATED_AT] = false;
}

static void
enqueue_insert(FunctionCallInfo fcinfo, Oid segment, int64 position)
{
	Relation	log;
	TupleTableSlot *slot;

	relation_hold(segment, RowExclusiveLock);
	log = table_open(segment, NoLock);
	slot = relation_slot(log, LOG_ATTS);
	enqueue_store_args(fcinfo, slot);
	enqueue_store_identity(slot, position);
	ExecStoreVirtualTuple(slot);
	relation_insert(log, slot);
	ExecDropSingleTupleTableSlot(slot);
	table_close(log, NoLock);
}

static Datum
enqueue_event(FunctionCallInfo fcinfo)
{
	RingMap		map;
	int64		position;

	enqueue_check_args(fcinfo);
	/* DROP EXTENSION locks sequence, ring and segment in this order, too. */
	position = xacts_next_position();
	map = ring_lock(RING_LOG);
	enqueue_insert(fcinfo, map.tables[0], position);
	ring_unlock(RING_LOG);
	PG_RETURN_INT64(position);
}

/*
 * SQL: outbox_enqueue(topic, payload, key, type, headers, deliver_at).
 */
Datum
outbox_enqueue(PG_FUNCTION_ARGS)
{
	PreventCommandDuringRecovery("outbox_enqueue()");
	PreventCommandIfReadOnly("outbox_enqueue()");

	if (!PG_ARGISNULL(0) && topic_is_reserved(PG_GETARG_TEXT_PP(0)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("topic is reserved"),
				 errdetail("Topics that begin with \"%s\" are for events of the extension itself.",
						   SETTINGS_TOPIC_RESERVED)));
	topic_schema_check(fcinfo);
	return enqueue_event(fcinfo);
}

/*
 * SQL: outbox_enqueue_reserved(), the same for our own events.
 */
Datum
outbox_enqueue_reserved(PG_FUNCTION_ARGS)
{
	return enqueue_event(fcinfo);
}
