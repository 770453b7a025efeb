/*
 * counters.c
 *		The SQL functions that show counters, for stock_verify and
 *		idempotency_status, and what was counted of reservations.
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/statistics.h"
#include "stock/stock_xact.h"

PG_FUNCTION_INFO_V1(stock_counters);
PG_FUNCTION_INFO_V1(stock_counter);
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
		if (escrow_level_at(i, log, &level))
			counters_put(result, &level);
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
 * SQL: stock_counts().
 */
Datum
stock_counts(PG_FUNCTION_ARGS)
{
	return statistics_row(fcinfo, SHARED_RESERVED, SHARED_LAPSED);
}
