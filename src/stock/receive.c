/*
 * receive.c
 *		stock_receive, stock_adjust, stock_transfer and stock_backorder: stock
 *		that comes in, is corrected after a count, moves to another item, or is
 *		promised before it comes in.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/settings.h"
#include "stock/ledger.h"
#include "stock/change.h"
#include "stock/item.h"
#include "stock/stock_xact.h"

PG_FUNCTION_INFO_V1(stock_receive);
PG_FUNCTION_INFO_V1(stock_adjust);
PG_FUNCTION_INFO_V1(stock_transfer);
PG_FUNCTION_INFO_V1(stock_backorder);

static void
receive_write(StockChange change, const StockLines *lines, const text *note,
			  const text *actor)
{
	LedgerEntry entry = {
		.change = change, .actor = actor, .note = note
	};

	ledger_write(&entry, lines);
}

static Datum
receive_available(const StockLines *lines)
{
	return Int64GetDatum(stock_xact_available(lines->line));
}

/*
 * Creates the item if it does not exist.
 */
static void
receive_create(StockLine *line)
{
	if (stock_xact_touch(line, false))
		return;
	(void) stock_xact_touch(line, true);
	item_create(line->sku);
	stock_xact_create(line);
}

/*
 * SQL: stock_receive(sku, quantity, note, actor).
 */
Datum
stock_receive(PG_FUNCTION_ARGS)
{
	StockLines	lines = lines_single_arg(fcinfo, 0, "sku", 1);
	text	   *reason = lines_note_arg(fcinfo, 2);
	text	   *actor = lines_actor_arg(fcinfo, 3);

	settings_prevent_write("stock_receive()");
	(void) stock_xact_begin();
	receive_create(lines.line);
	change_add(&lines, true);
	receive_write(STOCK_RECEIVE, &lines, reason, actor);
	return receive_available(&lines);
}

static void
receive_require(StockLine *line)
{
	if (!stock_xact_touch(line, false))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("item \"%s\" does not exist", text_to_cstring(line->sku)),
				 errhint("stock_receive() creates items.")));
}

static void
receive_take(const StockLines *lines, const char *what)
{
	int			mark;
	Shortages	shortages = change_take(lines, true, &mark);

	if (shortages.count > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_STOCK),
				 errmsg("%s of \"%s\" cannot be lowered by more than is available",
						what, text_to_cstring(lines->line->sku)),
				 errdetail("It was to be lowered by %lld; available: %lld.",
						   (long long) lines->line->quantity,
						   (long long) shortages.line->available)));
	stock_xact_remove(lines->line);
}

static StockLines
receive_delta_arg(FunctionCallInfo fcinfo, int64 *delta)
{
	StockLines	lines = {.count = 1, .line = palloc0(sizeof(StockLine))};

	lines.line->sku = lines_name_arg(fcinfo, 0, "sku");
	args_require(fcinfo, 1, "delta");
	*delta = PG_GETARG_INT64(1);
	if (*delta == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("delta must not be zero")));
	if (*delta == PG_INT64_MIN)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("delta is out of range")));
	lines.line->quantity = *delta < 0 ? -*delta : *delta;
	return lines;
}

/*
 * SQL: stock_adjust(sku, delta, note, actor).
 */
Datum
stock_adjust(PG_FUNCTION_ARGS)
{
	int64		delta;
	StockLines	lines = receive_delta_arg(fcinfo, &delta);
	text	   *reason = lines_note_arg(fcinfo, 2);
	text	   *actor = lines_actor_arg(fcinfo, 3);

	settings_prevent_write("stock_adjust()");
	(void) stock_xact_begin();
	receive_require(lines.line);
	if (delta < 0)
		receive_take(&lines, "stock");
	else
		change_add(&lines, true);
	lines.line->quantity = delta;
	receive_write(STOCK_ADJUST, &lines, reason, actor);
	return receive_available(&lines);
}

/*
 * SQL: stock_transfer(from_sku, to_sku, quantity, note, actor).  Writes two
 * rows of the log, the first with a negative quantity.  Creates the other item
 * if it does not exist.
 */
Datum
stock_transfer(PG_FUNCTION_ARGS)
{
	text	   *to_sku = lines_name_arg(fcinfo, 1, "to_sku");
	StockLines	from = lines_single_arg(fcinfo, 0, "from_sku", 2);
	StockLine	line = {.sku = to_sku, .quantity = from.line->quantity};
	StockLines	to = {.count = 1, .line = &line};
	text	   *reason = lines_note_arg(fcinfo, 3);
	text	   *actor = lines_actor_arg(fcinfo, 4);

	if (args_compare_texts(from.line->sku, to_sku) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("from_sku and to_sku must differ")));
	settings_prevent_write("stock_transfer()");
	(void) stock_xact_begin();
	receive_require(from.line);
	receive_take(&from, "stock");
	receive_create(&line);
	change_add(&to, true);
	from.line->quantity = -from.line->quantity;
	receive_write(STOCK_TRANSFER, &from, reason, actor);
	receive_write(STOCK_TRANSFER, &to, reason, actor);
	PG_RETURN_VOID();
}

/*
 * SQL: stock_backorder(sku, quantity, note, actor).  The log has by how much
 * the backorder changes, so the lock keeps another session from setting it.
 */
Datum
stock_backorder(PG_FUNCTION_ARGS)
{
	StockLines	lines = {.count = 1, .line = palloc0(sizeof(StockLine))};
	StockLine  *line = lines.line;
	int64		delta;
	text	   *reason;
	text	   *actor;

	line->sku = lines_name_arg(fcinfo, 0, "sku");
	args_require(fcinfo, 1, "quantity");
	if (PG_GETARG_INT64(1) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("quantity must not be negative")));
	reason = lines_note_arg(fcinfo, 2);
	actor = lines_actor_arg(fcinfo, 3);
	settings_prevent_write("stock_backorder()");
	(void) stock_xact_begin();
	change_lock_backorder(line->sku);
	receive_create(line);
	item_lock_for_load();
	delta = PG_GETARG_INT64(1) - item_backorder(line->sku);
	line->quantity = delta < 0 ? -delta : delta;
	if (delta < 0)
		receive_take(&lines, "backorder");
	else if (delta > 0)
		change_add(&lines, true);
	line->quantity = delta;
	if (delta != 0)
		receive_write(STOCK_BACKORDER, &lines, reason, actor);
	return receive_available(&lines);
}
