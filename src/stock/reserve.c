/*
 * reserve.c
 *		stock_reserve and stock_reserve_many: all lines of a reservation or none
 *		of them, and only once however often they are called.
 *
 * The counters decide about the quantities, and the primary key of stock_hold
 * about the name.  Usually the name is new, as the filter of names knows, and
 * enough is available.  If not, the name is searched.  An open reservation with
 * the same lines gets the same answer again; a closed one is an error; if
 * another transaction is using the same name, the caller waits for it.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "stock/announce.h"
#include "stock/ledger.h"
#include "stock/change.h"
#include "stock/hold.h"
#include "stock/stock_xact.h"

#define RESERVE_LOOKS_MAX 1000	/* tries while the rows of a name change */

typedef struct Order
{
	text	   *reservation;
	text	   *actor;
	StockLines	lines;
	FunctionCallInfo fcinfo;
	int			ttl_arg;
	ReservationName name;
	ItemPointerData *tids;		/* of the rows of the hold */
} Order;

typedef struct OrderAnswer
{
	StockOutcome outcome;
	TimestampTz expires_at;		/* if it is reserved */
	Shortages	shortages;
} OrderAnswer;

PG_FUNCTION_INFO_V1(stock_reserve);
PG_FUNCTION_INFO_V1(stock_reserve_many);

static void
reserve_raise_closed(const Order *order, StockChange change, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_RESERVATION_CLOSED),
			 errmsg("reservation \"%s\" is closed",
					text_to_cstring(order->reservation)),
			 change == STOCK_CONFIRM ? errdetail("%s was confirmed.", what) :
			 change == STOCK_CANCEL ? errdetail("%s was cancelled.", what) :
			 change == STOCK_EXPIRE ? errdetail("%s has expired.", what) :
			 errdetail("%s was settled; how is not remembered any more.", what),
			 errhint("Reserve under another name.")));
}

static bool
reserve_same_lines(const StockLines *a, const StockLines *b)
{
	if (a->count != b->count)
		return false;
	for (int i = 0; i < a->count; i++)
	{
		if (a->line[i].quantity != b->line[i].quantity ||
			args_compare_texts(a->line[i].sku, b->line[i].sku) != 0)
			return false;
	}
	return true;
}

/*
 * Returns the last change that closed a line of the reservation, or NULL.
 */
static const LedgerLine *
reserve_last_closed(const LedgerLines *past)
{
	const LedgerLine *last = NULL;

	for (int i = 0; i < past->count; i++)
	{
		const LedgerLine *line = &past->line[i];

		if (line->last != STOCK_RESERVE && line->last != STOCK_REINSTATE &&
			(last == NULL || last->id < line->id))
			last = line;
	}
	return last;
}

/*
 * Are the open lines all lines that the reservation ever had?  If their number
 * was not recorded, any settled line shows that they are not.
 */
static bool
reserve_is_whole(const text *reservation, const Holds *holds)
{
	if (holds->lines.order != 0)
		return holds->lines.count == holds->lines.order;
	return !ledger_is_settled(reservation);
}

/*
 * Looks the name up.  Returns true, and the answer, if the reservation is open
 * with these lines.  Raises an error if it has other lines or is closed, even
 * in part.  Sets *again if the reservation is being changed at the moment.
 */
static bool
reserve_replay(const Order *order, OrderAnswer *answer, bool *again)
{
	Holds		holds = holds_read_settled(order->reservation);
	OrderAnswer present = {
		.outcome = STOCK_RESERVED,
		.expires_at = holds.expires_at
	};
	const LedgerLine *closed;
	LedgerLines past;

	*again = false;
	if (holds.lines.count > 0 && holds.expires_at <= GetCurrentTimestamp())
		reserve_raise_closed(order, STOCK_EXPIRE, "It");
	*answer = present;
	if (reserve_same_lines(&holds.lines, &order->lines) &&
		reserve_is_whole(order->reservation, &holds))
		return true;
	if (holds.lines.count == 0 && !ledger_is_settled(order->reservation))
		return false;

	past = ledger_read(order->reservation);
	closed = reserve_last_closed(&past);
	if (closed != NULL)
		reserve_raise_closed(order, closed->last,
							 holds.lines.count == 0 ? "It" : "A line of it");
	/* The dirty scan may have missed a line that is being extended. */
	holds = holds_read(order->reservation);
	if (holds.lines.count < holds.lines.order)
		reserve_raise_closed(order, STOCK_CHANGES, "A line of it");
	if (holds.lines.count > 0 && holds.lines.order == 0 &&
		reserve_same_lines(&holds.lines, &order->lines))
	{
		answer->expires_at = holds.expires_at;
		return true;			/* its settled lines were reinstated */
	}
	if (holds.lines.count > 0 &&
		!reserve_same_lines(&holds.lines, &order->lines))
		ereport(ERROR,
				(errcode(ERRCODE_RESERVATION_REUSED),
				 errmsg("reservation \"%s\" exists with other lines",
						text_to_cstring(order->reservation)),
				 errhint("Reserve under another name.")));
	*again = true;
	return false;
}

/*
 * Notes in each line who has opened it, and when.
 */
static void
reserve_sign(const Order *order)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < order->lines.count; i++)
	{
		StockLine  *line = &order->lines.line[i];

		line->opened_id = ledger_next_id();
		line->opened_at = now;
		line->opened_by = order->actor;
	}
}

/*
 * Writes the rows of the holds.  Returns whether the name was free: no line
 * with this name is open, and none was ever settled.  If it was not, nothing is
 * changed.
 *
 * The caller has searched a name that may be known.  The insert decides between
 * two transactions that both find nothing.  A line 0 of the other transaction
 * is then either open, so that the insert fails, or settled, which the second
 * search finds.
 */
static bool
reserve_take_name(const Order *order, OrderAnswer *answer)
{
	reserve_sign(order);
	change_note_expiry(&order->lines, answer->expires_at);
	if (!holds_open(order->reservation, &order->name, &order->lines,
					answer->expires_at, order->tids))
		return false;
	if (order->name.is_new || !ledger_is_settled(order->reservation))
		return true;
	holds_withdraw(order->tids, order->lines.count);
	return false;
}

/*
 * Takes the quantities and the name.  Returns false, with nothing changed, if
 * the name was not free.
 */
static bool
reserve_take(const Order *order, OrderAnswer *answer)
{
	int			mark;

	answer->shortages = change_take(&order->lines, &mark);
	if (answer->shortages.count > 0)
	{
		answer->outcome = answer->shortages.unknown ?
			STOCK_UNKNOWN_SKU : STOCK_INSUFFICIENT;
		return true;
	}
	if (!reserve_take_name(order, answer))
	{
		stock_xact_undo(mark);
		return false;
	}
	answer->outcome = STOCK_RESERVED;
	announce_change(STOCK_RESERVE, order->reservation, &order->lines);
	return true;
}

/*
 * Handles a new name.  If the quantities fall short, another transaction with
 * the same name may have them, so that case is left to reserve_try.
 */
static bool
reserve_at_once(const Order *order, OrderAnswer *answer)
{
	return reserve_take(order, answer) && answer->outcome == STOCK_RESERVED;
}

/*
 * Handles any case once.  Returns false if the caller has to try again.
 */
static bool
reserve_try(Order *order, OrderAnswer *answer)
{
	bool		again;

	names_note(&order->name);
	if (reserve_replay(order, answer, &again))
		return true;
	if (again)
		return false;
	answer->expires_at = lines_expiry(order->fcinfo, order->ttl_arg,
									  GetCurrentTimestamp());
	return reserve_take(order, answer);
}

static Datum
reserve_result(const OrderAnswer *answer)
{
	const Catalog *catalog = catalog_get();
	Datum		values[3];
	bool		nulls[3] = {false};

	values[0] = ObjectIdGetDatum(catalog->stock_outcome[answer->outcome]);
	values[1] = TimestampTzGetDatum(answer->expires_at);
	nulls[1] = answer->outcome != STOCK_RESERVED;
	values[2] = change_shortages_datum(&answer->shortages);
	return args_form_row(catalog->stock_reservation, "stock_reservation",
						 lengthof(values), values, nulls);
}

static Datum
reserve_order(Order *order, const char *function)
{
	OrderAnswer answer = {
		.expires_at = lines_expiry(order->fcinfo, order->ttl_arg,
								   GetCurrentTimestamp())
	};
	bool		answered;
	int			looks = 0;

	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	order->tids = palloc(order->lines.count * sizeof(ItemPointerData));
	order->lines.order = order->lines.count;
	order->name = names_find(stock_xact_begin(), order->reservation);
	answered = order->name.is_new && reserve_at_once(order, &answer);
	while (!answered)
	{
		CHECK_FOR_INTERRUPTS();
		if (++looks > RESERVE_LOOKS_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not reserve: others keep changing reservation \"%s\"",
							text_to_cstring(order->reservation))));
		answered = reserve_try(order, &answer);
	}
	return reserve_result(&answer);
}

/*
 * SQL: stock_reserve(sku, quantity, reservation, ttl, actor).
 */
Datum
stock_reserve(PG_FUNCTION_ARGS)
{
	Order		order = {
		.lines = lines_single_arg(fcinfo, 0, "sku", 1),
		.reservation = lines_name_arg(fcinfo, 2, "reservation"),
		.actor = lines_actor_arg(fcinfo, 4),
		.fcinfo = fcinfo,
		.ttl_arg = 3
	};

	return reserve_order(&order, "stock_reserve()");
}

/*
 * SQL: stock_reserve_many(lines, reservation, ttl, actor).
 */
Datum
stock_reserve_many(PG_FUNCTION_ARGS)
{
	Order		order = {
		.lines = lines_arg(fcinfo, 0),
		.reservation = lines_name_arg(fcinfo, 1, "reservation"),
		.actor = lines_actor_arg(fcinfo, 3),
		.fcinfo = fcinfo,
		.ttl_arg = 2
	};

	return reserve_order(&order, "stock_reserve_many()");
}
