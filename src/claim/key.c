/*
 * key.c
 *		Names, rows and states of keys: what claiming and finishing share.
 *
 * The tables idem_key_0 to idem_key_2 are a ring (base/ring.c); tables.sql has
 * the columns.  Only this module writes them.  Its promise is one live row for
 * each scope and key, at every isolation level of the callers.  That rests on
 * the primary key of the current segment and on the other segments being
 * delete-only.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/sequence.h"
#include "base/settings.h"
#include "base/trigger.h"
#include "claim/dedup.h"
#include "claim/key.h"
#include "claim/waiters.h"

/* The columns of idem_key_*, counted from 0. */
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

Oid
key_segment_arg(FunctionCallInfo fcinfo, int arg)
{
	int			slot = PG_GETARG_INT16(arg);

	if (slot < 0 || slot >= RING_SIZE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there is no segment %d", slot)));
	return catalog_get()->rings[RING_KEYS].tables[slot];
}

void
key_check_key(text *key)
{
	args_check_not_empty(key, "key");
	args_check_length(key, "key", KEY_NAME_MAX);
}

void
key_check_not_reserved(const text *scope)
{
	const int	length = strlen(DEDUP_SCOPE_RESERVED);

	if (VARSIZE_ANY_EXHDR(scope) >= length &&
		memcmp(VARDATA_ANY(scope), DEDUP_SCOPE_RESERVED, length) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("scope is reserved"),
				 errdetail("Scopes that begin with \"%s\" are for the dedup_key of outbox_enqueue.",
						   DEDUP_SCOPE_RESERVED)));
}

text *
key_scope_arg(FunctionCallInfo fcinfo, int arg)
{
	text	   *scope = args_text(fcinfo, arg, "scope");

	args_check_length(scope, "scope", KEY_NAME_MAX);
	return scope;
}

KeyName
key_name_from_args(FunctionCallInfo fcinfo, int key_arg, int scope_arg)
{
	KeyName		name;

	name.key = args_text(fcinfo, key_arg, "key");
	key_check_key(name.key);
	name.scope = key_scope_arg(fcinfo, scope_arg);
	return name;
}

const Interval *
key_span_arg(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? NULL : PG_GETARG_INTERVAL_P(arg);
}

TimestampTz
key_leased_until(const Interval *lease, TimestampTz from)
{
	if (lease == NULL)
		return from + settings_lease_s * USECS_PER_SEC;
	return args_time_after(from, lease, SETTINGS_LEASE_MAX_S, "lease", NULL);
}

TimestampTz
key_expires_at(const Interval *ttl, TimestampTz from)
{
	if (ttl == NULL)
		return from + settings_ttl_s * USECS_PER_SEC;
	return args_time_after(from, ttl, SETTINGS_TTL_MAX_S, "ttl", NULL);
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
 * DROP EXTENSION locks the sequence before all our other relations.  We do the
 * same, so the two cannot deadlock.
 */
void
keys_open(KeyRing *keys)
{
	memset(keys, 0, sizeof(*keys));
	keys->sequence = catalog_get()->idem_token_seq;
	relation_hold(keys->sequence, RowExclusiveLock);
	keys->map = ring_lock(RING_KEYS);
	keys->locked = true;
	trigger_require(&catalog_get()->key_triggers);
}

void
keys_unlock(KeyRing *keys)
{
	if (keys->locked)
		ring_unlock(RING_KEYS);
	keys->locked = false;
}

static void
keys_close_table(KeyRing *keys, int segment)
{
	Oid			table = RelationGetRelid(keys->tables[segment]);
	Oid			index = RelationGetRelid(keys->indexes[segment]);

	index_close(keys->indexes[segment], NoLock);
	table_close(keys->tables[segment], NoLock);
	if (keys->written[segment])
		return;
	relation_release(index, RowExclusiveLock);
	relation_release(table, RowExclusiveLock);
}

void
keys_close(KeyRing *keys)
{
	bool		written = false;

	keys_unlock(keys);
	if (keys->slot != NULL)
		ExecDropSingleTupleTableSlot(keys->slot);
	for (int i = 0; i < keys->map.live; i++)
	{
		written |= keys->written[i];
		if (keys->tables[i] != NULL)
			keys_close_table(keys, i);
	}
	if (!written)
		relation_release(keys->sequence, RowExclusiveLock);
}

/*
 * The index is looked up after the table is locked, since REINDEX may replace
 * it before.
 */
Relation
keys_table(KeyRing *keys, int segment)
{
	Assert(segment >= 0 && segment < keys->map.live);
	if (keys->tables[segment] == NULL)
	{
		static const AttrNumber columns[] = {
			KEY_ATT_KEY + 1, KEY_ATT_SCOPE + 1
		};
		Relation	table;

		relation_hold(keys->map.tables[segment], RowExclusiveLock);
		table = table_open(keys->map.tables[segment], NoLock);
		keys->tables[segment] = table;
		keys->indexes[segment] = relation_hold_primary_key(table, columns,
														   lengthof(columns));
		if (keys->slot == NULL)
			keys->slot = relation_slot(table, KEY_ATTS);
	}
	return keys->tables[segment];
}

bool
keys_find_in(KeyRing *keys, int segment, const KeyName *name,
			 Snapshot snapshot)
{
	Relation	table = keys_table(keys, segment);
	ScanKeyData scan_keys[2];

	Assert(keys->locked);
	ScanKeyInit(&scan_keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(name->key));
	ScanKeyInit(&scan_keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(name->scope));
	if (!relation_probe(table, keys->indexes[segment], scan_keys,
						lengthof(scan_keys), snapshot, keys->slot))
		return false;
	keys->found_in = segment;
	keys->found_at = keys->slot->tts_tid;
	return true;
}

/*
 * One snapshot for all segments shows exactly one version of a row, even if it
 * has been moved.
 */
bool
keys_find(KeyRing *keys, const KeyName *name)
{
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	bool		found = false;

	for (int i = 0; i < keys->map.live && !found; i++)
		found = keys_find_in(keys, i, name, latest);
	UnregisterSnapshot(latest);
	return found;
}

KeyName
key_name_of_row(TupleTableSlot *row)
{
	bool		no_scope;
	bool		no_key;
	KeyName		name;
	Datum		scope = slot_getattr(row, KEY_ATT_SCOPE + 1, &no_scope);
	Datum		key = slot_getattr(row, KEY_ATT_KEY + 1, &no_key);

	if (no_scope || no_key)
		ereport(ERROR,
				(errcode(ERRCODE_NOT_NULL_VIOLATION),
				 errmsg("a key and its scope must not be null")));
	name.scope = DatumGetTextPP(scope);
	name.key = DatumGetTextPP(key);
	return name;
}

TimestampTz
key_expiry_of_row(TupleTableSlot *row)
{
	bool		isnull;

	return DatumGetTimestampTz(slot_getattr(row, KEY_ATT_EXPIRES_AT + 1,
											&isnull));
}

/*
 * The ttl may pass before the claiming transaction ends.  That transaction
 * still knows its own claims.  A claimer that has waited for the transaction,
 * or whose snapshot shows it as in progress, gets its outcome even after the
 * ttl.  idem_retire keeps the segment as long as there is such a snapshot.
 * Keys that idem_forget has dropped are unknown to all transactions.
 */
bool
key_row_has_expired(TupleTableSlot *row)
{
	TimestampTz expires_at = key_expiry_of_row(row);
	HeapTuple	tuple;
	TransactionId xmin;

	if (expires_at > GetCurrentTimestamp())
		return false;
	if (TIMESTAMP_IS_NOBEGIN(expires_at))
		return true;
	tuple = ExecFetchSlotHeapTuple(row, false, NULL);
	xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	return !TransactionIdIsCurrentTransactionId(xmin) &&
		!XidInMVCCSnapshot(xmin, GetActiveSnapshot());
}

KeyRow
key_row(TupleTableSlot *slot)
{
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
	row.response = (Datum) 0;
	row.expired = key_row_has_expired(slot);
	return row;
}

Datum
keys_response(KeyRing *keys)
{
	bool		isnull;
	Datum		response = slot_getattr(keys->slot, KEY_ATT_RESPONSE + 1,
										&isnull);

	return isnull ? (Datum) 0 :
		PointerGetDatum(PG_DETOAST_DATUM_COPY(response));
}

static void
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
	slot->tts_values[KEY_ATT_LEASE_UNTIL] =
		TimestampTzGetDatum(row->lease_until);
	slot->tts_isnull[KEY_ATT_LEASE_UNTIL] = row->state != KEY_IN_PROGRESS;
	slot->tts_values[KEY_ATT_REQUEST] = PointerGetDatum(row->request);
	slot->tts_isnull[KEY_ATT_REQUEST] = row->request == NULL;
	slot->tts_values[KEY_ATT_RESPONSE] = row->response;
	slot->tts_isnull[KEY_ATT_RESPONSE] = row->response == (Datum) 0;
	ExecStoreVirtualTuple(slot);
}

bool
keys_insert_row(KeyRing *keys, TupleTableSlot *row)
{
	Relation	current = keys_table(keys, 0);

	Assert(keys->locked);
	keys->written[0] = true;
	return relation_insert_or_conflict(current, row);
}

bool
keys_insert(KeyRing *keys, const KeyName *name, const KeyRow *row)
{
	waiters_note(name);
	keys_table(keys, 0);		/* makes the slot */
	key_store(keys->slot, name, row);
	return keys_insert_row(keys, keys->slot);
}

/*
 * There can be no conflict, and nothing to wait for: a claimer that wanted to
 * insert the key would first find the row in the old segment.
 */
void
keys_insert_moved(KeyRing *keys, TupleTableSlot *row)
{
	Relation	current = keys_table(keys, 0);

	Assert(keys->locked && !TTS_EMPTY(row));
	keys->written[0] = true;
	relation_insert(current, row);
}

TM_Result
keys_delete(KeyRing *keys)
{
	Assert(keys->locked && ItemPointerIsValid(&keys->found_at));
	keys->written[keys->found_in] = true;
	return relation_delete(keys_table(keys, keys->found_in), &keys->found_at);
}

TM_Result
keys_replace(KeyRing *keys, const KeyName *name, const KeyRow *row)
{
	TM_Result	result;

	Assert(keys->locked && ItemPointerIsValid(&keys->found_at));
	waiters_note(name);
	if (keys->found_in == 0)
	{
		key_store(keys->slot, name, row);
		keys->written[0] = true;
		return relation_update(keys_table(keys, 0), &keys->found_at,
							   keys->slot);
	}
	result = keys_delete(keys);
	if (result == TM_Ok)
	{
		key_store(keys->slot, name, row);
		keys_insert_moved(keys, keys->slot);
	}
	return result;
}

int64
key_next_token(void)
{
	return sequence_next(SHARED_TOKENS, catalog_get()->idem_token_seq, 0);
}
