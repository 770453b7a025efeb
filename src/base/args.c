/*
 * args.c
 *		Checks of arguments that our SQL functions share.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "base/args.h"

/* The longest time that any caller allows has 120 months. */
#define ARGS_MONTHS_MAX 1200

void
args_raise_null(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", name)));
}

void
args_require(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (PG_ARGISNULL(arg))
		args_raise_null(name);
}

text *
args_text(FunctionCallInfo fcinfo, int arg, const char *name)
{
	args_require(fcinfo, arg, name);
	return PG_GETARG_TEXT_PP(arg);
}

int64
args_token(FunctionCallInfo fcinfo, int arg)
{
	int64		token;

	args_require(fcinfo, arg, "token");
	token = PG_GETARG_INT64(arg);
	if (token <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token must be positive")));
	return token;
}

void
args_check_not_empty(const text *value, const char *name)
{
	if (VARSIZE_ANY_EXHDR(value) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", name)));
}

void
args_check_length(const text *value, const char *name, int max)
{
	int			length = VARSIZE_ANY_EXHDR(value);

	if (length > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 errdetail("It has %d bytes; the limit is %d.", length, max)));
}

static bool
args_is_longer(const Interval *a, const Interval *b)
{
	return DatumGetBool(DirectFunctionCall2(interval_gt, IntervalPGetDatum(a),
											IntervalPGetDatum(b)));
}

/*
 * The first comparison counts a month as 30 days.  The second one measures the
 * sum itself, since '1000 months -29999 days' is more than a year.  Months and
 * days that cancel each other out can still lead beyond the range of timestamps
 * on the way, so the number of months has a limit of its own.
 */
TimestampTz
args_time_after(TimestampTz from, const Interval *span, int max_s,
				const char *name, const char *setting)
{
	Interval	none = {0};
	Interval	most = {.time = max_s * USECS_PER_SEC};
	bool		positive = args_is_longer(span, &none);
	bool		too_long = args_is_longer(span, &most) ||
		span->month > ARGS_MONTHS_MAX || span->month < -ARGS_MONTHS_MAX;
	TimestampTz after = from;

	if (positive && !too_long)
	{
		Datum		sum = DirectFunctionCall2(timestamptz_pl_interval,
											  TimestampTzGetDatum(from),
											  IntervalPGetDatum(span));

		after = DatumGetTimestampTz(sum);
		positive = after > from;
		too_long = after - from > most.time;
	}
	if (!positive)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be positive", name)));
	if (too_long)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 setting ?
				 errdetail("The limit is %d s, by %s.", max_s, setting) :
				 errdetail("The limit is %d days.", max_s / SECS_PER_DAY),
				 errhint("A number without a unit is in seconds.")));
	return after;
}

int
args_compare_texts(const text *a, const text *b)
{
	int			a_length = VARSIZE_ANY_EXHDR(a);
	int			b_length = VARSIZE_ANY_EXHDR(b);
	int			order = memcmp(VARDATA_ANY(a), VARDATA_ANY(b),
							   Min(a_length, b_length));

	return order != 0 ? order : a_length - b_length;
}

void
args_check_encoding(const text *value)
{
	if (GetDatabaseEncoding() != PG_UTF8)
		(void) pg_server_to_any(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value),
								PG_UTF8);
}

Datum
args_form_row(Oid type, const char *name, int columns, Datum *values,
			  bool *nulls)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);
	HeapTuple	tuple;

	if (desc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("type %s of extension idempotency was altered", name)));
	tuple = heap_form_tuple(desc, values, nulls);
	ReleaseTupleDesc(desc);
	return HeapTupleGetDatum(tuple);
}
