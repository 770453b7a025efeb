/*
 * compaction.c
 *		What compaction.sql needs C for: which items have a long log, and
 *		changing the tables without the guard.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/relation.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/guard.h"
#include "stock/stock_xact.h"

#define COMPACTION_ITEMS_MAX 100	/* items that one call returns */

PG_FUNCTION_INFO_V1(stock_compact);
PG_FUNCTION_INFO_V1(stock_migrate);
PG_FUNCTION_INFO_V1(stock_gather);
PG_FUNCTION_INFO_V1(stock_crowded);
PG_FUNCTION_INFO_V1(stock_count_compacted);

static Datum
compaction_query(SavedQuery *query, Datum *values)
{
	Datum		result;
	bool		isnull;

	SPI_connect();
	query_run(query, values, NULL, false);
	result = query_datum(0, 1, &isnull);
	SPI_finish();
	return result;
}

/*
 * Runs a query that moves rows between the log and the history.  Its result is
 * a value that is passed by value.
 */
static Datum
compaction_move(SavedQuery *query, Datum *values)
{
	volatile Datum result = 0;

	guard_let_pass(true);
	PG_TRY();
	{
		result = compaction_query(query, values);
	}
	PG_FINALLY();
	{
		guard_let_pass(false);
	}
	PG_END_TRY();
	return result;
}

/*
 * SQL: stock_compact(max_rows), one step of the sweeper.
 */
Datum
stock_compact(PG_FUNCTION_ARGS)
{
	static SavedQuery step = {
		.sql = "SELECT idempotency_internal.stock_compact_next($1)", .types = {INT4OID}
	};

	settings_prevent_write("stock_compact()");
	(void) stock_xact_begin();
	PG_RETURN_DATUM(compaction_move(&step, &fcinfo->args[0].value));
}

/*
 * SQL: stock_migrate(old_slot), a part of stock_forget.
 */
Datum
stock_migrate(PG_FUNCTION_ARGS)
{
	static SavedQuery step = {
		.sql = "SELECT idempotency_internal.stock_migrate_rows($1)", .types = {INT2OID}
	};

	PG_RETURN_DATUM(compaction_move(&step, &fcinfo->args[0].value));
}

/*
 * SQL: stock_gather(restored, max_rows), a part of stock_forget.  Each call goes
 * on at the page where the last one ended, since the pages before it have only
 * rows that were moved.
 */
Datum
stock_gather(PG_FUNCTION_ARGS)
{
	static SavedQuery step = {
		.sql = "SELECT idempotency_internal.stock_gather_rows($1, $2, $3)",
		.types = {INT2OID, INT8OID, INT4OID}
	};
	static int64 first_page = 0;
	bool		all_pages = first_page == 0;
	int64		last_page;
	Datum		values[3];

	values[0] = PG_GETARG_DATUM(0);
	values[1] = Int64GetDatum(first_page);
	values[2] = PG_GETARG_DATUM(1);
	first_page = 0;				/* after an error, and when no row is found */
	last_page = DatumGetInt64(compaction_move(&step, values));
	first_page = Max(last_page, 0);
	PG_RETURN_BOOL(last_page >= 0 || !all_pages);
}

/*
 * SQL: stock_crowded(rows), some of the items whose log has more than this
 * number of rows; the next call continues after them.
 */
Datum
stock_crowded(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	int			rows = PG_GETARG_INT32(0);
	EscrowLevel level;
	int			looks = 0;
	Oid			log;

	shared_require("stock");
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	log = catalog_get()->stock_log;
	escrow_set_crowd(Max(rows, 0));
	for (int i = 0; i < COMPACTION_ITEMS_MAX &&
		 escrow_next_crowded(&looks, log, rows, &level); i++)
	{
		Datum		value = PointerGetDatum(level.sku);
		bool		isnull = false;

		tuplestore_putvalues(result->setResult, result->setDesc, &value,
							 &isnull);
	}
	return (Datum) 0;
}

/*
 * SQL: stock_count_compacted(sku, rows, complete), tells the counter that rows
 * have left an item's log.
 */
Datum
stock_count_compacted(PG_FUNCTION_ARGS)
{
	EscrowItem *item;

	shared_require("stock");
	relation_hold(catalog_get()->stock_log, RowExclusiveLock);
	item = escrow_pin_loaded(catalog_get()->stock_log, PG_GETARG_TEXT_PP(0));
	if (item == NULL)
		PG_RETURN_VOID();
	escrow_count_compacted(item, PG_GETARG_INT32(1), PG_GETARG_BOOL(2));
	escrow_unpin(item);
	PG_RETURN_VOID();
}
