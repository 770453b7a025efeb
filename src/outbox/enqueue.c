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
 *
 * With a dedup_key, the event has a key of idem_claim, in a scope of its topic,
 * whose answer is the position.  Who finds the key gets that position, and no
 * event is enqueued.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/ring.h"
#include "base/sequence.h"
#include "base/settings.h"
#include "claim/dedup.h"
#include "outbox/cancel.h"
#include "outbox/header.h"
#include "outbox/payload.h"
#include "outbox/topic.h"
#include "outbox/topic_schema.h"
#include "outbox/xacts.h"

#define OUTBOX_NAME_MAX 255		/* bytes of a topic, key or type */
/* A scope of keys has as many bytes as a topic. */
#define DEDUP_TOPIC_MAX (OUTBOX_NAME_MAX - (int) strlen(DEDUP_SCOPE_RESERVED))
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
	LOG_ATT_EXPIRES_AT,
	LOG_ATTS
};

/* The parameters of outbox_enqueue; other functions have the first six. */
enum
{
	ENQUEUE_TOPIC,
	ENQUEUE_PAYLOAD,
	ENQUEUE_KEY,
	ENQUEUE_TYPE,
	ENQUEUE_HEADERS,
	ENQUEUE_DELIVER_AT,
	ENQUEUE_EXPIRES_AT,
	ENQUEUE_DEDUP_KEY,
	ENQUEUE_DEDUP_TTL,
	ENQUEUE_REPLACE
};

PG_FUNCTION_INFO_V1(outbox_enqueue);
PG_FUNCTION_INFO_V1(outbox_enqueue_reserved);
PG_FUNCTION_INFO_V1(outbox_check_event);
PG_FUNCTION_INFO_V1(outbox_wake);
PG_FUNCTION_INFO_V1(outbox_has_drawn);

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

/*
 * SQL: outbox_has_drawn(), whether this server has handed out a position in
 * this database.
 */
Datum
outbox_has_drawn(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(sequence_highest(SHARED_POSITIONS,
									catalog_get()->outbox_position_seq) > 0);
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
enqueue_check_payload_size(FunctionCallInfo fcinfo, int arg, int max_mb)
{
	Size		size = toast_raw_datum_size(PG_GETARG_DATUM(arg));
	Size		limit = (Size) max_mb * 1024 * 1024;

	if (size > limit)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("payload is too large"),
				 errdetail("It has %zu bytes as jsonb; idempotency.outbox_payload_max allows %zu.",
						   size, limit)));
	if (size * OUTBOX_PAYLOAD_GROWTH_MAX > limit &&
		!payload_text_fits(PG_GETARG_JSONB_P(arg), limit))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("payload is too large"),
				 errdetail("It has more bytes as text than the %zu that idempotency.outbox_payload_max allows.",
						   limit)));
}

static void
enqueue_check_payload(FunctionCallInfo fcinfo, int arg, int max_mb)
{
	Jsonb	   *payload;
	char	   *string;

	enqueue_check_payload_size(fcinfo, arg, max_mb);
	if (GetDatabaseEncoding() == PG_UTF8)
		return;
	payload = PG_GETARG_JSONB_P(arg);
	string = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
	args_check_encoding(cstring_to_text(string));
	pfree(string);
}

static void
enqueue_check_time(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (!PG_ARGISNULL(arg) && TIMESTAMP_NOT_FINITE(PG_GETARG_TIMESTAMPTZ(arg)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be finite", name)));
}

/*
 * Raises an error unless the event can be delivered: an event in the log that
 * cannot would stop the relay.  The arguments are those of outbox_enqueue.
 */
static void
enqueue_check_args(FunctionCallInfo fcinfo, int payload_max_mb)
{
	args_require(fcinfo, ENQUEUE_TOPIC, "topic");
	args_require(fcinfo, ENQUEUE_PAYLOAD, "payload");
	enqueue_check_name(fcinfo, ENQUEUE_TOPIC, "topic");
	enqueue_check_payload(fcinfo, ENQUEUE_PAYLOAD, payload_max_mb);
	enqueue_check_name(fcinfo, ENQUEUE_KEY, "key");
	enqueue_check_name(fcinfo, ENQUEUE_TYPE, "type");
	if (!PG_ARGISNULL(ENQUEUE_HEADERS))
		header_check(PG_GETARG_JSONB_P(ENQUEUE_HEADERS));
	enqueue_check_time(fcinfo, ENQUEUE_DELIVER_AT, "deliver_at");
}

/*
 * SQL: outbox_check_event(topic, payload, key, type, headers, deliver_at), used
 * by the constraint of outbox_log for plain INSERTs.  Its result must not
 * depend on a setting: a row that is valid must be so wherever it is restored.
 */
Datum
outbox_check_event(PG_FUNCTION_ARGS)
{
	enqueue_check_args(fcinfo, SETTINGS_OUTBOX_PAYLOAD_MAX_MB);
	PG_RETURN_BOOL(true);
}

static void
enqueue_store_args(FunctionCallInfo fcinfo, TupleTableSlot *slot)
{
	static const int attributes[] = {
		LOG_ATT_TOPIC, LOG_ATT_PAYLOAD, LOG_ATT_KEY, LOG_ATT_TYPE,
		LOG_ATT_HEADERS, LOG_ATT_DELIVER_AT, LOG_ATT_EXPIRES_AT
	};
	int			count = Min((int) lengthof(attributes), PG_NARGS());

	slot->tts_isnull[LOG_ATT_EXPIRES_AT] = true;
	for (int arg = 0; arg < count; arg++)
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

/*
 * DROP EXTENSION locks sequence, ring and segment in the order in which an
 * event is enqueued, too.
 */
static void
enqueue_append(FunctionCallInfo fcinfo, int64 position)
{
	RingMap		map = ring_lock(RING_LOG);

	enqueue_insert(fcinfo, map.tables[0], position);
	ring_unlock(RING_LOG);
}

static Datum
enqueue_event(FunctionCallInfo fcinfo)
{
	int64		position = xacts_next_position();

	enqueue_append(fcinfo, position);
	PG_RETURN_INT64(position);
}

static void
enqueue_check_expires_at(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(ENQUEUE_EXPIRES_AT))
		return;
	enqueue_check_time(fcinfo, ENQUEUE_EXPIRES_AT, "expires_at");
	if (!PG_ARGISNULL(ENQUEUE_DELIVER_AT) &&
		PG_GETARG_TIMESTAMPTZ(ENQUEUE_EXPIRES_AT) <=
		PG_GETARG_TIMESTAMPTZ(ENQUEUE_DELIVER_AT))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("expires_at must be later than deliver_at")));
}

static void
enqueue_check_dedup(FunctionCallInfo fcinfo)
{
	args_require(fcinfo, ENQUEUE_REPLACE, "replace");
	if (PG_ARGISNULL(ENQUEUE_DEDUP_KEY) &&
		(PG_GETARG_BOOL(ENQUEUE_REPLACE) || !PG_ARGISNULL(ENQUEUE_DEDUP_TTL)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("dedup_ttl and replace need a dedup_key")));
}

static text *
enqueue_dedup_scope(const text *topic)
{
	char	   *name = text_to_cstring(topic);

	if ((int) strlen(name) > DEDUP_TOPIC_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("topic is too long"),
				 errdetail("It has %zu bytes; with a dedup_key the limit is %d.",
						   strlen(name), DEDUP_TOPIC_MAX)));
	return cstring_to_text(psprintf("%s%s", DEDUP_SCOPE_RESERVED, name));
}

static bool
enqueue_is_gone(int64 position)
{
	return cancel_state(position) == CANCEL_DONE;
}

/*
 * The event that is replaced is cancelled if that is still possible.
 */
static Datum
enqueue_once(FunctionCallInfo fcinfo)
{
	Dedup		dedup = {
		.next = xacts_next_position, .is_gone = enqueue_is_gone
	};

	dedup.scope = enqueue_dedup_scope(PG_GETARG_TEXT_PP(ENQUEUE_TOPIC));
	dedup.key = PG_GETARG_TEXT_PP(ENQUEUE_DEDUP_KEY);
	args_check_not_empty(dedup.key, "dedup_key");
	args_check_length(dedup.key, "dedup_key", OUTBOX_NAME_MAX);
	dedup.replace = PG_GETARG_BOOL(ENQUEUE_REPLACE);
	if (!PG_ARGISNULL(ENQUEUE_DEDUP_TTL))
	{
		dedup.ttl = PG_GETARG_INTERVAL_P(ENQUEUE_DEDUP_TTL);
		(void) args_time_after(GetCurrentTimestamp(), dedup.ttl,
							   SETTINGS_TTL_MAX_S, "dedup_ttl", NULL);
	}
	if (dedup_claim(&dedup))
	{
		enqueue_append(fcinfo, dedup.number);
		if (dedup.replace && dedup.replaced != 0)
			(void) OidFunctionCall1(catalog_get()->outbox_cancel,
									Int64GetDatum(dedup.replaced));
	}
	PG_RETURN_INT64(dedup.number);
}

/*
 * SQL: outbox_enqueue(topic, payload, key, type, headers, deliver_at,
 * expires_at, dedup_key, dedup_ttl, replace).
 */
Datum
outbox_enqueue(PG_FUNCTION_ARGS)
{
	settings_prevent_write("outbox_enqueue()");

	if (!PG_ARGISNULL(0) && topic_is_reserved(PG_GETARG_TEXT_PP(0)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("topic is reserved"),
				 errdetail("Topics that begin with \"%s\" are for events of the extension itself.",
						   SETTINGS_TOPIC_RESERVED)));
	topic_schema_check(fcinfo);
	enqueue_check_args(fcinfo, settings_outbox_payload_max_mb);
	enqueue_check_expires_at(fcinfo);
	enqueue_check_dedup(fcinfo);
	if (!PG_ARGISNULL(ENQUEUE_DEDUP_KEY))
		return enqueue_once(fcinfo);
	return enqueue_event(fcinfo);
}

/*
 * SQL: outbox_enqueue_reserved(), the same for our own events.
 */
Datum
outbox_enqueue_reserved(PG_FUNCTION_ARGS)
{
	enqueue_check_args(fcinfo, settings_outbox_payload_max_mb);
	return enqueue_event(fcinfo);
}
