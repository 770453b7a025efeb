/*
 * claim.c
 *		idem_claim: a key is claimed once, and later claimers get the outcome.
 *
 * A claimer first looks into the live segments, newest first and with a dirty
 * snapshot, and inserts only if it finds no row.  So a replay writes nothing,
 * takes no transaction id and waits for no other transaction.  Finding no row
 * proves nothing; the unique index of the current segment decides.  If another
 * claimer has inserted the key first, the search starts over and finds its row.
 *
 * If the transaction that is writing a row is still in progress, the claimer
 * waits for it as a unique index would, so that lock_timeout and the deadlock
 * detector apply, or returns in_progress if the caller does not want to wait.
 * The ring is locked during a search and never during a wait.
 *
 * The ttl counts from the claim, since we write nothing at commit.  So it may
 * have passed when a transaction ends that others wait for.  They get its
 * outcome all the same: a row does not expire for a caller whose snapshot shows
 * the row's transaction as open, nor for that transaction itself (key.c).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/settings.h"
#include "claim/claim.h"
#include "claim/dedup.h"
#include "claim/fence.h"
#include "claim/stats.h"

typedef enum ClaimStep
{
	CLAIM_ANSWERED,
	CLAIM_AGAIN,				/* another claimer was faster: search again */
	CLAIM_IN_PROGRESS			/* wait for the obstacle, then search again */
} ClaimStep;

/* A row whose writing transaction is still in progress. */
typedef struct ClaimObstacle
{
	int			segment;
	ItemPointerData tid;
	RelationWriter writer;		/* no xid: the transaction with the row lock */
} ClaimObstacle;

/* The answer to an import: what this database has is newer. */
static const ClaimAnswer claim_kept = {.outcome = IDEM_COMPLETED};

PG_FUNCTION_INFO_V1(idem_claim);

void
claim_read_args(Claim *claim, FunctionCallInfo fcinfo,
				int lease_arg, int ttl_arg, int wait_arg)
{
	TimestampTz now = GetCurrentTransactionStartTimestamp();

	key_check_not_reserved(claim->name.scope);
	args_require(fcinfo, wait_arg, "wait");
	claim->wait = PG_GETARG_BOOL(wait_arg);
	claim->leased = !PG_ARGISNULL(lease_arg);
	claim->lease = key_span_arg(fcinfo, lease_arg);
	claim->ttl = key_span_arg(fcinfo, ttl_arg);
	/* Raise the errors of both, also if the answer needs neither. */
	(void) key_leased_until(claim->lease, now);
	(void) key_expires_at(claim->ttl, now);
}

/*
 * Returns the row of a new claim.  Without a lease it is complete from the
 * start, since no other session sees it before this transaction commits.
 */
static KeyRow
claim_new_row(const Claim *claim, int32 attempt)
{
	TimestampTz start = GetCurrentTimestamp();
	KeyRow		row = {0};

	if (claim->imported != NULL)
		return *claim->imported;
	row.token = key_next_token();
	if (claim->leased)
	{
		start = row.lease_until = key_leased_until(claim->lease, start);
		/* Its owner acts outside, and no token may be handed out twice. */
		ForceSyncCommit();
	}
	row.expires_at = key_expires_at(claim->ttl, start);
	row.attempt = attempt;
	row.state = claim->leased ? KEY_IN_PROGRESS : KEY_COMPLETED;
	row.request = claim->request;
	if (claim->dedup != NULL)
		row.response = dedup_next_response(claim->dedup);
	return row;
}

static ClaimAnswer
claim_won(const KeyRow *row)
{
	ClaimAnswer answer = {
		.outcome = IDEM_CLAIMED,
		.token = row->token,
		.attempt = row->attempt
	};

	return answer;
}

static ClaimStep
claim_insert(const Claim *claim, KeyRing *keys, ClaimAnswer *answer)
{
	KeyRow		row;

	if (claim->imported != NULL && claim->imported->expired)
	{
		*answer = claim_kept;
		return CLAIM_ANSWERED;
	}
	row = claim_new_row(claim, 1);
	if (!keys_insert(keys, &claim->name, &row))
		return CLAIM_AGAIN;
	*answer = claim_won(&row);
	return CLAIM_ANSWERED;
}

/*
 * Takes over the row in the slot, whose claim has ended or expired.  Another
 * session may be writing the row at the same time: then it is in progress, with
 * the obstacle that the caller has set.
 */
static ClaimStep
claim_take_over(const Claim *claim, KeyRing *keys, const KeyRow *lapsed,
				ClaimAnswer *answer)
{
	int32		before = Min(lapsed->attempt, PG_INT32_MAX - 1);
	KeyRow		row = claim_new_row(claim, lapsed->expired ? 1 : before + 1);
	Datum		replaced = (Datum) 0;

	if (claim->dedup != NULL && !lapsed->expired)
		replaced = keys_response(keys);
	switch (keys_replace(keys, &claim->name, &row))
	{
		case TM_Ok:
			*answer = claim_won(&row);
			answer->response = replaced;
			answer->taken_over = !lapsed->expired &&
				lapsed->state == KEY_IN_PROGRESS;
			return CLAIM_ANSWERED;
		case TM_BeingModified:
			return CLAIM_IN_PROGRESS;
		default:
			return CLAIM_AGAIN;
	}
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

bool
claim_classify(const Claim *claim, const KeyRow *row, ClaimAnswer *answer)
{
	static const ClaimAnswer mismatch = {.outcome = IDEM_MISMATCH};
	const ClaimAnswer none = {.attempt = row->attempt};
	TimestampTz now = GetCurrentTimestamp();

	*answer = none;
	if (row->expired || row->state == KEY_RETRYABLE)
		return false;
	if (row->state == KEY_IN_PROGRESS && row->lease_until <= now)
		return false;
	if (claim_mismatches(claim, row))
	{
		*answer = mismatch;
		return true;
	}
	if (row->state == KEY_IN_PROGRESS)
	{
		answer->outcome = IDEM_IN_PROGRESS;
		answer->retry_after_us = row->lease_until - now;
		return true;
	}
	answer->outcome = row->state == KEY_COMPLETED ? IDEM_COMPLETED :
		IDEM_FAILED;
	return true;
}

/*
 * How far a claim has come: rows of a key with the same token are of the same
 * claim.
 */
static int
claim_rank(const KeyRow *row)
{
	if (TIMESTAMP_IS_NOBEGIN(row->expires_at))
		return 2;				/* forgotten */
	return row->state == KEY_IN_PROGRESS ? 0 : 1;
}

/*
 * Is the row in the slot newer than an imported one, or the same?  It does not
 * matter whether they have expired.
 */
static bool
claim_is_newer(const KeyRow *row, const KeyRow *imported)
{
	if (row->token != imported->token)
		return row->token > imported->token;
	if (claim_rank(row) != claim_rank(imported))
		return claim_rank(row) > claim_rank(imported);
	return row->lease_until >= imported->lease_until;
}

/*
 * Does the row in the slot answer the claim?
 */
static bool
claim_is_answered(const Claim *claim, KeyRing *keys, const KeyRow *row,
				  ClaimAnswer *answer)
{
	if (claim->imported != NULL)
	{
		*answer = claim_kept;
		return claim_is_newer(row, claim->imported);
	}
	if (!claim_classify(claim, row, answer))
		return false;
	return claim->dedup == NULL ||
		!dedup_replaces(claim->dedup, keys_response(keys));
}

/*
 * Waits for the transaction that is writing a row.  That transaction can wait
 * for us only through locks that the deadlock detector knows.
 */
static void
claim_wait(KeyRing *keys, ClaimObstacle *obstacle)
{
	Relation	table = keys_table(keys, obstacle->segment);

	Assert(!keys->locked);
	if (TransactionIdIsValid(obstacle->writer.xid))
		relation_wait_for_writer(table, &obstacle->tid, &obstacle->writer);
	else
		relation_wait(table, &obstacle->tid);
}

/*
 * Completes an answer with the saved response.
 */
static ClaimStep
claim_answer(KeyRing *keys, ClaimAnswer *answer)
{
	if (answer->outcome == IDEM_COMPLETED || answer->outcome == IDEM_FAILED)
		answer->response = keys_response(keys);
	return CLAIM_ANSWERED;
}

/*
 * Searches for the key once.  A replay does not wait for a transaction that is
 * deleting the row.  Nor does it wait for one that is inserting the row again
 * if an older segment still has it.  The sweeper does both when it migrates a
 * key.
 */
static ClaimStep
claim_try(const Claim *claim, KeyRing *keys, ClaimAnswer *answer,
		  ClaimObstacle *obstacle)
{
	bool		in_progress = false;

	for (int i = 0; i < keys->map.live; i++)
	{
		SnapshotData dirty;
		bool		answered;
		KeyRow		row;

		InitDirtySnapshot(dirty);
		if (!keys_find_in(keys, i, &claim->name, &dirty))
			continue;
		row = key_row(keys->slot);
		answered = claim_is_answered(claim, keys, &row, answer);
		if (answered && row.state != KEY_IN_PROGRESS &&
			!TransactionIdIsValid(dirty.xmin))
			return claim_answer(keys, answer);
		if (in_progress)
			continue;
		obstacle->segment = i;
		obstacle->tid = keys->found_at;
		obstacle->writer = relation_writer(&dirty);
		in_progress = TransactionIdIsValid(obstacle->writer.xid);
		if (!in_progress && answered)
			return claim_answer(keys, answer);
		if (!in_progress)
			return claim_take_over(claim, keys, &row, answer);
	}
	return in_progress ? CLAIM_IN_PROGRESS : claim_insert(claim, keys, answer);
}

ClaimAnswer
claim_key(const Claim *claim)
{
	static const ClaimAnswer in_progress = {.outcome = IDEM_IN_PROGRESS};
	ClaimStep	step;
	ClaimAnswer answer;

	do
	{
		ClaimObstacle obstacle;
		KeyRing		keys;

		CHECK_FOR_INTERRUPTS();
		keys_open(&keys);
		if (claim->dedup == NULL && claim->imported == NULL)
			fence_check(claim->name.scope);
		step = claim_try(claim, &keys, &answer, &obstacle);
		keys_unlock(&keys);
		if (step == CLAIM_IN_PROGRESS && claim->wait)
			claim_wait(&keys, &obstacle);
		keys_close(&keys);
	} while (step == CLAIM_AGAIN || (step == CLAIM_IN_PROGRESS && claim->wait));

	if (step == CLAIM_IN_PROGRESS)
		answer = in_progress;
	if (claim->imported == NULL)
		stats_count_claim(answer.outcome, answer.taken_over);
	return answer;
}

void
claim_answer_columns(const ClaimAnswer *answer, Datum *values, bool *nulls)
{
	Interval   *retry_after = palloc0(sizeof(Interval));

	retry_after->time = answer->retry_after_us;
	values[0] = ObjectIdGetDatum(catalog_get()->idem_outcome[answer->outcome]);
	nulls[0] = false;
	values[1] = Int64GetDatum(answer->token);
	nulls[1] = answer->token == 0;
	values[2] = Int32GetDatum(answer->attempt);
	nulls[2] = answer->attempt == 0;
	values[3] = answer->response;
	nulls[3] = answer->response == (Datum) 0;
	values[4] = IntervalPGetDatum(retry_after);
	nulls[4] = answer->retry_after_us == 0;
}

static Datum
claim_result(const ClaimAnswer *answer)
{
	Datum		values[CLAIM_ANSWER_COLUMNS];
	bool		nulls[CLAIM_ANSWER_COLUMNS];

	claim_answer_columns(answer, values, nulls);
	return args_form_row(catalog_get()->idem_answer, "idem_answer",
						 lengthof(values), values, nulls);
}

/*
 * SQL: idem_claim(key, scope, lease, request, ttl, wait).
 */
Datum
idem_claim(PG_FUNCTION_ARGS)
{
	Claim		claim = {.name = key_name_from_args(fcinfo, 0, 1)};
	ClaimAnswer answer;

	settings_prevent_write("idem_claim()");
	claim_read_args(&claim, fcinfo, 2, 4, 5);
	if (!PG_ARGISNULL(3))
	{
		Datum		digest = DirectFunctionCall1(sha256_bytea,
												 PG_GETARG_DATUM(3));

		claim.request = DatumGetByteaPP(digest);
	}
	answer = claim_key(&claim);
	return claim_result(&answer);
}
