/*
 * finish.c
 *		What the owner of a claim calls: idem_complete, idem_fail, idem_renew;
 *		and idem_forget and idem_erase, for operators and administrators.
 *
 * The owner identifies itself by its fencing token.  If its lease was taken
 * over, it gets an error and changes nothing.  The row is read with a latest
 * snapshot, whatever the isolation level.  It is written only if it has not
 * changed since; otherwise it is read again.  The ring is locked from reading
 * to writing, and never during a wait.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/relation.h"
#include "base/settings.h"
#include "claim/claim.h"
#include "claim/fence.h"

#define FINISH_RECORDS 100		/* in the audit, of one transaction */
#define FINISH_NO_TTL (-1)		/* the function has no ttl argument */

/*
 * Changes the owner's row as a function requires.  Returns false if nothing has
 * to be written.  Raises an error if the state of the row does not allow the
 * change.
 */
typedef bool (*FinishChange) (FunctionCallInfo fcinfo, const KeyName *name,
							  KeyRing *keys, KeyRow *row);

PG_FUNCTION_INFO_V1(idem_complete);
PG_FUNCTION_INFO_V1(idem_fail);
PG_FUNCTION_INFO_V1(idem_renew);
PG_FUNCTION_INFO_V1(idem_erase);
PG_FUNCTION_INFO_V1(idem_forget);

static void
finish_not_found(const KeyName *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_KEY_NOT_FOUND),
			 errmsg("key \"%s\" is not claimed", text_to_cstring(name->key)),
			 errdetail("It was never claimed in this scope, was forgotten, or has expired.")));
}

/*
 * A smaller token need not have been one of this key: all keys share a
 * sequence.
 */
static void
finish_not_owned(const KeyName *name, const KeyRow *row, int64 token)
{
	const char *reason;

	if (row->token < token)
		reason = "No claim of it with this token was committed; the key has an older one.";
	else if (row->attempt > 1)
		reason = "Another claimer has taken the key over with a newer token.";
	else
		reason = "The key has a newer token: it was claimed again, or this token is another key's.";
	ereport(ERROR,
			(errcode(ERRCODE_LEASE_LOST),
			 errmsg("the lease on key \"%s\" was lost",
					text_to_cstring(name->key)),
			 errdetail("%s", reason)));
}

/*
 * Returns the row that was claimed with this token, or raises the error that
 * says why there is none.
 */
static KeyRow
finish_find_owned(KeyRing *keys, const KeyName *name, int64 token)
{
	KeyRow		row;

	if (!keys_find(keys, name))
		finish_not_found(name);
	row = key_row(keys->slot);
	if (row.expired)
		finish_not_found(name);
	if (row.token != token)
		finish_not_owned(name, &row, token);
	return row;
}

/*
 * Was the row in the slot written by this transaction?  Then no other session
 * has seen it, and its outcome can still be changed.
 */
static bool
finish_is_own(KeyRing *keys)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(keys->slot,
									   MinTransactionIdAttributeNumber,
									   &isnull);

	return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

/*
 * A key that was completed by the commit of its claim has no answer.  Other
 * keys can be completed without one, so the hint says which it is for.
 */
static void
finish_require_open(KeyRing *keys, const KeyName *name, const KeyRow *row,
					bool own)
{
	bool		completed = row->state == KEY_COMPLETED;
	bool		by_commit;

	if (row->state == KEY_IN_PROGRESS || own)
		return;
	by_commit = completed && keys_response(keys) == (Datum) 0;
	ereport(ERROR,
			(errcode(ERRCODE_KEY_NOT_IN_PROGRESS),
			 errmsg("key \"%s\" is not in progress",
					text_to_cstring(name->key)),
			 completed ?
			 errdetail("It was completed before.") :
			 errdetail("It has failed before."),
			 by_commit ?
			 errhint("If it was claimed without a lease, the commit of its claim has completed it. To finish it yourself, do so in the same transaction block, or claim with a lease.") : 0));
}

/*
 * Closes the ring.  If another transaction has just locked the row, waits for
 * the end of that transaction.
 */
static void
finish_end_look(KeyRing *keys, TM_Result result)
{
	keys_unlock(keys);
	if (result == TM_BeingModified)
		relation_wait(keys_table(keys, keys->found_in), &keys->found_at);
	keys_close(keys);
}

/*
 * The part that idem_complete, idem_fail and idem_renew share: finds the row,
 * changes it and writes it.  Returns the row as written.
 */
static KeyRow
finish_change(FunctionCallInfo fcinfo, const KeyName *name, FinishChange change)
{
	int64		token = args_token(fcinfo, 1);
	TM_Result	result;
	KeyRow		row;

	key_check_not_reserved(name->scope);
	do
	{
		KeyRing		keys;

		CHECK_FOR_INTERRUPTS();
		keys_open(&keys);
		fence_check(name->scope);
		row = finish_find_owned(&keys, name, token);
		if (change(fcinfo, name, &keys, &row))
			result = keys_replace(&keys, name, &row);
		else
			result = TM_Ok;
		finish_end_look(&keys, result);
	} while (result != TM_Ok);
	return row;
}

/*
 * Does the row already have this answer?  An owner that did not receive our
 * reply may complete the key again.
 */
static bool
finish_is_repeat(KeyRing *keys, const KeyRow *row, Datum response)
{
	Datum		saved;

	if (row->state != KEY_COMPLETED)
		return false;
	saved = keys_response(keys);
	if (saved == (Datum) 0 || response == (Datum) 0)
		return saved == response;
	return DatumGetBool(DirectFunctionCall2(jsonb_eq, saved, response));
}

/*
 * Returns when a key that is finished now expires: after the ttl argument, or
 * after the ttl that it was claimed with.
 */
static TimestampTz
finish_deadline(FunctionCallInfo fcinfo, int arg, const KeyRow *row)
{
	TimestampTz now = GetCurrentTimestamp();

	if (arg != FINISH_NO_TTL && !PG_ARGISNULL(arg))
		return key_expires_at(key_span_arg(fcinfo, arg), now);
	if (row->state == KEY_IN_PROGRESS)
		return key_time_after(now, row->expires_at - row->lease_until);
	return row->expires_at;
}

static bool
finish_complete(FunctionCallInfo fcinfo, const KeyName *name, KeyRing *keys,
				KeyRow *row)
{
	Datum		response = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	bool		own = finish_is_own(keys);

	if (!own && finish_is_repeat(keys, row, response))
		return false;
	finish_require_open(keys, name, row, own);
	row->expires_at = finish_deadline(fcinfo, 4, row);
	row->state = KEY_COMPLETED;
	row->response = response;
	return true;
}

/*
 * SQL: idem_complete(key, token, response, scope, ttl).
 */
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 3);

	settings_prevent_write("idem_complete()");
	finish_change(fcinfo, &name, finish_complete);
	PG_RETURN_VOID();
}

static bool
finish_fail(FunctionCallInfo fcinfo, const KeyName *name, KeyRing *keys,
			KeyRow *row)
{
	finish_require_open(keys, name, row, finish_is_own(keys));
	row->expires_at = finish_deadline(fcinfo, FINISH_NO_TTL, row);
	row->state = PG_GETARG_BOOL(4) ? KEY_RETRYABLE : KEY_FAILED;
	row->response = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	return true;
}

/*
 * SQL: idem_fail(key, token, error, scope, retry).
 */
Datum
idem_fail(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 3);

	args_require(fcinfo, 4, "retry");
	settings_prevent_write("idem_fail()");
	finish_change(fcinfo, &name, finish_fail);
	PG_RETURN_VOID();
}

/*
 * A lease that has ended can be renewed if it was not taken over; the token
 * shows that.  One that ends later than the caller asks for stays as it is: its
 * owner may have begun something in the belief that it has the key until then.
 */
static bool
finish_renew(FunctionCallInfo fcinfo, const KeyName *name, KeyRing *keys,
			 KeyRow *row)
{
	TimestampTz lease_until;

	if (row->state != KEY_IN_PROGRESS)
		ereport(ERROR,
				(errcode(ERRCODE_KEY_NOT_IN_PROGRESS),
				 errmsg("key \"%s\" is not in progress",
						text_to_cstring(name->key)),
				 errdetail("Only a claim with a lease can be renewed, until it is completed or has failed.")));
	lease_until = key_leased_until(key_span_arg(fcinfo, 2),
								   GetCurrentTimestamp());
	lease_until = Max(lease_until, row->lease_until);
	row->expires_at = key_time_after(lease_until,
									 row->expires_at - row->lease_until);
	row->lease_until = lease_until;
	return true;
}

/*
 * SQL: idem_renew(key, token, lease, scope).
 */
Datum
idem_renew(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 3);

	settings_prevent_write("idem_renew()");
	PG_RETURN_TIMESTAMPTZ(finish_change(fcinfo, &name,
										finish_renew).lease_until);
}

/*
 * Makes the key unknown to every transaction.  Returns whether it was known to
 * this one.  A key that has expired for this transaction may still be known to
 * others, so its row is written in that case too.
 */
static bool
finish_forget(KeyRing *keys, const KeyName *name, TM_Result *result)
{
	KeyRow		row = key_row(keys->slot);

	if (!TIMESTAMP_IS_NOBEGIN(row.expires_at))
	{
		row.expires_at = DT_NOBEGIN;
		row.state = KEY_RETRYABLE;
		row.request = NULL;
		*result = keys_replace(keys, name, &row);
	}
	return !row.expired;
}

/*
 * Adds a call to the audit.  The SQL functions may be of version 1.0.0, which
 * has none.
 */
static void
finish_record(const char *action, const KeyName *name, bool known, int64 calls)
{
	static const Oid types[] = {TEXTOID, TEXTOID, TEXTOID, BOOLOID, INT8OID};
	Oid			function = catalog_internal_function("idem_record", types,
													 lengthof(types));

	if (OidIsValid(function))
		OidFunctionCall5(function, CStringGetTextDatum(action),
						 PointerGetDatum(name->key),
						 PointerGetDatum(name->scope), BoolGetDatum(known),
						 Int64GetDatum(calls));
}

/*
 * Counts the keys that a transaction has forgotten.  After a savepoint, and
 * after the rollback to one, it counts from 0 again: what was recorded before
 * may have been rolled back.
 */
static int64
finish_count_forgotten(void)
{
	static TransactionId counted = InvalidTransactionId;
	static int64 forgotten = 0;
	TransactionId now = GetCurrentTransactionId();

	if (now != counted)
		forgotten = 0;
	counted = now;
	return ++forgotten;
}

/*
 * Of a transaction that forgets many keys, the audit has the first ones, and
 * then those whose numbers are powers of ten.
 */
static bool
finish_records_forgotten(int64 forgotten)
{
	int64		next = FINISH_RECORDS;

	while (next < forgotten)
		next *= 10;
	return forgotten <= FINISH_RECORDS || forgotten == next;
}

/*
 * Removes the saved answer.  A key that has expired for this transaction may
 * still be replayed to others, so its answer is removed in that case too.
 */
static bool
finish_erase(KeyRing *keys, const KeyName *name, TM_Result *result)
{
	KeyRow		row = key_row(keys->slot);	/* without the answer */

	if (keys_response(keys) == (Datum) 0)
		return false;
	*result = keys_replace(keys, name, &row);
	return true;
}

/*
 * Changes the row of a key for somebody who is not its owner.  Tries again if
 * another transaction has changed it meanwhile.
 */
static bool
finish_by_hand(const KeyName *name,
			   bool (*change) (KeyRing *keys, const KeyName *name,
							   TM_Result *result))
{
	TM_Result	result;
	bool		changed;

	do
	{
		KeyRing		keys;

		CHECK_FOR_INTERRUPTS();
		keys_open(&keys);
		fence_check(name->scope);
		result = TM_Ok;
		changed = keys_find(&keys, name) && change(&keys, name, &result);
		finish_end_look(&keys, result);
	} while (result != TM_Ok);
	return changed;
}

/*
 * SQL: idem_erase(key, scope).
 */
Datum
idem_erase(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 1);
	bool		erased;

	settings_prevent_write("idem_erase()");
	erased = finish_by_hand(&name, finish_erase);
	finish_record("idem_erase", &name, erased, 0);
	PG_RETURN_BOOL(erased);
}

/*
 * SQL: idem_forget(key, scope).  The row is kept and marked as expired.  If it
 * were deleted, a claimer that has drawn its token but not yet inserted its
 * row could succeed after a later claim with a larger token.  Since the row is
 * kept, that claimer finds it and draws another token.
 */
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	KeyName		name = key_name_from_args(fcinfo, 0, 1);
	int64		forgotten;

	settings_prevent_write("idem_forget()");
	if (!finish_by_hand(&name, finish_forget))
		PG_RETURN_BOOL(false);
	forgotten = finish_count_forgotten();
	if (finish_records_forgotten(forgotten))
		finish_record("idem_forget", &name, true,
					  forgotten > FINISH_RECORDS ? forgotten : 0);
	PG_RETURN_BOOL(true);
}
