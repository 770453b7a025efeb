/*
 * finish.c
 *		What the owner of a claim does with it: idem_complete, idem_fail,
 *		idem_renew; and the operator's idem_forget.
 *
 * The owner proves itself by its fencing token.  An owner that comes late,
 * after its lease was taken over, is refused and changes nothing.  The row is
 * read with a snapshot newer than any, whatever the isolation level, and
 * locked before it is judged: what is decided here is decided on the row as
 * it is now.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"

#include "base/errors.h"
#include "base/relation.h"
#include "base/settings.h"
#include "claim/key.h"

#define FINISH_NO_TTL (-1)		/* the function has no such argument */

PG_FUNCTION_INFO_V1(idem_complete);
PG_FUNCTION_INFO_V1(idem_fail);
PG_FUNCTION_INFO_V1(idem_renew);
PG_FUNCTION_INFO_V1(idem_forget);

static void
finish_prevent_if_readonly(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
}

static int64
finish_token_arg(FunctionCallInfo fcinfo)
{
	int64		token;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token must not be null")));
	token = PG_GETARG_INT64(1);
	if (token <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token must be positive")));
	return token;
}

/*
 * Locks the newest committed version of a key's row, or this transaction's
 * own, and leaves it in the slot.
 */
static bool
finish_lock_row(KeyTable *keys, const KeyName *name)
{
	TM_Result	locked = TM_Updated;

	while (locked != TM_Ok)
	{
		Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
		TM_FailureData failure;
		ItemPointerData tid;

		CHECK_FOR_INTERRUPTS();
		if (!key_find(keys, name, latest))
		{
			UnregisterSnapshot(latest);
			return false;
		}
		tid = keys->slot->tts_tid;
		locked = table_tuple_lock(keys->table, &tid, latest, keys->slot,
								  GetCurrentCommandId(true),
								  LockTupleNoKeyExclusive, LockWaitBlock,
								  0, &failure);
		UnregisterSnapshot(latest);
	}
	return true;
}

static void
finish_not_found(const KeyName *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_KEY_NOT_FOUND),
			 errmsg("key \"%s\" is not claimed", text_to_cstring(name->key)),
			 errdetail("It was never claimed in this scope, was forgotten, or has expired.")));
}

/*
 * Locks the row of the owner with this token, or raises the error that says
 * why there is none.
 */
static KeyRow
finish_lock_owned(KeyTable *keys, const KeyName *name, int64 token)
{
	KeyRow		row;

	if (!finish_lock_row(keys, name))
		finish_not_found(name);
	row = key_row(keys);
	if (row.expires_at <= GetCurrentTimestamp())
		finish_not_found(name);
	if (row.token != token)
		ereport(ERROR,
				(errcode(ERRCODE_LEASE_LOST),
				 errmsg("the lease on key \"%s\" was lost",
						text_to_cstring(name->key)),
				 errdetail("Another claimer has taken the key over with a newer token.")));
	return row;
}

/*
 * Was the row in the slot written by this transaction?  Then nobody else has
 * seen it, and its outcome may still be changed.
 */
static bool
finish_is_own(KeyTable *keys)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(keys->slot,
									   MinTransactionIdAttributeNumber, &isnull);

	return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

static void
finish_require_open(KeyTable *keys, const KeyName *name, const KeyRow *row)
{
	if (row->state == KEY_IN_PROGRESS || finish_is_own(keys))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_KEY_NOT_IN_PROGRESS),
			 errmsg("key \"%s\" is not in progress",
					text_to_cstring(name->key)),
			 row->state == KEY_COMPLETED ?
			 errdetail("It was completed before.") :
			 errdetail("It has failed before.")));
}

static void
finish_write(KeyTable *keys, const KeyName *name, const KeyRow *row)
{
	ItemPointerData tid = keys->slot->tts_tid;

	key_store(keys->slot, name, row);
	relation_update(keys->table, &tid, keys->slot);
}

/*
 * A repeated complete with the same answer, from an owner that never heard
 * back, is as good as the first.
 */
static bool
finish_is_repeat(const KeyRow *row, Datum response)
{
	if (row->state != KEY_COMPLETED)
		return false;
	if (row->response == (Datum) 0 || response == (Datum) 0)
		return row->response == response;
	return DatumGetBool(DirectFunctionCall2(jsonb_eq, row->response, response));
}

/*
 * When a key that is finished now is forgotten: after the ttl argument, or
 * after the ttl that it was claimed with.
 */
static TimestampTz
finish_deadline(FunctionCallInfo fcinfo, int arg, const KeyRow *row)
{
	TimestampTz now = GetCurrentTimestamp();

	if (arg != FINISH_NO_TTL && !PG_ARGISNULL(arg))
		return key_deadline(fcinfo, arg, now, settings_ttl_s, "ttl");
	if (row->state == KEY_IN_PROGRESS)
		return key_time_after(now, row->expires_at - row->lease_until);
	return row->expires_at;
}

/*
 * SQL: idem_complete(key, token, response, scope, ttl).
 */
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 3);
	int64		token = finish_token_arg(fcinfo);
	Datum		response = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	KeyTable	keys;
	KeyRow		row;

	finish_prevent_if_readonly("idem_complete()");
	keys = key_table_open();
	row = finish_lock_owned(&keys, &name, token);
	if (!finish_is_repeat(&row, response) || finish_is_own(&keys))
	{
		finish_require_open(&keys, &name, &row);
		row.expires_at = finish_deadline(fcinfo, 4, &row);
		row.state = KEY_COMPLETED;
		row.response = response;
		finish_write(&keys, &name, &row);
	}
	key_table_close(&keys, true);
	PG_RETURN_VOID();
}

/*
 * SQL: idem_fail(key, token, error, scope, retry).
 */
Datum
idem_fail(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 3);
	int64		token = finish_token_arg(fcinfo);
	KeyTable	keys;
	KeyRow		row;

	if (PG_ARGISNULL(4))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("retry must not be null")));
	finish_prevent_if_readonly("idem_fail()");
	keys = key_table_open();
	row = finish_lock_owned(&keys, &name, token);
	finish_require_open(&keys, &name, &row);
	row.expires_at = finish_deadline(fcinfo, FINISH_NO_TTL, &row);
	row.state = PG_GETARG_BOOL(4) ? KEY_RETRYABLE : KEY_FAILED;
	row.response = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	finish_write(&keys, &name, &row);
	key_table_close(&keys, true);
	PG_RETURN_VOID();
}

/*
 * SQL: idem_renew(key, token, lease, scope).  A lease that has run out but was
 * not taken over may be renewed: the token says that nobody came between.
 */
Datum
idem_renew(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 3);
	int64		token = finish_token_arg(fcinfo);
	TimestampTz lease_until;
	KeyTable	keys;
	KeyRow		row;

	finish_prevent_if_readonly("idem_renew()");
	keys = key_table_open();
	row = finish_lock_owned(&keys, &name, token);
	if (row.state != KEY_IN_PROGRESS)
		ereport(ERROR,
				(errcode(ERRCODE_KEY_NOT_IN_PROGRESS),
				 errmsg("key \"%s\" is not in progress",
						text_to_cstring(name.key)),
				 errdetail("Only a claim with a lease can be renewed, until it is completed or has failed.")));
	lease_until = key_deadline(fcinfo, 2, GetCurrentTimestamp(),
							   settings_lease_s, "lease");
	row.expires_at = key_time_after(lease_until,
									row.expires_at - row.lease_until);
	row.lease_until = lease_until;
	finish_write(&keys, &name, &row);
	key_table_close(&keys, true);
	PG_RETURN_TIMESTAMPTZ(lease_until);
}

/*
 * SQL: idem_forget(key, scope).
 */
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 1);
	KeyTable	keys;
	bool		found;

	finish_prevent_if_readonly("idem_forget()");
	keys = key_table_open();
	found = finish_lock_row(&keys, &name);
	if (found)
	{
		KeyRow		row = key_row(&keys);

		relation_delete(keys.table, &keys.slot->tts_tid);
		found = row.expires_at > GetCurrentTimestamp();
	}
	key_table_close(&keys, true);
	PG_RETURN_BOOL(found);
}
