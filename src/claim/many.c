/*
 * many.c
 *		idem_claim_many: claims a batch of keys, each as idem_claim does.
 *
 * The keys are claimed in sorted order, so that two batches cannot deadlock,
 * and returned in the order of the array.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/settings.h"
#include "claim/claim.h"
#include "claim/stats.h"

#define MANY_KEYS_MAX 100000

typedef struct ManyItem
{
	text	   *key;
	int			position;		/* in the array */
	ClaimAnswer answer;
} ManyItem;

PG_FUNCTION_INFO_V1(idem_claim_many);

static Datum *
many_array_arg(FunctionCallInfo fcinfo, int *count)
{
	ArrayType  *array;
	Datum	   *keys;
	bool	   *nulls;

	args_require(fcinfo, 0, "keys");
	array = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("keys must be a one-dimensional array")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &keys, &nulls,
					  count);
	if (*count > MANY_KEYS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many keys"),
				 errdetail("There are %d; the limit is %d.",
						   *count, MANY_KEYS_MAX)));
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			args_raise_null("key");
	}
	return keys;
}

static ManyItem *
many_items(FunctionCallInfo fcinfo, int *count)
{
	Datum	   *keys = many_array_arg(fcinfo, count);
	ManyItem   *items = palloc0(Max(*count, 1) * sizeof(ManyItem));

	for (int i = 0; i < *count; i++)
	{
		items[i].key = DatumGetTextPP(keys[i]);
		items[i].position = i;
		key_check_key(items[i].key);
	}
	return items;
}

/*
 * Compares as the index does, by bytes.
 */
static int
many_compare_keys(const void *a, const void *b)
{
	const ManyItem *left = a;
	const ManyItem *right = b;
	int			order = args_compare_texts(left->key, right->key);

	return order != 0 ? order : left->position - right->position;
}

static int
many_compare_positions(const void *a, const void *b)
{
	return ((const ManyItem *) a)->position - ((const ManyItem *) b)->position;
}

/*
 * Claims a key.  Keeps only the response of the memory that this allocates.
 */
static ClaimAnswer
many_claim_key(Claim *claim, text *key, MemoryContext each)
{
	MemoryContext all = MemoryContextSwitchTo(each);
	ClaimAnswer answer;

	claim->name.key = key;
	answer = claim_key(claim);
	MemoryContextSwitchTo(all);
	if (answer.response != (Datum) 0)
		answer.response = datumCopy(answer.response, false, -1);
	MemoryContextReset(each);
	return answer;
}

/*
 * Does this key repeat the one before, which had a saved response?  Then its
 * answer is the same, and the two rows share one copy of the response.
 */
static bool
many_is_replay(const ManyItem *item, const ManyItem *before)
{
	return before->answer.response != (Datum) 0 &&
		args_compare_texts(item->key, before->key) == 0;
}

static void
many_claim(Claim *claim, ManyItem *items, int count)
{
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext,
											   "idem_claim_many key",
											   ALLOCSET_DEFAULT_SIZES);

	for (int i = 0; i < count; i++)
	{
		if (i > 0 && many_is_replay(&items[i], &items[i - 1]))
		{
			items[i].answer = items[i - 1].answer;
			stats_count_claim(items[i].answer.outcome, false);
		}
		else
			items[i].answer = many_claim_key(claim, items[i].key, each);
	}
	MemoryContextDelete(each);
}

/*
 * SQL: idem_claim_many(keys, scope, lease, ttl, wait).
 */
Datum
idem_claim_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Claim		claim = {0};
	ManyItem   *items;
	int			count;

	settings_prevent_write("idem_claim_many()");
	InitMaterializedSRF(fcinfo, 0);
	items = many_items(fcinfo, &count);
	claim.name.scope = key_scope_arg(fcinfo, 1);
	claim_read_args(&claim, fcinfo, 2, 3, 4);

	qsort(items, count, sizeof(ManyItem), many_compare_keys);
	many_claim(&claim, items, count);
	qsort(items, count, sizeof(ManyItem), many_compare_positions);
	for (int i = 0; i < count; i++)
	{
		Datum		values[1 + CLAIM_ANSWER_COLUMNS];
		bool		nulls[1 + CLAIM_ANSWER_COLUMNS];

		values[0] = PointerGetDatum(items[i].key);
		nulls[0] = false;
		claim_answer_columns(&items[i].answer, &values[1], &nulls[1]);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
