/*
 * statistics.c
 *		The counters of a database in shared memory, for SQL.
 */
#include "postgres.h"

#include "funcapi.h"

#include "base/compat.h"
#include "base/shared.h"
#include "base/statistics.h"

PG_FUNCTION_INFO_V1(idempotency_counted_since);
PG_FUNCTION_INFO_V1(idempotency_reset_counters);

Datum
statistics_row(FunctionCallInfo fcinfo, SharedCounter first,
			   SharedCounter last)
{
	const int	count = last - first + 1;
	Datum		values[1 + SHARED_COUNTERS] = {0};
	bool		nulls[1 + SHARED_COUNTERS];
	SharedDatabase *database = shared_find_my_database();
	pg_atomic_uint64 *counters;
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	memset(nulls, database == NULL, sizeof(nulls));
	if (database != NULL)
	{
		values[0] = TimestampTzGetDatum(pg_atomic_read_u64(&database->since));
		counters = &database->counters[first];
		for (int i = 0; i < count; i++)
			values[1 + i] = Int64GetDatum(pg_atomic_read_u64(&counters[i]));
	}
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values,
											 nulls));
}

/*
 * SQL: idempotency_counted_since(), null if nothing is counted.
 */
Datum
idempotency_counted_since(PG_FUNCTION_ARGS)
{
	SharedDatabase *database = shared_find_my_database();

	if (database == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ((TimestampTz) pg_atomic_read_u64(&database->since));
}

/*
 * SQL: idempotency_reset_counters().
 */
Datum
idempotency_reset_counters(PG_FUNCTION_ARGS)
{
	SharedDatabase *database = shared_find_my_database();

	if (database != NULL)
		shared_reset_counters(database);
	PG_RETURN_VOID();
}
