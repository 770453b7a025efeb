/*
 * claim.c
 *		idem_claim: a key is claimed once, and every other comer is told what
 *		became of it.
 *
 * A claimer first looks, with a dirty snapshot, and inserts only if nothing is
 * there: a replay writes nothing, takes no transaction id and waits for
 * nobody.  "Not found" proves nothing, the unique index decides: an insertion
 * that meets another's starts over, and then finds it.
 *
 * What is in doubt, because the transaction that wrote it is still open, is
 * waited for as a unique index would (lock_timeout and the deadlock detector
 * see an ordinary wait), or answered in_progress if the caller will not wait.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"

#include "base/catalog.h"
#include "base/relation.h"
#include "base/settings.h"
#include "claim/key.h"

/* The call. */
typedef struct Claim
{
	KeyName		name;
	bool		leased;
	bool		wait;
	TimestampTz now;
	TimestampTz lease_until;
	TimestampTz expires_at;
	bytea	   *request;
} Claim;

/* The answer. */
typedef struct ClaimAnswer
{
	IdemOutcome outcome;
	int64		token;			/* 0: none */
	int32		attempt;		/* 0: none */
	Datum		response;		/* 0: none */
	TimeOffset	retry_after_us; /* 0: unknown */
} ClaimAnswer;

PG_FUNCTION_INFO_V1(idem_claim);

static Claim
claim_from_args(FunctionCallInfo fcinfo)
{
	Claim		claim = {0};
	TimestampTz start;

	claim.name = key_name_from_args(fcinfo, 0, 1);
	if (PG_ARGISNULL(5))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("wait must not be null")));
	claim.wait = PG_GETARG_BOOL(5);
	claim.now = start = GetCurrentTimestamp();
	claim.leased = !PG_ARGISNULL(2);
	if (claim.leased)
		start = claim.lease_until =
			key_deadline(fcinfo, 2, claim.now, settings_lease_s, "lease");
	claim.expires_at = key_deadline(fcinfo, 4, start, settings_ttl_s, "ttl");
	if (!PG_ARGISNULL(3))
		claim.request = DatumGetByteaPP(DirectFunctionCall1(sha256_bytea,
															PG_GETARG_DATUM(3)));
	return claim;
}

/*
 * The row of a fresh claim.  In the transactional mode it is complete from the
 * start: nobody sees it before this transaction commits.
 */
static KeyRow
claim_new_row(const Claim *claim, int32 attempt)
{
	KeyRow		row = {0};

	row.token = key_next_token();
	row.expires_at = claim->expires_at;
	row.lease_until = claim->lease_until;
	row.attempt = attempt;
	row.state = claim->leased ? KEY_IN_PROGRESS : KEY_COMPLETED;
	row.request = claim->request;
	return row;
}

static ClaimAnswer
claim_won(const KeyRow *row)
{
	return (ClaimAnswer) {
		.outcome = IDEM_CLAIMED,.token = row->token,.attempt = row->attempt
	};
}

static bool
claim_insert(const Claim *claim, KeyTable *keys, ClaimAnswer *answer)
{
	KeyRow		row = claim_new_row(claim, 1);

	key_store(keys->slot, &claim->name, &row);
	if (!relation_insert_or_conflict(keys->table, keys->slot))
		return false;
	*answer = claim_won(&row);
	return true;
}

/*
 * Takes a row over that nobody owns any more.  Returns false if somebody else
 * was faster; the caller then looks again.
 */
static bool
claim_take_over(const Claim *claim, KeyTable *keys, int32 attempt,
				ClaimAnswer *answer)
{
	ItemPointerData tid = keys->slot->tts_tid;
	TM_FailureData failure;
	TM_Result	locked;
	KeyRow		row;

	locked = table_tuple_lock(keys->table, &tid, GetActiveSnapshot(),
							  keys->slot, GetCurrentCommandId(true),
							  LockTupleNoKeyExclusive,
							  claim->wait ? LockWaitBlock : LockWaitSkip,
							  0, &failure);
	if (locked == TM_WouldBlock)
	{
		*answer = (ClaimAnswer) {.outcome = IDEM_IN_PROGRESS};
		return true;
	}
	if (locked != TM_Ok)
		return false;
	row = claim_new_row(claim, attempt);
	key_store(keys->slot, &claim->name, &row);
	relation_update(keys->table, &tid, keys->slot);
	*answer = claim_won(&row);
	return true;
}

static bool
claim_mismatches(const Claim *claim, const KeyRow *row)
{
	if (claim->request == NULL || row->request == NULL)
		return false;
	return !DatumGetBool(DirectFunctionCall2(byteaeq,
											 PointerGetDatum(claim->request),
											 PointerGetDatum(row->request)));
}

/*
 * What a row that is not in doubt says to a new claimer.  Returns false if the
 * key is free for the taking.
 */
static bool
claim_judge(const Claim *claim, const KeyRow *row, ClaimAnswer *answer)
{
	*answer = (ClaimAnswer) {.attempt = row->attempt};
	if (row->expires_at <= claim->now || row->state == KEY_RETRYABLE)
		return false;
	if (row->state == KEY_IN_PROGRESS && row->lease_until <= claim->now)
		return false;
	if (claim_mismatches(claim, row))
	{
		*answer = (ClaimAnswer) {.outcome = IDEM_MISMATCH};
		return true;
	}
	if (row->state == KEY_IN_PROGRESS)
	{
		answer->outcome = IDEM_IN_PROGRESS;
		answer->retry_after_us = row->lease_until - claim->now;
		return true;
	}
	answer->outcome = row->state == KEY_COMPLETED ? IDEM_COMPLETED : IDEM_FAILED;
	answer->response = row->response;
	return true;
}

/*
 * Waits for the transaction that put the row in doubt.  The caller holds
 * nothing that this transaction could be waiting for in turn, except what
 * the deadlock detector knows about.
 */
static void
claim_wait(KeyTable *keys, const SnapshotData *dirty)
{
	TransactionId xid = TransactionIdIsValid(dirty->xmin) ? dirty->xmin : dirty->xmax;

	if (dirty->speculativeToken != 0)
		SpeculativeInsertionWait(dirty->xmin, dirty->speculativeToken);
	else
		XactLockTableWait(xid, keys->table, &keys->slot->tts_tid,
						  XLTW_InsertIndex);
}

/*
 * One look at the key.  Returns false if it has to be looked at again.
 */
static bool
claim_try(const Claim *claim, KeyTable *keys, ClaimAnswer *answer)
{
	SnapshotData dirty;
	KeyRow		row;
	bool		answered;

	InitDirtySnapshot(dirty);
	if (!key_find(keys, &claim->name, &dirty))
		return claim_insert(claim, keys, answer);

	row = key_row(keys);
	answered = claim_judge(claim, &row, answer);
	if (answered && !TransactionIdIsValid(dirty.xmin) &&
		(row.state != KEY_IN_PROGRESS || !TransactionIdIsValid(dirty.xmax)))
		return true;			/* a replay does not wait for a deleter */
	if (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax))
	{
		*answer = (ClaimAnswer) {.outcome = IDEM_IN_PROGRESS};
		if (claim->wait)
			claim_wait(keys, &dirty);
		return !claim->wait;
	}
	return claim_take_over(claim, keys,
						   row.expires_at <= claim->now ? 1 : row.attempt + 1,
						   answer);
}

/*
 * The descriptor of idem_claim's result, made once for each call site.
 */
static TupleDesc
claim_result_desc(FunctionCallInfo fcinfo)
{
	MemoryContext old;
	TupleDesc	desc;

	if (fcinfo->flinfo->fn_extra != NULL)
		return fcinfo->flinfo->fn_extra;
	old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	fcinfo->flinfo->fn_extra = BlessTupleDesc(desc);
	MemoryContextSwitchTo(old);
	return fcinfo->flinfo->fn_extra;
}

static Datum
claim_result(FunctionCallInfo fcinfo, const ClaimAnswer *answer)
{
	Interval	retry_after = {.time = answer->retry_after_us};
	Datum		values[5];
	bool		nulls[5];

	values[0] = ObjectIdGetDatum(catalog_get()->idem_outcome[answer->outcome]);
	nulls[0] = false;
	values[1] = Int64GetDatum(answer->token);
	nulls[1] = answer->token == 0;
	values[2] = Int32GetDatum(answer->attempt);
	nulls[2] = answer->attempt == 0;
	values[3] = answer->response;
	nulls[3] = answer->response == (Datum) 0;
	values[4] = IntervalPGetDatum(&retry_after);
	nulls[4] = answer->retry_after_us == 0;
	return HeapTupleGetDatum(heap_form_tuple(claim_result_desc(fcinfo),
											 values, nulls));
}

/*
 * SQL: idem_claim(key, scope, lease, request, ttl, wait).
 */
Datum
idem_claim(PG_FUNCTION_ARGS)
{
	ClaimAnswer answer;
	KeyTable	keys;
	Claim		claim;

	PreventCommandDuringRecovery("idem_claim()");
	PreventCommandIfReadOnly("idem_claim()");
	keys = key_table_open();
	do
	{
		CHECK_FOR_INTERRUPTS();
		claim = claim_from_args(fcinfo);	/* anew: waiting takes time */
	} while (!claim_try(&claim, &keys, &answer));
	key_table_close(&keys, answer.outcome == IDEM_CLAIMED);
	return claim_result(fcinfo, &answer);
}
