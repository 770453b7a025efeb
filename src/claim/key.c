/*
 * key.c
 *		Names, rows and states of keys: what claiming and finishing share.
 *
 * The table is idem_key (tables.sql has the columns); only this room writes
 * it.  Its one promise rests on the primary key: one row for each scope and
 * key, whatever the isolation level of those who come for it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_collation.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "claim/key.h"

/* The columns of idem_key, in order. */
enum
{
	KEY_ATT_TOKEN,
	KEY_ATT_EXPIRES_AT,
	KEY_ATT_ATTEMPT,
	KEY_ATT_STATE,
	KEY_ATT_SCOPE,
	KEY_ATT_KEY,
	KEY_ATT_LEASE_UNTIL,
	KEY_ATT_REQUEST,
	KEY_ATT_RESPONSE,
	KEY_ATTS
};

static text *
key_name_arg(FunctionCallInfo fcinfo, int arg, const char *name, bool may_be_empty)
{
	text	   *value;
	int			length;

	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
	value = PG_GETARG_TEXT_PP(arg);
	length = VARSIZE_ANY_EXHDR(value);
	if (length == 0 && !may_be_empty)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", name)));
	if (length > KEY_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 errdetail("It has %d bytes; the limit is %d.",
						   length, KEY_NAME_MAX)));
	return value;
}

KeyName
key_name_from_args(FunctionCallInfo fcinfo, int key_arg, int scope_arg)
{
	KeyName		name;

	name.key = key_name_arg(fcinfo, key_arg, "key", false);
	name.scope = key_name_arg(fcinfo, scope_arg, "scope", true);
	return name;
}

TimestampTz
key_deadline(FunctionCallInfo fcinfo, int arg, TimestampTz from, int default_s,
			 const char *name)
{
	Interval	by_default = {.time = default_s * USECS_PER_SEC};
	Interval   *span = &by_default;
	TimestampTz deadline;

	if (!PG_ARGISNULL(arg))
		span = PG_GETARG_INTERVAL_P(arg);
	if (!compat_interval_is_finite(span))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be finite", name)));
	deadline = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
													   TimestampTzGetDatum(from),
													   IntervalPGetDatum(span)));
	if (deadline <= from)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be positive", name)));
	return deadline;
}

TimestampTz
key_time_after(TimestampTz at, int64 span_us)
{
	TimestampTz after;

	if (pg_add_s64_overflow(at, span_us, &after) || !IS_VALID_TIMESTAMP(after))
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
	return after;
}

/*
 * The index is asked for once the table is locked: REINDEX may have replaced
 * it until then.
 */
KeyTable
key_table_open(void)
{
	KeyTable	keys;

	keys.table = table_open(catalog_get()->idem_key, RowExclusiveLock);
	keys.index = index_open(compat_primary_key_index(keys.table),
							RowExclusiveLock);
	keys.slot = relation_slot(keys.table, KEY_ATTS);
	return keys;
}

void
key_table_close(KeyTable *keys, bool written)
{
	LOCKMODE	release = written ? NoLock : RowExclusiveLock;

	ExecDropSingleTupleTableSlot(keys->slot);
	index_close(keys->index, release);
	table_close(keys->table, release);
}

bool
key_find(KeyTable *keys, const KeyName *name, Snapshot snapshot)
{
	ScanKeyData scan_keys[2];

	ScanKeyInit(&scan_keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(name->scope));
	ScanKeyInit(&scan_keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(name->key));
	return relation_probe(keys->table, keys->index, scan_keys,
						  lengthof(scan_keys), snapshot, keys->slot);
}

KeyRow
key_row(KeyTable *keys)
{
	TupleTableSlot *slot = keys->slot;
	KeyRow		row;

	slot_getallattrs(slot);
	row.token = DatumGetInt64(slot->tts_values[KEY_ATT_TOKEN]);
	row.expires_at = DatumGetTimestampTz(slot->tts_values[KEY_ATT_EXPIRES_AT]);
	row.attempt = DatumGetInt32(slot->tts_values[KEY_ATT_ATTEMPT]);
	row.state = (KeyState) DatumGetChar(slot->tts_values[KEY_ATT_STATE]);
	row.lease_until = slot->tts_isnull[KEY_ATT_LEASE_UNTIL] ? 0 :
		DatumGetTimestampTz(slot->tts_values[KEY_ATT_LEASE_UNTIL]);
	row.request = slot->tts_isnull[KEY_ATT_REQUEST] ? NULL :
		DatumGetByteaPCopy(slot->tts_values[KEY_ATT_REQUEST]);
	row.response = slot->tts_isnull[KEY_ATT_RESPONSE] ? (Datum) 0 :
		PointerGetDatum(PG_DETOAST_DATUM_COPY(slot->tts_values[KEY_ATT_RESPONSE]));
	return row;
}

void
key_store(TupleTableSlot *slot, const KeyName *name, const KeyRow *row)
{
	ExecClearTuple(slot);
	memset(slot->tts_isnull, false, KEY_ATTS * sizeof(bool));
	slot->tts_values[KEY_ATT_TOKEN] = Int64GetDatum(row->token);
	slot->tts_values[KEY_ATT_EXPIRES_AT] = TimestampTzGetDatum(row->expires_at);
	slot->tts_values[KEY_ATT_ATTEMPT] = Int32GetDatum(row->attempt);
	slot->tts_values[KEY_ATT_STATE] = CharGetDatum(row->state);
	slot->tts_values[KEY_ATT_SCOPE] = PointerGetDatum(name->scope);
	slot->tts_values[KEY_ATT_KEY] = PointerGetDatum(name->key);
	slot->tts_values[KEY_ATT_LEASE_UNTIL] = TimestampTzGetDatum(row->lease_until);
	slot->tts_isnull[KEY_ATT_LEASE_UNTIL] = row->state != KEY_IN_PROGRESS;
	slot->tts_values[KEY_ATT_REQUEST] = PointerGetDatum(row->request);
	slot->tts_isnull[KEY_ATT_REQUEST] = row->request == NULL;
	slot->tts_values[KEY_ATT_RESPONSE] = row->response;
	slot->tts_isnull[KEY_ATT_RESPONSE] = row->response == (Datum) 0;
	ExecStoreVirtualTuple(slot);
}

int64
key_next_token(void)
{
	return nextval_internal(catalog_get()->idem_token_seq, false);
}
