/*
 * reservation.c
 *		What happens to a reservation after it was made: it is confirmed,
 *		cancelled, extended, reinstated, or expires.
 *
 * Each function reads the open lines as they are now, independent of the
 * transaction's snapshot, locks them, and reads them again if another
 * transaction was faster.  So of two transactions that settle one reservation
 * the second learns the outcome of the first.  Whether the reservation has
 * lapsed is checked after locking; a lapsed reservation expires as a whole.
 *
 * Confirming does not change the available quantity: what was reserved was not
 * available and will not be.
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/subtransaction.h"
#include "stock/announce.h"
#include "stock/ledger.h"
#include "stock/change.h"
#include "stock/escrow.h"
#include "stock/hold.h"
#include "stock/lapse.h"
#include "stock/reservation.h"
#include "stock/stock.h"
#include "stock/stock_xact.h"

/* A step of the sweeper pins at most one of so many places. */
#define RESERVATION_PIN_SHARE 4
#define RESERVATION_ITEMS_MAX 10000 /* items that a step searches */
/* A search of all items takes at most one of so many parts of the time. */
#define RESERVATION_SEARCH_SHARE 10
#define RESERVATION_SEARCH_REST_MAX_US (30 * USECS_PER_SEC)
#define RESERVATION_SEARCH_SHORT_US (100 * INT64CONST(1000))	/* no rest */
/* If so many reservations fail and none succeeds, the cause is a common one. */
#define RESERVATION_FAILURES_MAX 10

PG_FUNCTION_INFO_V1(stock_confirm);
PG_FUNCTION_INFO_V1(stock_cancel);
PG_FUNCTION_INFO_V1(stock_extend);
PG_FUNCTION_INFO_V1(stock_reinstate);
PG_FUNCTION_INFO_V1(stock_expire);

text *
reservation_begin(FunctionCallInfo fcinfo, const char *function)
{
	text	   *reservation = lines_name_arg(fcinfo, 0, "reservation");

	settings_prevent_write(function);
	return reservation;
}

/*
 * Returns the answer for a line whose last change was this one.
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
 * Returns how a reservation without open lines ended: by the last change of any
 * of its lines.
 */
static StockSettlement
reservation_answer_past(const LedgerLines *past)
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
 * Is every line that the reservation had at the start either open or known to
 * have been settled?  The history may drop the rows of one line sooner than
 * those of another.  The holds must have been read before the past, since lines
 * move from there to here.  If the number of lines was not recorded, a gap in
 * their numbers shows that one is missing.
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
	Assert(order <= STOCK_LINES_MAX);
	for (int i = 0; i < order && all; i++)
		all = known[i];
	pfree(known);
	return all;
}

/*
 * As reservation_answer_past, but returns STOCK_UNKNOWN if the rows of a line
 * were dropped, since that may have been the last line to change.
 */
StockSettlement
reservation_answer_closed(const text *reservation, const Holds *holds)
{
	LedgerLines past = ledger_read(reservation);

	if (!reservation_knows_all(holds, &past))
		return STOCK_UNKNOWN;
	return reservation_answer_past(&past);
}

/*
 * Returns the open lines with these skus; without skus, all of them.
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

/*
 * If the reservation had several lines of the item, one after the other,
 * returns the last one.
 */
static const LedgerLine *
reservation_find_past(const LedgerLines *past, const text *sku)
{
	const LedgerLine *last = NULL;

	for (int i = 0; i < past->count; i++)
	{
		const LedgerLine *line = &past->line[i];

		if (args_compare_texts(line->line.sku, sku) == 0 &&
			(last == NULL || last->id < line->id))
			last = line;
	}
	return last;
}

/*
 * Some of the named lines are not open.  Returns how they were settled; if any
 * was settled otherwise than now requested, returns that.  Raises an error for
 * a sku that never was in the reservation, unless rows were dropped: then it
 * may have been.
 */
static StockSettlement
reservation_answer_named(const text *reservation, const Holds *holds,
						 const StockLines *skus, StockChange change)
{
	LedgerLines past = ledger_read(reservation);
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
							text_to_cstring(sku),
							text_to_cstring(reservation))));
		if (!open &&
			(answer == STOCK_UNKNOWN || answer == reservation_answer(change)))
			answer = reservation_answer(line->last);
	}
	return answer;
}

/*
 * Without skus, settles all open lines; if there are none, returns how the
 * last one was settled.  With skus, each of them must be open or have been
 * settled in this same way; otherwise nothing is changed.  Returns false if
 * another transaction was faster and the caller has to try again.
 */
static bool
reservation_try_settle(StockChange change, const text *reservation,
					   const text *actor, const StockLines *skus,
					   StockSettlement *answer)
{
	Holds		holds = holds_read(reservation);
	Holds		chosen = reservation_choose(&holds, skus);

	if (holds.lines.count == 0 && skus->count == 0)
	{
		*answer = reservation_answer_closed(reservation, &holds);
		return true;
	}
	if (chosen.lines.count < skus->count)
	{
		*answer = reservation_answer_named(reservation, &holds, skus, change);
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
	*answer = STOCK_WAITS;
	if (change == STOCK_CONFIRM && holds_wait(&holds))
		return true;
	*answer = STOCK_DONE;
	return change_close(change, reservation, actor, &chosen, true);
}

static Datum
reservation_settle(FunctionCallInfo fcinfo, StockChange change,
				   const char *function)
{
	text	   *reservation = reservation_begin(fcinfo, function);
	StockLines	skus = lines_skus_arg(fcinfo, 1);
	text	   *actor = lines_actor_arg(fcinfo, 2);
	StockSettlement answer;

	(void) stock_xact_begin();
	while (!reservation_try_settle(change, reservation, actor, &skus, &answer))
		CHECK_FOR_INTERRUPTS();
	PG_RETURN_OID(catalog_get()->stock_settlement[answer]);
}

/*
 * SQL: stock_confirm(reservation, skus, actor).
 */
Datum
stock_confirm(PG_FUNCTION_ARGS)
{
	return reservation_settle(fcinfo, STOCK_CONFIRM, "stock_confirm()");
}

/*
 * SQL: stock_cancel(reservation, skus, actor).
 */
Datum
stock_cancel(PG_FUNCTION_ARGS)
{
	return reservation_settle(fcinfo, STOCK_CANCEL, "stock_cancel()");
}

static Datum
reservation_record(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values,
											 nulls));
}

/*
 * As reservation_try_settle, for stock_extend.
 */
static bool
reservation_try_extend(const text *reservation, TimestampTz wanted,
					   StockSettlement *answer, TimestampTz *expires_at)
{
	Holds		holds = holds_read(reservation);

	if (holds.lines.count == 0)
	{
		*answer = reservation_answer_closed(reservation, &holds);
		return true;
	}
	*answer = STOCK_WAITS;
	if (holds_wait(&holds) && holds.expires_at > GetCurrentTimestamp())
		return true;
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
 * Returns the lines whose last change is this one, later than a row of the log.
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
 * Returns the lines that stock_reinstate opens again: those that have expired;
 * if there are none, those that were cancelled.  Lines that were cancelled
 * before the others expired stay cancelled, so a repeated call must not open
 * them either; that is why only cancellations after the last reinstatement
 * count.
 */
static StockLines
reservation_to_reopen(const LedgerLines *past)
{
	StockLines	lines = reservation_closed_by(past, STOCK_EXPIRE, 0);

	return lines.count > 0 ? lines :
		reservation_closed_by(past, STOCK_CANCEL, past->reopened);
}

bool
reservation_lapsed(const text *reservation, const Holds *holds)
{
	if (holds->lines.count > 1 && !holds_lock(holds, true))
		return false;
	return change_close(STOCK_EXPIRE, reservation, NULL, holds, true);
}

/*
 * Returns the answer of stock_reinstate if there is nothing to open.
 */
static StockSettlement
reservation_nothing_to_reopen(const Holds *holds, const LedgerLines *past)
{
	if (holds->lines.count == 0)
		return reservation_answer_past(past);
	return holds_wait(holds) ? STOCK_WAITS : STOCK_ALREADY_RESERVED;
}

/*
 * Opens closed lines again.  Each keeps its number, so only one of two
 * concurrent calls succeeds.  The expiry of the lines that are still open is
 * extended, since a reservation expires as a whole.
 */
static bool
reservation_reopen(const text *reservation, const text *actor,
				   const Holds *holds, const StockLines *closed,
				   TimestampTz expires_at)
{
	if (!holds_lock(holds, true) ||
		!change_reopen(reservation, actor, closed, expires_at))
		return false;
	holds_extend(holds, reservation, expires_at);
	announce_change(STOCK_REINSTATE, reservation, closed);
	return true;
}

/*
 * Were rows of a line dropped that could be opened again?  The first look used
 * a dirty snapshot, which a concurrent change can mislead, so both are read
 * again.
 */
static bool
reservation_is_forgotten(const text *reservation)
{
	Holds		holds = holds_read(reservation);
	LedgerLines past = ledger_read(reservation);

	return !reservation_knows_all(&holds, &past);
}

/*
 * As reservation_try_settle, for stock_reinstate.  Open lines that have lapsed
 * expire first.
 */
static bool
reservation_try_reinstate(const text *reservation, const text *actor,
						  TimestampTz *expires_at, StockSettlement *answer,
						  Shortages *shortages)
{
	Holds		holds = holds_read_settled(reservation);
	LedgerLines past = ledger_read(reservation);
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
	*shortages = change_take(&closed, false, &mark);
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

Datum
reservation_result(FunctionCallInfo fcinfo, StockSettlement answer,
				   TimestampTz expires_at, const Shortages *shortages)
{
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	values[0] = ObjectIdGetDatum(catalog_get()->stock_settlement[answer]);
	values[1] = TimestampTzGetDatum(expires_at);
	nulls[1] = answer != STOCK_DONE;
	values[2] = change_shortages_datum(shortages);
	return reservation_record(fcinfo, values, nulls);
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

	(void) stock_xact_begin();
	change_lock_closed(reservation);
	ledger_keep();
	while (!reservation_try_reinstate(reservation, actor, &expires_at, &answer,
									  &shortages))
		CHECK_FOR_INTERRUPTS();
	return reservation_result(fcinfo, answer, expires_at, &shortages);
}

/* Reservations that expire in one subtransaction. */
typedef struct ExpiryTry
{
	text	  **lapsed;
	int			count;
	int64		max;			/* lines */
	int64		lines;			/* that have expired, including earlier tries */
} ExpiryTry;

static void
reservation_expire_these(void *arg)
{
	ExpiryTry  *try = arg;

	for (int i = 0; i < try->count && try->lines < try->max; i++)
	{
		CHECK_FOR_INTERRUPTS();
		try->lines += change_expire(try->lapsed[i]);
	}
}

/*
 * In a subtransaction, lets these reservations expire, except locked ones,
 * until max lines have expired.  On an error all of that is rolled back and
 * false is returned.  The error is reported only if it concerns a single
 * reservation and is the first one.
 */
static bool
reservation_try_expire(text **lapsed, int count, int max, int64 *expired,
					   int *failed)
{
	ExpiryTry	try = {lapsed, count, max, *expired};
	ErrorData  *error = subtransaction_try(reservation_expire_these, &try,
										   true);

	if (error == NULL)
		*expired = try.lines;
	else if (count == 1 && ++*failed == 1)
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("reservation \"%s\" could not expire",
						text_to_cstring(lapsed[0])),
				 errdetail_internal("%s", error->message)));
	return error == NULL;
}

/*
 * Raises an error if nothing expired, so that the sweeper pauses: the cause
 * will not go away at once, and each try uses transaction ids.
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
 * A reservation that cannot expire, for example because its event is too large,
 * must not keep the others from it.  So after an error each is tried alone.
 */
static int64
reservation_expire(text **lapsed, int count, int max, int *failed)
{
	int64		expired = 0;

	if (count > 1 &&
		reservation_try_expire(lapsed, count, max, &expired, failed))
		return expired;
	for (int i = 0; i < count && expired < max; i++)
		(void) reservation_try_expire(&lapsed[i], 1, max, &expired, failed);
	return expired;
}

/*
 * Remembers a position until the next call.  The copy is made first: if that
 * fails, the position before it is kept.
 */
static void
reservation_keep_position(HoldsPosition *kept, const HoldsPosition *position)
{
	HoldsPosition copy = *position;

	if (copy.sku != NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		copy.sku = DatumGetTextPCopy(PointerGetDatum(copy.sku));
		MemoryContextSwitchTo(old);
	}
	if (kept->sku != NULL)
		pfree(kept->sku);
	*kept = copy;
}

/*
 * Finds the next item that may have lapsed reservations: those of this
 * transaction, which no counter has to know, or else those that counters know.
 */
static bool
reservation_next_due(Oid log, int *own, int *looks, EscrowDue *due)
{
	bool		none = *own == 0;

	if (stock_xact_next_lapsed(own, due))
		return true;
	if (none)
		*own = 0;
	return *own == 0 &&
		escrow_next_due(looks, log, GetCurrentTimestamp(), due);
}

/*
 * Lets reservations expire of items whose counters say that some have lapsed.
 * If as many as are looked at are locked or cannot expire, they may hide others
 * of their item, so all items are searched.  A round of calls of which none
 * lets any expire ends when all items have been looked at.
 */
static int64
reservation_expire_known(int batch, int *failed, bool *more)
{
	Oid			log = catalog_get()->stock_log;
	text	  **lapsed = palloc(mul_size(batch, sizeof(text *)));
	int			count = 0;
	int			own = 0;
	static int	looks = 0;
	static bool in_round = false;
	int			searched = 0;
	int64		expired;
	EscrowDue	due;

	if (!in_round)
		looks = 0;
	in_round = false;			/* after an error */
	while (count < batch && searched++ < RESERVATION_ITEMS_MAX &&
		   reservation_next_due(log, &own, &looks, &due))
	{
		TimestampTz next;
		text	  **found;
		int			names = holds_lapsed(due.sku, due.from, batch - count,
										 false, &found, &next);

		CHECK_FOR_INTERRUPTS();
		Assert(names <= batch - count);
		if (names == 0 && stock_xact_sees_committed())
			escrow_none_lapses_of(log, &due, next);
		for (int i = 0; i < names; i++)
			lapsed[count++] = found[i];
	}
	*more = searched > RESERVATION_ITEMS_MAX;
	expired = reservation_expire(lapsed, count, batch, failed);
	in_round = *more && expired == 0;
	if (count == batch && expired == 0)
		lapse_note(0);
	return expired;
}

/* The search of all items, which may take several calls. */
static struct
{
	bool		begun;
	HoldsPosition position;		/* where it continues */
	TimestampTz next;			/* when there has to be another */
	int64		spent_us;		/* how long it has taken so far */
	TimestampTz rest_until;
}			search = {.begun = true};	/* an earlier worker may have begun */

/*
 * One step of a search of all items, which begins only if a reservation may
 * have lapsed of an item without a counter.  It may leave some that are locked
 * or cannot expire, so after a search that has found any, there is another.  A
 * failed try keeps no pins.
 */
static int64
reservation_expire_unknown(int batch, int *failed)
{
	TimestampTz begin = GetCurrentTimestamp();
	HoldsPosition position = search.position;
	int64		expired;
	text	  **lapsed;
	int			count;

	if (!search.begun)
	{
		if (begin < search.rest_until || !lapse_take(begin))
			return 0;
		search.begun = true;
	}
	if (position.sku == NULL)
	{
		search.next = DT_NOEND;
		search.spent_us = 0;
	}
	count = holds_lapsed_from(&position, batch, &lapsed, &search.next);
	if (count > 0)
		search.next = begin;
	expired = reservation_expire(lapsed, count, batch, failed);
	reservation_keep_position(&search.position, &position);
	search.spent_us += GetCurrentTimestamp() - begin;
	search.begun = position.sku != NULL;
	if (search.begun)
		return expired;
	if (search.next != DT_NOEND)
		lapse_note(search.next);
	if (search.spent_us > RESERVATION_SEARCH_SHORT_US)
		search.rest_until = begin +
			Min(RESERVATION_SEARCH_REST_MAX_US,
				RESERVATION_SEARCH_SHARE * search.spent_us);
	return expired;
}

/*
 * Returns how many lines have expired, or -1: none, but the search goes on.
 */
static int64
reservation_expire_some(int max)
{
	int			batch = Min(max, settings_stock_items / RESERVATION_PIN_SHARE);
	int			failed = 0;
	int64		expired;
	bool		more;

	expired = reservation_expire_known(batch, &failed, &more);
	if (expired == 0)
		expired = reservation_expire_unknown(batch, &failed);
	reservation_report_failed(failed, expired);
	return expired == 0 && (more || search.begun) ? -1 : expired;
}

/*
 * SQL: stock_expire(max_holds).  Never waits: locked reservations are left for
 * the next time.  Reservations that cannot expire do not block later ones.
 */
Datum
stock_expire(PG_FUNCTION_ARGS)
{
	int			max;

	settings_prevent_write("stock_expire()");
	args_require(fcinfo, 0, "max_holds");
	max = PG_GETARG_INT32(0);
	if (max <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_holds must be positive")));

	(void) stock_xact_begin();
	PG_RETURN_INT64(reservation_expire_some(max));
}
