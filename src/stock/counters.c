/*
 * counters.c
 *		The SQL functions that show counters, for stock_verify and
 *		idempotency_status, and what was counted of reservations.
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/statistics.h"
#include "stock/stock_xact.h"

PG_FUNCTION_INFO_V1(stock_counters);
PG_FUNCTION_INFO_V1(stock_counter);
PG_FUNCTION_INFO_V1(stock_counter_marks);
PG_FUNCTION_INFO_V1(stock_counters_unchanged);
PG_FUNCTION_INFO_V1(stock_counts);

static void
counters_put(ReturnSetInfo *result, const EscrowLevel *level)
{
	Datum		values[6] = {
		PointerGetDatum(level->sku),
		Int64GetDatum(level->available),
		Int64GetDatum((int64) level->touches),
		BoolGetDatum(level->pinned),
		Int32GetDatum(level->rows),
		Int32GetDatum(level->waiting)
	};
	bool		nulls[6] = {false};

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * SQL: stock_counters(), the counters that stock_verify compares with the log.
 * Returns no rows in a transaction with external DML, where counters are not
 * valid.
 */
Datum
stock_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	EscrowLevel level;
	Oid			log;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_ready() || stock_xact_is_external())
		return (Datum) 0;
	log = catalog_get()->stock_log;
	for (int i = 0; i < settings_stock_items; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!escrow_level_at(i, log, &level))
			continue;
		counters_put(result, &level);
		pfree(level.sku);
	}
	return (Datum) 0;
}

/*
 * SQL: stock_counter(sku), the same for one item.
 */
Datum
stock_counter(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	EscrowLevel level;

	InitMaterializedSRF(fcinfo, 0);
	if (shared_ready() && !stock_xact_is_external() &&
		escrow_level_of(catalog_get()->stock_log, PG_GETARG_TEXT_PP(0), &level))
		counters_put(result, &level);
	return (Datum) 0;
}

/*
 * Copies the counter in a place if no open transaction uses it.
 */
static bool
counters_settled_at(int place, Oid log, EscrowLevel *level)
{
	CHECK_FOR_INTERRUPTS();
	if (!escrow_level_at(place, log, level))
		return false;
	if (!level->pinned)
		return true;
	pfree(level->sku);
	return false;
}

/*
 * SQL: stock_counter_marks(), for each place of a counter the number of its
 * touches, or 0 if stock_verify cannot compare it.  This takes 8 bytes for each
 * counter, however long the names of items are.
 */
Datum
stock_counter_marks(PG_FUNCTION_ARGS)
{
	int			count = 0;
	int64	   *marks;
	EscrowLevel level;

	if (shared_ready() && !stock_xact_is_external())
		count = settings_stock_items;
	marks = palloc0((count + 1) * sizeof(int64));
	for (int i = 0; i < count; i++)
	{
		if (!counters_settled_at(i, catalog_get()->stock_log, &level))
			continue;
		marks[i] = (int64) level.touches;
		pfree(level.sku);
	}
	PG_RETURN_DATUM(query_int64_array(marks, count));
}

/*
 * SQL: stock_counters_unchanged(marks), the counters that were not touched
 * since.
 */
Datum
stock_counters_unchanged(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	int			count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	const int64 *marks = (const int64 *) ARR_DATA_PTR(array);
	EscrowLevel level;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_ready() || stock_xact_is_external() ||
		array_contains_nulls(array))
		return (Datum) 0;
	for (int i = 0; i < Min(count, settings_stock_items); i++)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		if (!counters_settled_at(i, catalog_get()->stock_log, &level))
			continue;
		values[0] = PointerGetDatum(level.sku);
		values[1] = Int64GetDatum(level.available);
		values[2] = Int32GetDatum(level.waiting);
		if (marks[i] == (int64) level.touches)
			tuplestore_putvalues(result->setResult, result->setDesc, values,
								 nulls);
		pfree(level.sku);
	}
	return (Datum) 0;
}

/*
 * SQL: stock_counts().
 */
Datum
stock_counts(PG_FUNCTION_ARGS)
{
	return statistics_row(fcinfo, SHARED_RESERVED, SHARED_LAPSED);
}
