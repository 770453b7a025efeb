/*
 * compaction.c
 *		What compaction.sql needs C for: which items have a long log or old
 *		rows in it, and changing the tables without the guard.
 *
 * The counters know which items in use have a long log.  Of the others, and of
 * items that are slow, a walk over the log finds the first row of each.  It
 * goes in steps, and a new one begins an hour after the one before, or in
 * shorter intervals if the history is short.  So a step is small however many
 * items there are, and most of the time there is none.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/relation.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/guard.h"
#include "stock/ledger.h"
#include "stock/names.h"
#include "stock/stock_xact.h"

#define COMPACTION_ITEMS_MAX 100	/* items that one call returns */
#define COMPACTION_LOOKS_MAX 4000	/* rows that a step of the walk passes */
#define COMPACTION_AGE_MAX_S SECS_PER_DAY
#define COMPACTION_WALKS 24		/* begin in the time of that age */

/*
 * The walk over all items of the log, in steps.  It finds what no counter
 * shows: items with few rows, or without a counter.
 */
static LedgerPosition walk_from;	/* where the next step begins */
static LedgerPosition walk_old; /* before the first old row of this step */
static LedgerPosition walk_upto;	/* the end of this step */
static uint64 walk_sum = 0;		/* of the ids that it has found */
static bool walking = false;
static TimestampTz walk_at = 0; /* when the next walk begins */

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

static void
compaction_put(ReturnSetInfo *result, text *sku)
{
	Datum		value = PointerGetDatum(sku);
	bool		isnull = false;

	tuplestore_putvalues(result->setResult, result->setDesc, &value, &isnull);
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
 * Remembers a position until the next step.
 */
static void
compaction_keep(LedgerPosition *kept, const LedgerPosition *position)
{
	text	   *before = kept->sku;
	text	   *sku = NULL;

	if (position->sku != NULL)
	{
		Size		size = VARSIZE_ANY(position->sku);

		sku = MemoryContextAlloc(TopMemoryContext, size);
		memcpy(sku, position->sku, size);
	}
	kept->sku = sku;
	kept->id = position->id;
	if (before != NULL)
		pfree(before);
}

/*
 * How old rows become, in microseconds: a table of the history has rows for
 * half of idempotency.stock_history.
 */
static int64
compaction_age(void)
{
	return Min(settings_stock_history_s / 2, COMPACTION_AGE_MAX_S) *
		USECS_PER_SEC;
}

/*
 * Adds the next items whose first row has become too old.  The next step looks
 * at them again: they may have more old rows.  It goes on if it finds the same
 * first rows, which then cannot be compacted now.
 */
static void
compaction_walk(ReturnSetInfo *result, int max)
{
	TimestampTz now = GetCurrentTimestamp();
	int			looks = COMPACTION_LOOKS_MAX;
	LedgerPosition position = walk_from;
	LedgerPosition old;
	LedgerFirst first;

	if (!walking && now < walk_at)
		return;
	if (!walking)
		walk_at = now + Max(compaction_age() / COMPACTION_WALKS, USECS_PER_SEC);
	walking = true;
	while (max > 0 && ledger_next_item(&position, &looks, &first))
	{
		if (first.at > now - compaction_age())
			continue;
		old.sku = position.sku;
		old.id = first.id - 1;
		if (walk_sum == 0)
			compaction_keep(&walk_old, &old);
		compaction_put(result, old.sku);
		walk_sum += first.id;
		max--;
	}
	compaction_keep(&walk_upto, &position);
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
	uint64		sum = walk_sum;
	bool		compacted;

	settings_prevent_write("stock_compact()");
	(void) stock_xact_begin();
	walk_sum = 0;
	compacted = DatumGetBool(compaction_move(&step, &fcinfo->args[0].value));
	compaction_keep(&walk_from, walk_sum == 0 || walk_sum == sum ?
					&walk_upto : &walk_old);
	walking = walk_from.sku != NULL;
	PG_RETURN_BOOL(compacted);
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
	Datum		moved = compaction_move(&step, &fcinfo->args[0].value);

	if (DatumGetInt64(moved) > 0)
		names_note_moved();
	PG_RETURN_DATUM(moved);
}

/*
 * SQL: stock_gather(restored, max_rows), a part of stock_forget.  Each call
 * goes on at the page where the last one ended, since the pages before it have
 * only rows that were moved.
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
	if (last_page >= 0)
		names_note_moved();
	PG_RETURN_BOOL(last_page >= 0 || !all_pages);
}

/*
 * SQL: stock_crowded(rows), some of the items whose log has more than this
 * number of rows, or rows that are old; the next call continues after them.
 */
Datum
stock_crowded(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	int			rows = PG_GETARG_INT32(0);
	EscrowLevel level;
	int			looks = 0;
	int			count = 0;
	Oid			log;

	shared_require("stock");
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	log = catalog_get()->stock_log;
	relation_hold(log, RowExclusiveLock);
	escrow_set_crowd(Max(rows, 0));
	for (; count < COMPACTION_ITEMS_MAX &&
		 escrow_next_crowded(&looks, log, rows, &level); count++)
		compaction_put(result, level.sku);
	compaction_walk(result, COMPACTION_ITEMS_MAX - count);
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
