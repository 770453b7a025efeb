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
 *
 * A transaction notes in the counters which queues could be served after it.
 * All queues are looked at only if that is not known: after a start, after
 * external DML, or if such a counter was evicted.
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
#include "base/subtransaction.h"
#include "stock/announce.h"
#include "stock/change.h"
#include "stock/escrow.h"
#include "stock/ledger.h"
#include "stock/queue.h"
#include "stock/stock_xact.h"

/* A step pins at most one of so many places. */
#define SERVE_PIN_SHARE 4
#define SERVE_ITEMS_MAX 1000	/* queues that a step may look at */

static bool met_lock = false;	/* was the first of a queue locked? */

/* Does the next step look at queues that counters know of? */
static bool some_called = false;

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

	Assert(line->waits && line->entry != 0);
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
 * Serves the queue of an item; returns how many have left it.  If all have, the
 * rest is available for others.  Each search begins where the first one may be:
 * beside an old snapshot, those that have left are still in the index.
 */
static int
serve_queue(text *sku, int max)
{
	StockLine	item = {.sku = sku};
	int			count = 0;
	bool		more;
	int64		from;
	uint64		look;
	QueueEntry	first;

	met_lock = false;
	if (!stock_xact_touch(&item, false))
		return 0;
	from = escrow_queue_from(stock_xact_item(&item), &look);
	while ((more = queue_first(item.sku, from, &first)) && count < max)
	{
		CHECK_FOR_INTERRUPTS();
		Assert(first.id >= from);
		if (count == 0)
			escrow_set_queue_from(stock_xact_item(&item), first.id, look);
		if (!serve_first(&item, &first))
			break;
		from = first.id + 1;
		count++;
	}
	if (!more && count > 0 && stock_xact_available(&item) > 0)
		announce_available(item.sku, stock_xact_available(&item));
	if (met_lock)
		escrow_call(stock_xact_item(&item));
	some_called |= met_lock;
	return count;
}

/*
 * SQL: stock_serve_item(sku, max_rows).
 */
Datum
stock_serve_item(PG_FUNCTION_ARGS)
{
	settings_prevent_write("stock_serve_item()");
	(void) stock_xact_begin();
	PG_RETURN_INT32(serve_queue(PG_GETARG_TEXT_PP(0), PG_GETARG_INT32(1)));
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

/* A queue that is served in a subtransaction. */
typedef struct ServeTry
{
	text	   *sku;
	int			max;
	int			count;			/* that have left it */
} ServeTry;

static void
serve_this(void *arg)
{
	ServeTry   *try = arg;

	try->count = serve_queue(try->sku, try->max);
}

/*
 * A queue could not be served: the next sweep tries again.  Returns false if
 * its counter does not know that, since it could not be loaded.
 */
static bool
serve_again(Oid log, const text *sku)
{
	EscrowItem *item = escrow_pin_loaded(log, sku);

	if (item == NULL)
		return false;
	escrow_call(item);
	escrow_unpin(item);
	some_called = true;
	return true;
}

/*
 * Serves some of the queues that counters know of, each in a subtransaction.
 * Returns whether it has looked at all of them, or could serve none: however
 * many are locked, the next look at them is the next sweep.  If some fail, one
 * of them is reported, unless quiet.
 */
static bool
serve_called(Oid log, int max_rows, bool quiet, bool *failed, bool *unknown)
{
	int			items = Min(settings_stock_items / SERVE_PIN_SHARE,
							SERVE_ITEMS_MAX);
	int			looks = 0;
	bool		stuck = max_rows > 0;
	ServeTry	try;

	some_called = false;
	for (; items > 0 && max_rows > 0 &&
		 escrow_next_called(&looks, log, &try.sku); items--)
	{
		ErrorData  *error;

		try.max = max_rows;
		try.count = 0;
		error = subtransaction_try(serve_this, &try, true);
		max_rows -= try.count;
		stuck &= error != NULL || met_lock;
		if (error == NULL)
			continue;
		if (!quiet && !*failed)
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("queue of \"%s\" could not be served",
							text_to_cstring(try.sku)),
					 errdetail_internal("%s", error->message)));
		*failed = true;
		*unknown |= !serve_again(log, try.sku);
	}
	return stuck || looks >= settings_stock_items;
}

/*
 * As serve_called, but without the calls of this session itself.
 */
static bool
serve_called_quietly(Oid log, int max_rows, bool quiet, bool *failed,
					 bool *unknown)
{
	volatile bool done = false;

	queue_ignore_calls(true);
	PG_TRY();
	{
		done = serve_called(log, max_rows, quiet, failed, unknown);
	}
	PG_FINALLY();
	{
		queue_ignore_calls(false);
	}
	PG_END_TRY();
	return done;
}

/*
 * SQL: stock_serve(max_rows), one step of the sweeper.  Returns whether there
 * is more to do at once.  A look at all queues continues where the last step
 * has ended.
 */
Datum
stock_serve(PG_FUNCTION_ARGS)
{
	static text *position = NULL;
	static bool all_called = true;	/* an earlier worker may have begun */
	static bool failing = false;
	static bool interrupted = false;	/* a step has taken calls in vain */
	Oid			log;
	bool		failed = false;
	bool		done;

	settings_prevent_write("stock_serve()");
	log = stock_xact_begin();
	if (position == NULL)
	{
		int			called = queue_take_call();

		all_called |= (called & QUEUE_ALL) != 0;
		some_called |= (called & QUEUE_SOME) != 0;
	}
	all_called |= interrupted;
	if (!all_called && !some_called)
		PG_RETURN_BOOL(false);
	interrupted = true;
	if (all_called)
	{
		text	   *last = serve_some(position, PG_GETARG_INT32(0), failing,
									  &failed);

		if (position != NULL)
			pfree(position);
		position = last;
		done = position == NULL;
		all_called = !done || failed;
	}
	else
		done = serve_called_quietly(log, PG_GETARG_INT32(0), failing, &failed,
									&all_called);
	if (done)
		failing = failed;
	some_called |= !done;
	interrupted = false;
	PG_RETURN_BOOL(!done);
}
