/*
 * reservation.c
 *		What becomes of a reservation: confirmed, cancelled, extended,
 *		reinstated, expired.
 *
 * Each reads the open lines as they are now, whatever snapshot the transaction
 * has, locks them, and looks again if somebody was faster: of two who settle
 * one reservation the second learns what the first has done.  Whether it has
 * lapsed is asked after that; a lapsed one expires as a whole.
 *
 * Confirming changes nothing that is available: what was reserved was not, and
 * will not be.
 */
#include "postgres.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/settings.h"
#include "stock/announce.h"
#include "stock/ledger.h"
#include "stock/change.h"
#include "stock/hold.h"
#include "stock/stock.h"
#include "stock/stock_xact.h"

/* The sweeper pins what its step frees: that must leave room for others. */
#define RESERVATION_PIN_SHARE 4
/* If this many reservations fail and none succeeds, the cause is common to all. */
#define RESERVATION_FAILURES_MAX 10

PG_FUNCTION_INFO_V1(stock_confirm);
PG_FUNCTION_INFO_V1(stock_cancel);
PG_FUNCTION_INFO_V1(stock_extend);
PG_FUNCTION_INFO_V1(stock_reinstate);
PG_FUNCTION_INFO_V1(stock_expire);

static text *
reservation_begin(FunctionCallInfo fcinfo, const char *function)
{
	text	   *reservation = lines_name_arg(fcinfo, 0, "reservation");

	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	return reservation;
}

/*
 * What to answer where a line has been settled in this way before.
 */
static StockSettlement
reservation_answer(StockChange past)
{
	switch (past)
	{
		case STOCK_CONFIRM:
			return STOCK_ALREADY_CONFIRMED;
		case STOCK_CANCEL:
			return STOCK_ALREADY_CANCELLED;
		case STOCK_EXPIRE:
			return STOCK_EXPIRED;
		default:
			return STOCK_UNKNOWN;
	}
}

/*
 * How the reservation ended that has no open lines: the way the last line went.
 */
static StockSettlement
reservation_past(const LedgerLines *past)
{
	const LedgerLine *last = NULL;

	for (int i = 0; i < past->count; i++)
	{
		if (last == NULL || last->id < past->line[i].id)
			last = &past->line[i];
	}
	return last == NULL ? STOCK_UNKNOWN : reservation_answer(last->last);
}

/*
 * Is each line that the reservation had at first open, or known to have been
 * settled?  The history drops rows of one line sooner than those of another.  The
 * holds were read before the past: a line goes from there to here.  Where it
 * was not written down how many there were, a gap tells.
 */
static bool
reservation_knows_all(const Holds *holds, const LedgerLines *past)
{
	bool	   *known = palloc0(STOCK_LINES_MAX * sizeof(bool));
	int			order = Max(holds->lines.order, past->order);
	bool		all = true;

	for (int i = 0; i < holds->lines.count; i++)
	{
		known[holds->lines.line[i].number] = true;
		order = Max(order, holds->lines.line[i].number + 1);
	}
	for (int i = 0; i < past->count; i++)
	{
		known[past->line[i].line.number] = true;
		order = Max(order, past->line[i].line.number + 1);
	}
	for (int i = 0; i < order && all; i++)
		all = known[i];
	pfree(known);
	return all;
}

/*
 * How the reservation ended that has no open lines.  Which way its last line
 * went cannot be told if one is forgotten.
 */
static StockSettlement
reservation_closed(const text *reservation, const Holds *holds)
{
	LedgerLines	past = ledger_read(reservation);

	return reservation_knows_all(holds, &past) ? reservation_past(&past) : STOCK_UNKNOWN;
}

/*
 * The open lines that are meant: those with these skus.
 */
static Holds
reservation_choose(const Holds *holds, const StockLines *skus)
{
	Holds		chosen = *holds;
	int			count = 0;

	if (skus->count == 0)
		return chosen;
	chosen.expiries = NULL;
	chosen.lines.line = palloc(holds->lines.count * sizeof(StockLine));
	chosen.tids = palloc(holds->lines.count * sizeof(ItemPointerData));
	for (int i = 0; i < holds->lines.count; i++)
	{
		if (lines_find(skus, holds->lines.line[i].sku) == NULL)
			continue;
		chosen.lines.line[count] = holds->lines.line[i];
		chosen.tids[count] = holds->tids[i];
		count++;
	}
	chosen.lines.count = count;
	return chosen;
}

static bool
reservation_is_open(const Holds *holds, const text *sku)
{
	for (int i = 0; i < holds->lines.count; i++)
	{
		if (args_compare_texts(holds->lines.line[i].sku, sku) == 0)
			return true;
	}
	return false;
}

static const LedgerLine *
reservation_find_past(const LedgerLines *past, const text *sku)
{
	for (int i = 0; i < past->count; i++)
	{
		if (args_compare_texts(past->line[i].line.sku, sku) == 0)
			return &past->line[i];
	}
	return NULL;
}

/*
 * Some of the lines that are named are not open.  Returns how they went: if not
 * all did as is asked for now, one of the others.  A line that never was
 * in the reservation is an error; one that is not known may have been.
 */
static StockSettlement
reservation_named_past(const text *reservation, const Holds *holds,
				  const StockLines *skus, StockChange change)
{
	LedgerLines	past = ledger_read(reservation);
	StockSettlement answer = STOCK_UNKNOWN;

	if (holds->lines.count == 0 && past.count == 0)
		return STOCK_UNKNOWN;
	for (int i = 0; i < skus->count; i++)
	{
		const text *sku = skus->line[i].sku;
		const LedgerLine *line = reservation_find_past(&past, sku);
		bool		open = reservation_is_open(holds, sku);

		CHECK_FOR_INTERRUPTS();
		if (!open && line == NULL && !reservation_knows_all(holds, &past))
			return STOCK_UNKNOWN;
		if (!open && line == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("sku \"%s\" is not in reservation \"%s\"",
							text_to_cstring(sku), text_to_cstring(reservation))));
		if (!open && (answer == STOCK_UNKNOWN || answer == reservation_answer(change)))
			answer = reservation_answer(line->last);
	}
	return answer;
}

/*
 * Without skus it is the lines still open that are meant, or, when there are
 * none, the way the last one went.  With skus, all of them must be open or
 * have gone this same way before; otherwise nothing is changed.  Returns
 * whether that is decided; if not, somebody else was faster.
 */
static bool
reservation_try(StockChange change, const text *reservation, const text *actor,
		   const StockLines *skus, StockSettlement *answer)
{
	Holds		holds = holds_read(reservation);
	Holds		chosen = reservation_choose(&holds, skus);

	if (holds.lines.count == 0 && skus->count == 0)
	{
		*answer = reservation_closed(reservation, &holds);
		return true;
	}
	if (chosen.lines.count < skus->count)
	{
		*answer = reservation_named_past(reservation, &holds, skus, change);
		if (chosen.lines.count == 0 || *answer != reservation_answer(change))
			return true;
	}
	if (holds.lines.count > 1 && !holds_lock(&holds, true))
		return false;
	if (holds.expires_at <= GetCurrentTimestamp())
	{
		*answer = STOCK_EXPIRED;
		return change_close(STOCK_EXPIRE, reservation, NULL, &holds, true);
	}
	*answer = STOCK_DONE;
	return change_close(change, reservation, actor, &chosen, true);
}

static Datum
reservation_reservation(FunctionCallInfo fcinfo, StockChange change,
				   const char *function)
{
	text	   *reservation = reservation_begin(fcinfo, function);
	StockLines	skus = lines_skus_arg(fcinfo, 1);
	text	   *actor = lines_actor_arg(fcinfo, 2);
	StockSettlement answer;

	(void) stock_xact_begin();
	while (!reservation_try(change, reservation, actor, &skus, &answer))
		CHECK_FOR_INTERRUPTS();
	PG_RETURN_OID(catalog_get()->stock_settlement[answer]);
}

/*
 * SQL: stock_confirm(reservation, skus, actor).
 */
Datum
stock_confirm(PG_FUNCTION_ARGS)
{
	return reservation_reservation(fcinfo, STOCK_CONFIRM, "stock_confirm()");
}

/*
 * SQL: stock_cancel(reservation, skus, actor).
 */
Datum
stock_cancel(PG_FUNCTION_ARGS)
{
	return reservation_reservation(fcinfo, STOCK_CANCEL, "stock_cancel()");
}

static Datum
reservation_record(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/*
 * As reservation_try, for stock_extend.
 */
static bool
reservation_try_extend(const text *reservation, TimestampTz wanted,
				  StockSettlement *answer, TimestampTz *expires_at)
{
	Holds		holds = holds_read(reservation);

	if (holds.lines.count == 0)
	{
		*answer = reservation_closed(reservation, &holds);
		return true;
	}
	if (!holds_lock(&holds, true))
		return false;
	if (holds.expires_at <= GetCurrentTimestamp())
	{
		*answer = STOCK_EXPIRED;
		return change_close(STOCK_EXPIRE, reservation, NULL, &holds, true);
	}
	holds_extend(&holds, reservation, wanted);
	*answer = STOCK_DONE;
	*expires_at = Max(wanted, holds.expires_at);
	return true;
}

/*
 * SQL: stock_extend(reservation, ttl).
 */
Datum
stock_extend(PG_FUNCTION_ARGS)
{
	text	   *reservation = reservation_begin(fcinfo, "stock_extend()");
	TimestampTz wanted = lines_expiry(fcinfo, 1, GetCurrentTimestamp());
	TimestampTz expires_at = 0;
	StockSettlement answer;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	(void) stock_xact_begin();
	while (!reservation_try_extend(reservation, wanted, &answer, &expires_at))
		CHECK_FOR_INTERRUPTS();
	values[0] = ObjectIdGetDatum(catalog_get()->stock_settlement[answer]);
	values[1] = TimestampTzGetDatum(expires_at);
	nulls[1] = answer != STOCK_DONE;
	return reservation_record(fcinfo, values, nulls);
}

/*
 * The lines that were closed last in this way, after a row of the log.
 */
static StockLines
reservation_closed_by(const LedgerLines *past, StockChange change, int64 after)
{
	StockLines	lines = {
		.line = palloc((past->count + 1) * sizeof(StockLine)),
		.order = past->order
	};

	for (int i = 0; i < past->count; i++)
	{
		if (past->line[i].last == change && past->line[i].id > after)
			lines.line[lines.count++] = past->line[i].line;
	}
	return lines;
}

/*
 * What stock_reinstate opens again: the lines that have expired; if none has,
 * those that were cancelled.  What was cancelled before the rest expired stays
 * so: the same call once more must not open it either.
 */
static StockLines
reservation_to_reopen(const LedgerLines *past)
{
	StockLines	lines = reservation_closed_by(past, STOCK_EXPIRE, 0);

	return lines.count > 0 ? lines :
		reservation_closed_by(past, STOCK_CANCEL, past->reopened);
}

/*
 * Lets the open lines expire, if they have lapsed.  Returns whether they are as
 * they should be; if not, somebody has been faster.
 */
static bool
reservation_lapsed(const text *reservation, const Holds *holds)
{
	if (holds->lines.count > 1 && !holds_lock(holds, true))
		return false;
	return change_close(STOCK_EXPIRE, reservation, NULL, holds, true);
}

/*
 * What stock_reinstate answers where there is nothing to open again.
 */
static StockSettlement
reservation_nothing_to_reopen(const Holds *holds, const LedgerLines *past)
{
	return holds->lines.count > 0 ? STOCK_ALREADY_RESERVED : reservation_past(past);
}

/*
 * Opens closed lines again, each under its number, so that only one of two can
 * do it.  The others last as long: a reservation expires as a whole.
 */
static bool
reservation_reopen(const text *reservation, const text *actor, const Holds *holds,
			  const StockLines *closed, TimestampTz expires_at)
{
	LedgerEntry	entry = {
		.change = STOCK_REINSTATE,
		.reservation = reservation,
		.actor = actor
	};
	ItemPointerData *tids = palloc(closed->count * sizeof(ItemPointerData));

	change_note_expiry(closed, expires_at);
	if (!holds_lock(holds, true) ||
		!holds_open(reservation, closed, expires_at, tids))
		return false;
	holds_extend(holds, reservation, expires_at);
	ledger_write(&entry, closed);
	announce_change(STOCK_REINSTATE, reservation, closed);
	return true;
}

/*
 * Is a line forgotten, which could be opened again?  The reservation may be
 * changing just now, and look so to a dirty look: then this is read again.
 */
static bool
reservation_is_forgotten(const text *reservation)
{
	Holds		holds = holds_read(reservation);
	LedgerLines	past = ledger_read(reservation);

	return !reservation_knows_all(&holds, &past);
}

/*
 * As reservation_try, for stock_reinstate.  Open lines that have lapsed expire first.
 */
static bool
reservation_try_reinstate(const text *reservation, const text *actor,
					 TimestampTz *expires_at, StockSettlement *answer,
					 Shortages *shortages)
{
	Holds		holds = holds_read_settled(reservation);
	LedgerLines	past = ledger_read(reservation);
	StockLines	closed = reservation_to_reopen(&past);
	int			mark;

	if (holds.lines.count > 0 && holds.expires_at <= GetCurrentTimestamp())
	{
		(void) reservation_lapsed(reservation, &holds);
		return false;
	}
	if (!reservation_knows_all(&holds, &past))
	{
		*answer = STOCK_UNKNOWN;
		return reservation_is_forgotten(reservation);
	}
	*answer = reservation_nothing_to_reopen(&holds, &past);
	if (closed.count == 0)
		return true;
	*answer = STOCK_FALLS_SHORT;
	*shortages = change_take(&closed, &mark);
	if (shortages->count > 0)
		return true;
	if (holds.lines.count > 0)
		*expires_at = Max(*expires_at, holds.expires_at);
	*answer = STOCK_DONE;
	if (reservation_reopen(reservation, actor, &holds, &closed, *expires_at))
		return true;
	stock_xact_undo(mark);
	return false;
}

/*
 * SQL: stock_reinstate(reservation, ttl, actor).
 */
Datum
stock_reinstate(PG_FUNCTION_ARGS)
{
	text	   *reservation = reservation_begin(fcinfo, "stock_reinstate()");
	TimestampTz expires_at = lines_expiry(fcinfo, 1, GetCurrentTimestamp());
	text	   *actor = lines_actor_arg(fcinfo, 2);
	Shortages	shortages = {0};
	StockSettlement answer;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	(void) stock_xact_begin();
	while (!reservation_try_reinstate(reservation, actor, &expires_at, &answer,
								 &shortages))
		CHECK_FOR_INTERRUPTS();
	values[0] = ObjectIdGetDatum(catalog_get()->stock_settlement[answer]);
	values[1] = TimestampTzGetDatum(expires_at);
	nulls[1] = answer != STOCK_DONE;
	values[2] = change_shortages_datum(&shortages);
	return reservation_record(fcinfo, values, nulls);
}

/*
 * Lets all of them expire that nobody has locked, up to a number of lines, or
 * none.  Returns whether it could; what went wrong is undone, and reported if
 * it is about a single one, and the first.
 */
static bool
reservation_try_expire(text **lapsed, int count, int max, int64 *expired, int *failed)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile int64 lines = *expired;
	volatile bool done = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		for (int i = 0; i < count && lines < max; i++)
		{
			CHECK_FOR_INTERRUPTS();
			lines += change_expire(lapsed[i]);
		}
		ReleaseCurrentSubTransaction();
		*expired = lines;
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		if (count == 1 && ++*failed == 1)
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("reservation \"%s\" could not expire",
							text_to_cstring(lapsed[0])),
					 errdetail_internal("%s", error->message)));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return done;
}

/*
 * The sweeper rests after an error: what keeps all of them from expiring will be
 * there in a moment, and each try takes transaction ids.
 */
static void
reservation_report_failed(int failed, int64 expired)
{
	if (failed >= RESERVATION_FAILURES_MAX && expired == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("none of %d lapsed reservations could expire", failed)));
	if (failed > 1)
		ereport(WARNING,
				(errmsg_plural("nor could %d other reservation",
							   "nor could %d other reservations",
							   failed - 1, failed - 1)));
}

/*
 * One that cannot expire, because its event is too large, say, does not keep the
 * others: each is tried alone then.
 */
static int64
reservation_expire(text **lapsed, int count, int max, int *failed)
{
	int64		expired = 0;

	if (count > 1 && reservation_try_expire(lapsed, count, max, &expired, failed))
		return expired;
	for (int i = 0; i < count && expired < max; i++)
		(void) reservation_try_expire(&lapsed[i], 1, max, &expired, failed);
	return expired;
}

/*
 * Goes on where the last call ended, until some expire, or there are no more, or
 * so many were tried.  What fails keeps no pins.
 */
static int64
reservation_expire_some(int max)
{
	static HoldsPosition position = {.expires_at = DT_NOBEGIN};
	int			batch = Min(max, settings_stock_items / RESERVATION_PIN_SHARE);
	int64		expired = 0;
	int			failed = 0;
	int			tried = 0;

	do
	{
		text	  **lapsed;
		int			count = holds_lapsed_from(&position, Min(batch, max - tried),
											  &lapsed);

		expired = reservation_expire(lapsed, count, batch, &failed);
		tried += count;
	} while (expired == 0 && tried < max && position.expires_at != DT_NOBEGIN);
	reservation_report_failed(failed, expired);
	return expired;
}

/*
 * SQL: stock_expire(max_holds).  Reservations that somebody has locked are left
 * for the next time: the sweeper never waits.  However many cannot expire, those
 * behind them have their turn.
 */
Datum
stock_expire(PG_FUNCTION_ARGS)
{
	int			max;

	PreventCommandDuringRecovery("stock_expire()");
	PreventCommandIfReadOnly("stock_expire()");
	args_require(fcinfo, 0, "max_holds");
	max = PG_GETARG_INT32(0);
	if (max <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_holds must be positive")));

	(void) stock_xact_begin();
	PG_RETURN_INT64(reservation_expire_some(max));
}
