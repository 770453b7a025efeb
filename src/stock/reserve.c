/*
 * reserve.c
 *		stock_reserve and stock_reserve_many: all lines of a reservation or none
 *		of them, and only once however often they are called.
 *
 * The counters decide about the quantities, and the primary key of stock_hold
 * about the name.  Usually the name is new, as the filter of names knows, and
 * enough is available.  If not, the name is searched.  An open reservation with
 * the same lines gets the same answer again; a closed one is an error, unless
 * the caller reserves anew; if another transaction is using the same name, the
 * caller waits for it.
 *
 * A reservation of one item can wait in the queue of the item.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/announce.h"
#include "stock/ledger.h"
#include "stock/change.h"
#include "stock/hold.h"
#include "stock/queue.h"
#include "stock/reservation.h"
#include "stock/stock_xact.h"

#define RESERVE_LOOKS_MAX 1000	/* tries while the rows of a name change */

typedef struct Order
{
	text	   *reservation;
	text	   *actor;
	StockLines	asked;
	StockLines	lines;			/* what is reserved of that */
	FunctionCallInfo fcinfo;
	int			ttl_arg;
	bool		anew;			/* also if it was cancelled or has expired */
	bool		partial;		/* also less than is asked */
	bool		wait;			/* in the item's queue, if it falls short */
	int			wait_ttl_arg;	/* if it may wait */
	ReservationName name;
	int64		ended;			/* the row that ended it; 0: it was not there */
	LedgerLines past;			/* the lines that it had before that */
	ItemPointerData *tids;		/* of the rows of the hold */
} Order;

typedef struct OrderAnswer
{
	StockOutcome outcome;
	TimestampTz expires_at;		/* if it is reserved, or waits */
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

/*
 * Does the reservation, which is open, have these lines, or, for a partial
 * order, no more than these?
 */
static bool
reserve_is_answer(const Order *order, const StockLines *open)
{
	if (!order->partial)
		return lines_are_same(open, &order->asked);
	for (int i = 0; i < open->count; i++)
	{
		if (lines_quantity(&order->asked, open->line[i].sku) <
			open->line[i].quantity)
			return false;
	}
	return open->count > 0;
}

/*
 * For a partial order, lists what was asked and is not in the lines.
 */
static Shortages
reserve_missing(const Order *order, const StockLines *lines)
{
	Shortages	missing = {0};

	if (order->partial)
		missing.line = palloc(order->asked.count * sizeof(Shortage));
	for (int i = 0; i < order->asked.count && order->partial; i++)
	{
		const StockLine *asked = &order->asked.line[i];
		Shortage	shortage = {
			.line = asked,
			.available = lines_quantity(lines, asked->sku)
		};

		if (shortage.available < asked->quantity)
			missing.line[missing.count++] = shortage;
	}
	return missing;
}

/*
 * Can a reservation be made anew under this name?  All of its lines were
 * cancelled or have expired.
 */
static bool
reserve_may_begin_anew(const LedgerLines *past)
{
	for (int i = 0; i < past->count; i++)
	{
		if (past->line[i].last != STOCK_CANCEL &&
			past->line[i].last != STOCK_EXPIRE)
			return false;
	}
	return past->count > 0 && past->count >= past->order;
}

/*
 * Does the line not belong to the reservation any more?  It was cancelled, and
 * then the reservation was reinstated, changed or made anew without it.
 */
static bool
reserve_is_left_out(const LedgerLines *past, const LedgerLine *line)
{
	return line->id < past->reopened && line->last != STOCK_CONFIRM &&
		line->last != STOCK_REINSTATE;
}

/*
 * Counts these lines, and returns the change that has ended the last of them.
 */
static int
reserve_left_out(const LedgerLines *past, StockChange *change)
{
	int			count = 0;

	for (int i = 0; i < past->count; i++)
	{
		if (!reserve_is_left_out(past, &past->line[i]))
			continue;
		*change = past->line[i].last;
		count++;
	}
	return count;
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
			!reserve_is_left_out(past, line) &&
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
 * Makes the answer for a reservation with these lines.  If it waits, others
 * have what there is.  Returns false if it does not wait any more.
 */
static bool
reserve_answer_open(const Order *order, Holds *holds, OrderAnswer *answer)
{
	StockLine  *line = holds->lines.line;

	answer->expires_at = holds->expires_at;
	answer->outcome = STOCK_RESERVED;
	answer->shortages = reserve_missing(order, &holds->lines);
	if (!holds_wait(holds))
		return true;
	answer->outcome = STOCK_WAITING;
	answer->shortages.count = 1;
	answer->shortages.line = palloc0(sizeof(Shortage));
	answer->shortages.line->line = line;
	return queue_read(line);
}

/*
 * Looks the name up.  Returns true, and the answer, if the reservation is open
 * with these lines.  Raises an error if it has other lines or is closed, even
 * in part.  Sets *again if the reservation is being changed at the moment.
 */
static bool
reserve_replay(Order *order, OrderAnswer *answer, bool *again)
{
	Holds		holds = holds_read_settled(order->reservation);
	const LedgerLine *closed;
	LedgerLines past;
	StockChange change = STOCK_CHANGES;
	int			left_out;

	*again = false;
	if (holds.lines.count > 0 && holds.expires_at <= GetCurrentTimestamp())
	{
		if (!order->anew)
			reserve_raise_closed(order, STOCK_EXPIRE, "It");
		(void) reservation_lapsed(order->reservation, &holds);
		*again = true;
		return false;
	}
	*again = !reserve_answer_open(order, &holds, answer);
	if (*again)
		return false;
	if (reserve_is_answer(order, &holds.lines) &&
		reserve_is_whole(order->reservation, &holds))
		return true;
	if (holds.lines.count == 0 && !ledger_is_settled(order->reservation))
		return false;

	past = ledger_read(order->reservation);
	closed = reserve_last_closed(&past);
	if (closed != NULL && order->anew && holds.lines.count == 0 &&
		reserve_may_begin_anew(&past))
	{
		order->ended = closed->id;
		order->past = past;
		return false;
	}
	if (closed != NULL)
		reserve_raise_closed(order, closed->last,
							 holds.lines.count == 0 ? "It" : "A line of it");
	/* The dirty scan may have missed a line that is being extended. */
	holds = holds_read(order->reservation);
	*again = !reserve_answer_open(order, &holds, answer);
	if (*again)
		return false;
	left_out = reserve_left_out(&past, &change);
	if (holds.lines.count + left_out < holds.lines.order)
		reserve_raise_closed(order, STOCK_CHANGES, "A line of it");
	if ((past.count > 0 || holds.lines.order == 0) &&
		reserve_is_answer(order, &holds.lines))
		return true;			/* the settled lines do not belong to it */
	if (left_out > 0)
		reserve_raise_closed(order, change, "A line of it");
	if (holds.lines.count > 0 && !reserve_is_answer(order, &holds.lines))
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
reserve_sign(Order *order)
{
	TimestampTz now = GetCurrentTimestamp();

	order->lines.order = order->lines.count;
	for (int i = 0; i < order->lines.count; i++)
	{
		StockLine  *line = &order->lines.line[i];

		line->opened_id = ledger_next_id();
		line->opened_at = now;
		line->opened_by = order->actor;
	}
}

/*
 * Is the name free, apart from this reservation?  The answer may be no, if a
 * line was settled that the first search did not find.
 */
static bool
reserve_was_free(const Order *order)
{
	LedgerLines past;
	const LedgerLine *closed;

	if (order->name.is_new)
		return true;
	if (order->ended == 0)
		return !ledger_is_settled(order->reservation);
	ledger_keep();
	past = ledger_read(order->reservation);
	closed = reserve_last_closed(&past);
	return closed != NULL && closed->id == order->ended &&
		reserve_may_begin_anew(&past);
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
 *
 * If the reservation is made anew, the log records a reinstatement, so that its
 * lines count as open from then on.
 */
static bool
reserve_take_name(Order *order, OrderAnswer *answer)
{
	LedgerEntry entry = {
		.change = STOCK_REINSTATE,
		.reservation = order->reservation,
		.actor = order->actor
	};
	const Holds none = {0};

	if (order->ended == 0 || order->lines.line->waits)
		reserve_sign(order);
	if (order->ended != 0)
		change_number_lines(&order->lines, &none, &order->past);
	change_note_expiry(&order->lines, answer->expires_at);
	if (!holds_open(order->reservation, &order->name, &order->lines,
					answer->expires_at, order->tids))
		return false;
	if (!reserve_was_free(order))
	{
		holds_withdraw(order->tids, order->lines.count);
		return false;
	}
	if (order->ended != 0)
		ledger_write(&entry, &order->lines);
	return true;
}

/*
 * Reduces the lines to what is available.  Returns whether anything is.
 */
static bool
reserve_reduce(StockLines *lines, const Shortages *shortages)
{
	int			count = 0;

	for (int i = 0, at = 0; i < lines->count; i++)
	{
		StockLine	line = lines->line[i];

		if (at < shortages->count &&
			shortages->line[at].line == &lines->line[i])
			line.quantity = shortages->line[at++].available;
		if (line.quantity <= 0)
			continue;
		line.number = count;
		lines->line[count++] = line;
	}
	lines->count = count;
	return count > 0;
}

/*
 * Takes all lines; for a partial order, what there is of them.
 */
static Shortages
reserve_take_lines(Order *order, int *mark)
{
	Shortages	shortages = change_take(&order->lines, false, mark);
	bool		unknown = shortages.unknown;

	while (shortages.count > 0 && order->partial)
	{
		CHECK_FOR_INTERRUPTS();
		if (!reserve_reduce(&order->lines, &shortages))
		{
			shortages = reserve_missing(order, &order->lines);
			shortages.unknown = unknown;
			break;
		}
		shortages = change_take(&order->lines, false, mark);
	}
	return shortages;
}

/*
 * Begins with all that was asked.
 */
static void
reserve_ask(Order *order)
{
	order->ended = 0;
	order->lines.count = order->asked.count;
	memcpy(order->lines.line, order->asked.line,
		   order->asked.count * sizeof(StockLine));
}

/*
 * Takes the quantities and the name.  Returns false, with nothing changed, if
 * the name was not free.
 */
static bool
reserve_take(Order *order, OrderAnswer *answer)
{
	int			mark;

	answer->shortages = reserve_take_lines(order, &mark);
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
	answer->shortages = reserve_missing(order, &order->lines);
	announce_change(STOCK_RESERVE, order->reservation, &order->lines);
	return true;
}

/*
 * Lets the reservation wait in the queue of its item, if that is not full: its
 * only line falls short.  Returns false, with nothing changed, if the name was
 * not free.
 */
static bool
reserve_wait(Order *order, OrderAnswer *answer)
{
	StockLine  *line = order->lines.line;
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz expires_at = lines_expiry(order->fcinfo, order->ttl_arg, now);
	int			mark = stock_xact_mark();

	if (stock_xact_waiting(line) >= settings_stock_queue_max)
		return true;
	line->waits = true;
	stock_xact_join(line);
	answer->expires_at = lines_wait_end(order->fcinfo, order->wait_ttl_arg,
										now);
	if (!reserve_take_name(order, answer))
	{
		stock_xact_undo(mark);
		return false;
	}
	queue_join(order->reservation, line, expires_at - now);
	answer->outcome = STOCK_WAITING;
	return true;
}

/*
 * An answer that was given before is not counted.
 */
static void
reserve_count(StockOutcome outcome)
{
	switch (outcome)
	{
		case STOCK_RESERVED:
			shared_count(SHARED_RESERVED, 1);
			break;
		case STOCK_WAITING:
			shared_count(SHARED_QUEUED, 1);
			break;
		default:
			shared_count(SHARED_INSUFFICIENT, 1);
	}
}

/*
 * Handles a new name.  If the quantities fall short, another transaction with
 * the same name may have them, so that case is left to reserve_try.
 */
static bool
reserve_at_once(Order *order, OrderAnswer *answer)
{
	reserve_ask(order);
	if (!reserve_take(order, answer) || answer->outcome != STOCK_RESERVED)
		return false;
	reserve_count(answer->outcome);
	return true;
}

/*
 * Handles any case once.  Returns false if the caller has to try again.
 */
static bool
reserve_try(Order *order, OrderAnswer *answer)
{
	bool		again;

	reserve_ask(order);
	names_note(&order->name);
	if (reserve_replay(order, answer, &again))
		return true;
	if (again)
		return false;
	answer->expires_at = lines_expiry(order->fcinfo, order->ttl_arg,
									  GetCurrentTimestamp());
	if (!reserve_take(order, answer))
		return false;
	if (order->wait && answer->outcome == STOCK_INSUFFICIENT &&
		!reserve_wait(order, answer))
		return false;
	reserve_count(answer->outcome);
	return true;
}

static Datum
reserve_result(const OrderAnswer *answer)
{
	const Catalog *catalog = catalog_get();
	Datum		values[3];
	bool		nulls[3] = {false};

	values[0] = ObjectIdGetDatum(catalog->stock_outcome[answer->outcome]);
	values[1] = TimestampTzGetDatum(answer->expires_at);
	nulls[1] = answer->outcome != STOCK_RESERVED &&
		answer->outcome != STOCK_WAITING;
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

	settings_prevent_write(function);
	order->lines.line = palloc(order->asked.count * sizeof(StockLine));
	order->tids = palloc(order->asked.count * sizeof(ItemPointerData));
	order->name = names_find(stock_xact_begin(), order->reservation);
	answered = order->name.is_new && reserve_at_once(order, &answer);
	if (order->anew && !answered)
		change_lock_closed(order->reservation);
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
 * As lines_actor_arg: SQL functions of an older version lack the argument.
 */
static bool
reserve_flag_arg(FunctionCallInfo fcinfo, int arg, const char *name)
{
	(void) catalog_get();
	args_require(fcinfo, arg, name);
	return PG_GETARG_BOOL(arg);
}

/*
 * SQL: stock_reserve(sku, quantity, reservation, ttl, actor, anew, wait,
 * wait_ttl).
 */
Datum
stock_reserve(PG_FUNCTION_ARGS)
{
	Order		order = {
		.asked = lines_single_arg(fcinfo, 0, "sku", 1),
		.reservation = lines_name_arg(fcinfo, 2, "reservation"),
		.actor = lines_actor_arg(fcinfo, 4),
		.anew = reserve_flag_arg(fcinfo, 5, "anew"),
		.wait = reserve_flag_arg(fcinfo, 6, "wait"),
		.fcinfo = fcinfo,
		.ttl_arg = 3,
		.wait_ttl_arg = 7
	};

	if (order.wait || !PG_ARGISNULL(7))
		(void) lines_wait_end(fcinfo, 7, GetCurrentTimestamp());
	return reserve_order(&order, "stock_reserve()");
}

/*
 * SQL: stock_reserve_many(lines, reservation, ttl, actor, anew, partial).
 */
Datum
stock_reserve_many(PG_FUNCTION_ARGS)
{
	Order		order = {
		.asked = lines_arg(fcinfo, 0),
		.reservation = lines_name_arg(fcinfo, 1, "reservation"),
		.actor = lines_actor_arg(fcinfo, 3),
		.anew = reserve_flag_arg(fcinfo, 4, "anew"),
		.partial = reserve_flag_arg(fcinfo, 5, "partial"),
		.fcinfo = fcinfo,
		.ttl_arg = 2
	};

	return reserve_order(&order, "stock_reserve_many()");
}
