/*
 * enqueue.c
 *		outbox_enqueue: appends an event to the log, in the caller's
 *		transaction.
 *
 * The row goes straight to the table: no query, no trigger, no privilege but
 * EXECUTE on the function.  Its commit wakes the relay (register.c).
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/catalog.h"
#include "base/relation.h"
#include "outbox/header.h"
#include "outbox/register.h"

#define OUTBOX_NAME_MAX 255		/* bytes of a topic, key or type */

/* The columns of outbox_log, in order. */
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

PG_FUNCTION_INFO_V1(outbox_next_position);
PG_FUNCTION_INFO_V1(outbox_enqueue);
PG_FUNCTION_INFO_V1(outbox_wake);

/*
 * SQL: outbox_next_position(), the default of outbox_log.position.
 */
Datum
outbox_next_position(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(register_next_position());
}

/*
 * SQL: outbox_wake().
 */
Datum
outbox_wake(PG_FUNCTION_ARGS)
{
	register_wake_at_commit();
	PG_RETURN_VOID();
}

static void
enqueue_store_name(FunctionCallInfo fcinfo, int arg, const char *name,
				   TupleTableSlot *slot, int attribute)
{
	text	   *value = PG_GETARG_TEXT_PP(arg);
	int			length = VARSIZE_ANY_EXHDR(value);

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", name)));
	if (length > OUTBOX_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 errdetail("It has %d bytes; the limit is %d.",
						   length, OUTBOX_NAME_MAX)));
	slot->tts_values[attribute] = PointerGetDatum(value);
	slot->tts_isnull[attribute] = false;
}

static void
enqueue_require_not_null(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

/*
 * Fills in what the caller gave; everything is checked before a position is
 * taken.
 */
static void
enqueue_store_args(FunctionCallInfo fcinfo, TupleTableSlot *slot)
{
	memset(slot->tts_isnull, true, LOG_ATTS * sizeof(bool));
	enqueue_require_not_null(fcinfo, 0, "topic");
	enqueue_require_not_null(fcinfo, 1, "payload");

	enqueue_store_name(fcinfo, 0, "topic", slot, LOG_ATT_TOPIC);
	slot->tts_values[LOG_ATT_PAYLOAD] = PG_GETARG_DATUM(1);
	slot->tts_isnull[LOG_ATT_PAYLOAD] = false;
	if (!PG_ARGISNULL(2))
		enqueue_store_name(fcinfo, 2, "key", slot, LOG_ATT_KEY);
	if (!PG_ARGISNULL(3))
		enqueue_store_name(fcinfo, 3, "type", slot, LOG_ATT_TYPE);
	if (!PG_ARGISNULL(4))
	{
		header_check(PG_GETARG_JSONB_P(4));
		slot->tts_values[LOG_ATT_HEADERS] = PG_GETARG_DATUM(4);
		slot->tts_isnull[LOG_ATT_HEADERS] = false;
	}
	if (!PG_ARGISNULL(5))
	{
		if (TIMESTAMP_NOT_FINITE(PG_GETARG_TIMESTAMPTZ(5)))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("deliver_at must be finite")));
		slot->tts_values[LOG_ATT_DELIVER_AT] = PG_GETARG_DATUM(5);
		slot->tts_isnull[LOG_ATT_DELIVER_AT] = false;
	}
}

static int64
enqueue_store_identity(TupleTableSlot *slot)
{
	int64		position = register_next_position();

	slot->tts_values[LOG_ATT_POSITION] = Int64GetDatum(position);
	slot->tts_isnull[LOG_ATT_POSITION] = false;
	slot->tts_values[LOG_ATT_XID] =
		FullTransactionIdGetDatum(GetTopFullTransactionId());
	slot->tts_isnull[LOG_ATT_XID] = false;
	slot->tts_values[LOG_ATT_CREATED_AT] =
		TimestampTzGetDatum(GetCurrentTimestamp());
	slot->tts_isnull[LOG_ATT_CREATED_AT] = false;
	return position;
}

/*
 * SQL: outbox_enqueue(topic, payload, key, type, headers, deliver_at).
 */
Datum
outbox_enqueue(PG_FUNCTION_ARGS)
{
	Relation	log;
	TupleTableSlot *slot;
	int64		position;

	PreventCommandDuringRecovery("outbox_enqueue()");
	PreventCommandIfReadOnly("outbox_enqueue()");

	log = table_open(catalog_get()->outbox_log, RowExclusiveLock);
	slot = table_slot_create(log, NULL);
	Assert(slot->tts_tupleDescriptor->natts == LOG_ATTS);
	enqueue_store_args(fcinfo, slot);
	position = enqueue_store_identity(slot);
	ExecStoreVirtualTuple(slot);
	relation_insert(log, slot);
	ExecDropSingleTupleTableSlot(slot);
	table_close(log, NoLock);
	PG_RETURN_INT64(position);
}
