/*
 * filter.c
 *		Does the filter of a subscription let an event pass?
 *
 * The result of a filter is true, false, or unknown: a value has another type
 * than the filter expects, or is not there.  Only true lets an event pass.  The
 * evaluation can also raise an error, for example about a regular expression,
 * or exceed its limits (filter_limit.c).  That must not stop the relay, so it
 * counts as unknown, and a subtransaction cleans up.
 */
#include "postgres.h"

#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/subtransaction.h"
#include "outbox/filter.h"
#include "outbox/filter_limit.h"

typedef enum FilterResult
{
	FILTER_TRUE,
	FILTER_FALSE,
	FILTER_UNKNOWN
} FilterResult;

/* An evaluation, in a subtransaction. */
typedef struct FilterCall
{
	JsonPath   *filter;
	Jsonb	   *payload;
	FilterResult result;
} FilterCall;

PG_FUNCTION_INFO_V1(outbox_filter_is_predicate);

/*
 * Calls jsonb_path_match(payload, filter, '{}', silent => true).
 */
static FilterResult
filter_evaluate(JsonPath *filter, Jsonb *payload)
{
	LOCAL_FCINFO(call, 4);
	Datum		result;

	InitFunctionCallInfoData(*call, NULL, 4, InvalidOid, NULL, NULL);
	call->args[0].value = JsonbPGetDatum(payload);
	call->args[1].value = PointerGetDatum(filter);
	call->args[2].value = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));
	call->args[3].value = BoolGetDatum(true);
	for (int i = 0; i < 4; i++)
		call->args[i].isnull = false;
	result = jsonb_path_match(call);
	if (call->isnull)
		return FILTER_UNKNOWN;
	return DatumGetBool(result) ? FILTER_TRUE : FILTER_FALSE;
}

/*
 * An error for which the filter is not the reason: the server has not enough
 * memory, or this process has to stop.  The event is read again then.
 */
static bool
filter_error_is_foreign(int sqlerrcode)
{
	int			category = ERRCODE_TO_CATEGORY(sqlerrcode);

	return category == ERRCODE_INSUFFICIENT_RESOURCES ||
		category == ERRCODE_OPERATOR_INTERVENTION ||
		category == ERRCODE_SYSTEM_ERROR;
}

static void
filter_evaluate_call(void *arg)
{
	FilterCall *call = arg;

	call->result = filter_evaluate(call->filter, call->payload);
}

static void
filter_evaluate_within_limits(void *arg)
{
	FilterCall *call = arg;

	filter_limit_call(CurrentMemoryContext, call->filter, filter_evaluate_call,
					  call);
}

static FilterResult
filter_try(JsonPath *filter, Jsonb *payload)
{
	FilterCall	call = {filter, payload, FILTER_UNKNOWN};
	ErrorData  *error = subtransaction_try(filter_evaluate_within_limits, &call,
										   true);

	if (error != NULL && filter_error_is_foreign(error->sqlerrcode))
		ReThrowError(error);
	return call.result;
}

bool
filter_passes(JsonPath *filter, Jsonb *payload, FilterCounts *counts)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency filter",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(scratch);
	int64		began_us = filter_limit_cpu_us();
	FilterResult result = filter_try(filter, payload);

	counts->cpu_us += filter_limit_cpu_us() - began_us;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(scratch);
	if (result == FILTER_TRUE)
		return true;
	counts->filtered++;
	if (result == FILTER_UNKNOWN)
		counts->errors++;
	return false;
}

/*
 * SQL: outbox_filter_is_predicate(filter).
 *
 * A path that ends with "? (...)" returns the values that it has found, and not
 * whether there are any.
 */
Datum
outbox_filter_is_predicate(PG_FUNCTION_ARGS)
{
	JsonPathItem item;
	JsonPathItem next;

	jspInit(&item, PG_GETARG_JSONPATH_P(0));
	while (jspGetNext(&item, &next))
		item = next;
	PG_RETURN_BOOL(item.type != jpiFilter);
}
