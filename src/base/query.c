/*
 * query.c
 *		Saved SPI queries on our own tables.
 *
 * Names in queries are qualified and workers run with a fixed search_path, so
 * that no object that a user creates can be used instead of ours.
 *
 * SPI leaves its own memory context as the current one; nothing here does.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/catalog.h"
#include "base/query.h"

static void
query_prepare(SavedQuery *query)
{
	int			nargs = 0;
	SPIPlanPtr	plan;

	if (query->plan != NULL)
		return;
	(void) catalog_get();		/* raises an error if objects are too old */
	while (nargs < QUERY_ARGS_MAX && OidIsValid(query->types[nargs]))
		nargs++;
	plan = SPI_prepare(query->sql, nargs, query->types);
	if (plan == NULL || SPI_keepplan(plan) != 0)
		elog(ERROR, "could not prepare \"%s\": %s", query->sql,
			 SPI_result_code_string(SPI_result));
	query->plan = plan;
}

uint64
query_run(SavedQuery *query, Datum *values, const char *nulls, bool read_only)
{
	MemoryContext caller = CurrentMemoryContext;
	int			result;

	query_prepare(query);
	result = SPI_execute_plan(query->plan, values, nulls, read_only, 0);
	if (result < 0)
		elog(ERROR, "could not run \"%s\": %s", query->sql,
			 SPI_result_code_string(result));
	MemoryContextSwitchTo(caller);
	return SPI_processed;
}

uint64
query_run_patiently(SavedQuery *query, Datum *values, const char *nulls)
{
	int			nest_level = NewGUCNestLevel();
	uint64		rows;

	(void) set_config_option("lock_timeout", "0", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	rows = query_run(query, values, nulls, false);
	AtEOXact_GUC(true, nest_level);
	return rows;
}

Portal
query_open(SavedQuery *query, Datum *values, bool read_only)
{
	MemoryContext caller = CurrentMemoryContext;
	Portal		cursor;

	query_prepare(query);
	cursor = SPI_cursor_open(NULL, query->plan, values, NULL, read_only);
	MemoryContextSwitchTo(caller);
	return cursor;
}

uint64
query_fetch(Portal cursor, int most)
{
	MemoryContext caller = CurrentMemoryContext;

	SPI_cursor_fetch(cursor, true, most);
	MemoryContextSwitchTo(caller);
	return SPI_processed;
}

Datum
query_array8(Datum *elements, int count, Oid type)
{
	return PointerGetDatum(construct_array(elements, count, type,
										   sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

Datum
query_int64_array(const int64 *values, int count)
{
	Datum	   *elements = palloc((count + 1) * sizeof(Datum));

	for (int i = 0; i < count; i++)
		elements[i] = Int64GetDatum(values[i]);
	return query_array8(elements, count, INT8OID);
}

Datum
query_datum(uint64 row, int column, bool *isnull)
{
	Assert(row < SPI_tuptable->numvals);
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc,
						 column, isnull);
}

int64
query_int64(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

int64 *
query_int64_elements(uint64 row, int column, int *count)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);
	ArrayType  *array;

	*count = 0;
	if (isnull)
		return NULL;
	array = DatumGetArrayTypePCopy(value);
	if (array_contains_nulls(array))
		return NULL;
	*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int64 *) ARR_DATA_PTR(array);
}

char *
query_text_column(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

char *
query_text(uint64 row, int column)
{
	Assert(row < SPI_tuptable->numvals);
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}
