/*
 * args.c
 *		Checks of arguments that our SQL functions share.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "utils/typcache.h"

#include "base/args.h"

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
