/*
 * amend.c
 *		stock_change_many: other quantities and other lines for an open
 *		reservation, all of them or none.
 *
 * What the new lines need beyond the open ones is taken first.  If that falls
 * short, nothing has changed.  Then every open line is closed and every new one
 * opened, which the log records as a cancellation and a reinstatement.  So a
 * line that is left out is never reinstated: only lines that were cancelled
 * after the last reinstatement are.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "stock/announce.h"
#include "stock/change.h"
#include "stock/hold.h"
#include "stock/ledger.h"
#include "stock/reservation.h"
#include "stock/stock.h"
#include "stock/stock_xact.h"

typedef struct Amendment
{
	text	   *reservation;
	text	   *actor;
	StockLines	lines;			/* as they shall be */
	TimestampTz wanted;			/* the expiry, unless it is later already */
	StockSettlement answer;
	TimestampTz expires_at;
	Shortages	shortages;
} Amendment;

PG_FUNCTION_INFO_V1(stock_change_many);

/*
 * Returns by how much the quantities of "to" are larger than those of "from".
 */
static StockLines
amend_difference(const StockLines *from, const StockLines *to)
{
	StockLines	more = {.line = palloc0(to->count * sizeof(StockLine))};

	for (int i = 0; i < to->count; i++)
	{
		StockLine	line = {.sku = to->line[i].sku};

		line.quantity = to->line[i].quantity - lines_quantity(from, line.sku);
		if (line.quantity > 0)
			more.line[more.count++] = line;
	}
	return more;
}

/*
 * What is missing was looked for without the quantities that are open.
 */
static void
amend_count_open(Amendment *amendment, const StockLines *open)
{
	for (int i = 0; i < amendment->shortages.count; i++)
	{
		Shortage   *shortage = &amendment->shortages.line[i];
		const text *sku = shortage->line->sku;

		shortage->line = lines_find(&amendment->lines, sku);
		shortage->available += lines_quantity(open, sku);
	}
}

/*
 * The caller has locked the open lines and taken what is missing.
 */
static void
amend_write(Amendment *amendment, const Holds *open)
{
	StockLines	less = amend_difference(&amendment->lines, &open->lines);
	LedgerLines past = ledger_read(amendment->reservation);

	change_number_lines(&amendment->lines, open, &past);
	for (int i = 0; i < amendment->lines.count; i++)
		(void) stock_xact_touch(&amendment->lines.line[i], true);
	for (int i = 0; i < less.count; i++)
		(void) stock_xact_touch(&less.line[i], true);
	if (!change_end_lines(STOCK_CANCEL, amendment->reservation,
						  amendment->actor, open, true) ||
		!change_reopen(amendment->reservation, amendment->actor,
					   &amendment->lines, amendment->expires_at))
		elog(ERROR, "lines of a locked reservation have changed");
	change_add(&less, false);
	announce_amended(amendment->reservation, &amendment->lines);
}

/*
 * Returns false if another transaction was faster and the caller has to try
 * again.
 */
static bool
amend_try(Amendment *amendment)
{
	Holds		open = holds_read(amendment->reservation);
	StockLines	more;
	int			mark;

	if (open.lines.count == 0)
	{
		amendment->answer = reservation_answer_closed(amendment->reservation,
													  &open);
		return true;
	}
	if (holds_wait(&open) && open.expires_at > GetCurrentTimestamp())
	{
		amendment->answer = STOCK_WAITS;
		return true;
	}
	if (!holds_lock(&open, true))
		return false;
	if (open.expires_at <= GetCurrentTimestamp())
	{
		amendment->answer = STOCK_EXPIRED;
		return change_close(STOCK_EXPIRE, amendment->reservation, NULL, &open,
							true);
	}
	more = amend_difference(&open.lines, &amendment->lines);
	amendment->shortages = change_take(&more, false, &mark);
	if (amendment->shortages.count > 0)
	{
		amend_count_open(amendment, &open.lines);
		amendment->answer = STOCK_FALLS_SHORT;
		return true;
	}
	amendment->answer = STOCK_DONE;
	amendment->expires_at = Max(amendment->wanted, open.expires_at);
	if (lines_are_same(&open.lines, &amendment->lines))
		holds_extend(&open, amendment->reservation, amendment->wanted);
	else
		amend_write(amendment, &open);
	return true;
}

/*
 * SQL: stock_change_many(reservation, lines, ttl, actor).
 */
Datum
stock_change_many(PG_FUNCTION_ARGS)
{
	Amendment	amendment = {
		.reservation = reservation_begin(fcinfo, "stock_change_many()"),
		.lines = lines_arg(fcinfo, 1),
		.wanted = lines_expiry(fcinfo, 2, GetCurrentTimestamp()),
		.actor = lines_actor_arg(fcinfo, 3)
	};

	(void) stock_xact_begin();
	while (!amend_try(&amendment))
		CHECK_FOR_INTERRUPTS();
	return reservation_result(fcinfo, amendment.answer, amendment.expires_at,
							  &amendment.shortages);
}
