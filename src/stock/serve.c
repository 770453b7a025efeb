/*
 * serve.c
 *		The sweeper serves the queues of items: reservations that wait are
 *		reserved in the order in which they came, as soon as there is enough for
 *		the first one.
 *
 * Only committed quantities are given out, and only the first of a queue gets
 * any, however small the others are.  If it is locked, it may be leaving the
 * queue, and the others have to wait until that is certain.  Who serves is not
 * important, since the row in stock_hold is locked; so a second session that
 * calls stock_serve does no harm.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/announce.h"
#include "stock/change.h"
#include "stock/ledger.h"
#include "stock/queue.h"
#include "stock/stock_xact.h"

/* A step pins at most one of so many places. */
#define SERVE_PIN_SHARE 4
#define SERVE_ITEMS_MAX 1000	/* queues that a step may look at */

/* Was the first of a queue locked since the last look at all queues began? */
static bool met_lock = false;

PG_FUNCTION_INFO_V1(stock_serve);
PG_FUNCTION_INFO_V1(stock_serve_item);

/*
 * Reserves for the first of the queue, whose hold was read.  Returns false if
 * there is not enough, or if another transaction has locked it.
 */
static bool
serve_reserve(const QueueEntry *first, Holds *holds)
{
	StockLine  *line = holds->lines.line;
	TimestampTz expires_at;

	if (stock_xact_available(line) < first->quantity)
		return false;
	if (!holds_lock(holds, false))
	{
		met_lock = true;
		return false;
	}
	line->quantity = first->quantity;
	if (!stock_xact_take(line, true))
		return false;
	queue_leave(line);
	line->waits = false;
	line->opened_id = ledger_next_id();
	line->opened_at = GetCurrentTimestamp();
	expires_at = line->opened_at + first->ttl_us;
	stock_xact_will_lapse(line, expires_at);
	holds_serve(holds, first->reservation, expires_at);
	announce_change(STOCK_RESERVE, first->reservation, &holds->lines);
	announce_served(first->reservation, line, expires_at);
	shared_count(SHARED_RESERVED, 1);
	return true;
}

/*
 * Serves the first of the queue, or ends its wait if that is over.  Returns
 * false if that is not possible now.
 */
static bool
serve_first(StockLine *item, const QueueEntry *first)
{
	Holds		holds = holds_read(first->reservation);

	if (holds.lines.count != 1 || !holds.lines.line->waits ||
		holds.lines.line->opened_id != first->id ||
		args_compare_texts(holds.lines.line->sku, item->sku) != 0)
	{
		/* Another session was faster, or the rows are wrong. */
		met_lock = true;
		return false;
	}
	if (holds.expires_at <= GetCurrentTimestamp())
	{
		if (change_expire(first->reservation) > 0)
			return true;
		met_lock = true;
		return false;
	}
	holds.lines.line->entry = item->entry;
	return serve_reserve(first, &holds);
}

/*
 * SQL: stock_serve_item(sku, max_rows), serves the queue of an item; returns
 * how many have left it.  If all have, the rest is available for others.
 */
Datum
stock_serve_item(PG_FUNCTION_ARGS)
{
	StockLine	item = {.sku = PG_GETARG_TEXT_PP(0)};
	int			max = PG_GETARG_INT32(1);
	int			count = 0;
	bool		more;
	QueueEntry	first;

	settings_prevent_write("stock_serve_item()");
	(void) stock_xact_begin();
	if (!stock_xact_touch(&item, false))
		PG_RETURN_INT32(0);
	while ((more = queue_first(item.sku, &first)) && count < max)
	{
		CHECK_FOR_INTERRUPTS();
		if (!serve_first(&item, &first))
			break;
		count++;
	}
	if (!more && count > 0 && stock_xact_available(&item) > 0)
		announce_available(item.sku, stock_xact_available(&item));
	PG_RETURN_INT32(count);
}

static void
serve_run(SavedQuery *step, Datum *values, const char *nulls)
{
	queue_ignore_calls(true);
	PG_TRY();
	{
		query_run(step, values, nulls, false);
	}
	PG_FINALLY();
	{
		queue_ignore_calls(false);
	}
	PG_END_TRY();
}

/*
 * Serves some queues, those of items after this one.  Returns the last of them,
 * in TopMemoryContext, or NULL if there are no more.  If some fail, one of them
 * is reported, unless quiet.
 */
static text *
serve_some(const text *after, int max_rows, bool quiet, bool *failed)
{
	static SavedQuery step = {
		.sql = "SELECT sku, failed FROM idempotency_internal.stock_serve_next($1, $2, $3, $4)",
		.types = {TEXTOID, INT4OID, INT4OID, BOOLOID}
	};
	int			items = Min(settings_stock_items / SERVE_PIN_SHARE,
							SERVE_ITEMS_MAX);
	Datum		values[] = {
		PointerGetDatum(after), Int32GetDatum(items), Int32GetDatum(max_rows),
		BoolGetDatum(quiet)
	};
	text	   *last = NULL;
	Datum		sku;
	bool		isnull;

	SPI_connect();
	serve_run(&step, values, after == NULL ? "n   " : NULL);
	*failed = DatumGetBool(query_datum(0, 2, &isnull));
	sku = query_datum(0, 1, &isnull);
	if (!isnull)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		last = DatumGetTextPCopy(sku);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return last;
}

/*
 * SQL: stock_serve(max_rows), one step of the sweeper.  It looks at all queues
 * if it was called, or if the last look met a lock or an error, and continues
 * where the last step has ended.  Returns whether there is more to do at once.
 */
Datum
stock_serve(PG_FUNCTION_ARGS)
{
	static text *position = NULL;
	static bool looking = true; /* an earlier worker may have begun */
	static bool failing = false;
	text	   *last;
	bool		failed;

	settings_prevent_write("stock_serve()");
	(void) stock_xact_begin();
	if (position == NULL)
	{
		looking |= queue_was_called();
		met_lock = false;
	}
	if (!looking)
		PG_RETURN_BOOL(false);
	looking = true;
	last = serve_some(position, PG_GETARG_INT32(0), failing, &failed);
	if (position != NULL)
		pfree(position);
	position = last;
	met_lock |= failed;
	if (position == NULL)
		failing = failed;
	looking = position != NULL || met_lock;
	PG_RETURN_BOOL(position != NULL);
}
