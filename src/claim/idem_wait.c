/*
 * idem_wait.c
 *		idem_wait: sleeps until a key is completed, has failed, or is free.
 *
 * It looks at the key as idem_claim does, and claims nothing.  It is a
 * procedure, so that it can sleep without a snapshot (base/wait.c).  The end of
 * a transaction that has written the key wakes it (waiters.c), and it wakes by
 * itself when a lease ends.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/shared.h"
#include "base/wait.h"
#include "claim/claim.h"
#include "claim/fence.h"
#include "claim/waiters.h"

#define IDEM_WAIT_MAX_S (24 * 60 * 60)
#define IDEM_WAIT_LOOK_MS 5000	/* look again after so long in any case */
#define IDEM_WAIT_ALONE_MS 200	/* the same if nobody wakes us */
#define IDEM_WAIT_COLUMNS 4

typedef struct IdemWait
{
	KeyName		name;
	MemoryContext context;		/* for the response */
	bool		open;			/* a transaction is writing the key */
	bool		known;			/* there is a row that has not expired */
	ClaimAnswer answer;			/* meaningful if known and not open */
} IdemWait;

PG_FUNCTION_INFO_V1(idem_wait);

/*
 * Looks at the key once.  A final answer does not wait for the transaction that
 * is moving or deleting the row.
 */
static void
idem_wait_find(IdemWait *wait, KeyRing *keys)
{
	const Claim claim = {.name = wait->name};

	for (int i = 0; i < keys->map.live; i++)
	{
		SnapshotData dirty;
		KeyRow		row;
		bool		answered;

		InitDirtySnapshot(dirty);
		if (!keys_find_in(keys, i, &wait->name, &dirty))
			continue;
		row = key_row(keys->slot);
		answered = claim_classify(&claim, &row, &wait->answer);
		if (answered && row.state != KEY_IN_PROGRESS &&
			!TransactionIdIsValid(dirty.xmin))
		{
			wait->open = false;
			wait->known = true;
			wait->answer.response = keys_response(keys);
			return;
		}
		if (wait->open)
			continue;
		wait->open = TransactionIdIsValid(relation_writer(&dirty).xid);
		wait->known = answered && !wait->open;
		if (!wait->open)
			return;
	}
}

static void
idem_wait_look(void *arg)
{
	IdemWait   *wait = arg;
	KeyRing		keys;

	wait->open = wait->known = false;
	keys_open(&keys);
	fence_check(wait->name.scope);
	idem_wait_find(wait, &keys);
	keys_unlock(&keys);
	if (wait->known && wait->answer.response != (Datum) 0)
	{
		MemoryContext old = MemoryContextSwitchTo(wait->context);

		wait->answer.response =
			datumCopy(wait->answer.response, false, -1);
		MemoryContextSwitchTo(old);
	}
	keys_close(&keys);
}

/*
 * Until when there is nothing to see, unless a transaction ends; 0: now.
 */
static TimestampTz
idem_wait_again_at(const IdemWait *wait)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz again_at =
		TimestampTzPlusMilliseconds(now, shared_ready() ? IDEM_WAIT_LOOK_MS :
									IDEM_WAIT_ALONE_MS);

	if (wait->open)
		return again_at;
	if (!wait->known || wait->answer.outcome != IDEM_IN_PROGRESS)
		return 0;
	return Min(again_at, now + wait->answer.retry_after_us);
}

static Datum
idem_wait_result(FunctionCallInfo fcinfo, const IdemWait *wait)
{
	static const ClaimAnswer in_progress = {.outcome = IDEM_IN_PROGRESS};
	Datum		columns[CLAIM_ANSWER_COLUMNS];
	bool		column_nulls[CLAIM_ANSWER_COLUMNS];
	Datum		values[IDEM_WAIT_COLUMNS] = {0};
	bool		nulls[IDEM_WAIT_COLUMNS] = {true, true, true, true};
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (wait->open || wait->known)
	{
		claim_answer_columns(wait->open ? &in_progress : &wait->answer,
							 columns, column_nulls);
		values[0] = columns[0];
		nulls[0] = column_nulls[0];
		/* The token in between is the owner's. */
		for (int i = 1; i < IDEM_WAIT_COLUMNS; i++)
		{
			values[i] = columns[i + 1];
			nulls[i] = column_nulls[i + 1];
		}
	}
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values,
											 nulls));
}

/*
 * SQL: idem_wait(key, scope, timeout), and what it returns.
 */
Datum
idem_wait(PG_FUNCTION_ARGS)
{
	IdemWait	wait = {.name = key_name_from_args(fcinfo, 0, 1)};
	TimestampTz until;

	PreventCommandDuringRecovery("idem_wait()");
	args_require(fcinfo, 2, "timeout");
	until = args_time_after(GetCurrentTimestamp(), PG_GETARG_INTERVAL_P(2),
							IDEM_WAIT_MAX_S, "timeout", NULL);
	wait.context = CurrentMemoryContext;
	wait_release_snapshot("idem_wait()");
	for (;;)
	{
		Waiter		waiter = waiters_arm(&wait.name);
		TimestampTz wake_at;
		TimestampTz now;
		long		ms;

		wait_look(idem_wait_look, &wait);
		wake_at = Min(idem_wait_again_at(&wait), until);
		now = GetCurrentTimestamp();
		if (wake_at <= now && (wake_at == 0 || wake_at == until))
			break;
		ms = TimestampDifferenceMilliseconds(now, wake_at);
		waiters_sleep(&waiter, Max(ms, 1));
	}
	return idem_wait_result(fcinfo, &wait);
}
