/*
 * change.c
 *		Takes quantities from items and gives them back: what reserving,
 *		settling and correcting share.
 *
 * Lines are taken in the order of their skus.  Taking never waits for another
 * transaction, neither for an item nor for a lapsed reservation: quantities
 * that another transaction holds count as taken.  Only change_close waits, if
 * its caller asks for that.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "stock/announce.h"
#include "stock/ledger.h"
#include "stock/change.h"
#include "stock/stock_xact.h"

#define CHANGE_LAPSED_BATCH 10000	/* lapsed reservations read at a time */

/*
 * If nothing was available of an item that is not new, a customer may be
 * waiting for it, so an event is enqueued.
 */
void
change_add(const StockLines *lines, bool is_new)
{
	for (int i = 0; i < lines->count; i++)
	{
		StockLine  *line = &lines->line[i];
		bool		back;

		(void) stock_xact_touch(line, true);
		back = stock_xact_available(line) <= 0 && !stock_xact_is_new(line);
		stock_xact_add(line, is_new);
		if (back)
			announce_available(line->sku, stock_xact_available(line));
	}
}

/*
 * A counter that is loaded after the hold is gone would have the quantity
 * already, so the items are touched first.
 */
bool
change_close(StockChange change, const text *reservation, const text *actor,
			 const Holds *holds, bool wait)
{
	LedgerEntry entry = {
		.change = change,
		.reservation = reservation,
		.actor = actor
	};

	for (int i = 0; i < holds->lines.count && change != STOCK_CONFIRM; i++)
		(void) stock_xact_touch(&holds->lines.line[i], true);
	for (int i = 0; i < holds->lines.count; i++)
	{
		if (holds_close(holds, i, wait))
			continue;
		if (holds->lines.count > 1)
			elog(ERROR, "a locked line of a reservation is gone");
		return false;
	}
	for (int i = 0; i < holds->lines.count && change == STOCK_CONFIRM; i++)
		stock_xact_confirm(&holds->lines.line[i]);
	if (change != STOCK_CONFIRM)
		change_add(&holds->lines, false);
	ledger_write(&entry, &holds->lines);
	announce_change(change, reservation, &holds->lines);
	return true;
}

/*
 * The time of expiry that counts is that of the rows as they are closed: if the
 * reservation was extended in between, its rows have other tids, and closing
 * fails.
 */
int
change_expire(const text *reservation)
{
	Holds		holds = holds_read(reservation);

	if (holds.lines.count == 0 || holds.expires_at > GetCurrentTimestamp())
		return 0;
	if (holds.lines.count > 1 && !holds_lock(&holds, false))
		return 0;
	if (!change_close(STOCK_EXPIRE, reservation, NULL, &holds, false))
		return 0;
	return holds.lines.count;
}

/*
 * Lets lapsed reservations of an item expire until enough is available, but at
 * most one batch.  Returns the number of lines that expired.
 */
static int
change_make_some_way(const StockLine *line)
{
	EscrowItem *item = stock_xact_item(line);
	int			expired = 0;
	uint64		look;
	TimestampTz next;
	text	  **lapsed;
	int			count;

	if (!escrow_may_lapse(item, GetCurrentTimestamp(), &look))
		return 0;
	count = holds_lapsed(line->sku, CHANGE_LAPSED_BATCH, &lapsed, &next);
	if (count == 0)
		escrow_none_lapses(item, next, look);
	for (int i = 0; i < count; i++)
	{
		if (stock_xact_available(line) >= line->quantity)
			break;
		CHECK_FOR_INTERRUPTS();
		expired += change_expire(lapsed[i]);
	}
	return expired;
}

/*
 * As change_make_some_way, until enough is available or no lapsed reservation
 * is left that is not locked.  Returns whether any line expired.
 */
static bool
change_make_way(const StockLine *line)
{
	bool		any = false;

	while (stock_xact_available(line) < line->quantity &&
		   change_make_some_way(line) > 0)
		any = true;
	return any;
}

void
change_note_expiry(const StockLines *lines, TimestampTz expires_at)
{
	for (int i = 0; i < lines->count; i++)
		stock_xact_will_lapse(&lines->line[i], expires_at);
}

/*
 * Takes the lines that are available and lists the others.
 */
static Shortages
change_try(const StockLines *lines)
{
	Shortages	shortages = {.line = palloc(lines->count * sizeof(Shortage))};

	for (int i = 0; i < lines->count; i++)
	{
		StockLine  *line = &lines->line[i];
		Shortage   *shortage = &shortages.line[shortages.count];
		bool		known = stock_xact_touch(line, false);

		if (known && stock_xact_take(line))
			continue;
		shortage->line = line;
		shortage->known = known;
		shortage->available = known ? stock_xact_available(line) : 0;
		/* Another transaction may have given some back in between. */
		shortage->available = Min(shortage->available, line->quantity - 1);
		shortages.unknown |= !known;
		shortages.count++;
	}
	return shortages;
}

static bool
change_all_make_way(const Shortages *shortages)
{
	bool		any = false;

	for (int i = 0; i < shortages->count; i++)
	{
		if (shortages->line[i].known)
			any |= change_make_way(shortages->line[i].line);
	}
	return any;
}

/*
 * Between two tries all lines are given back, so that no lapsed reservation
 * expires to replace a quantity that another line of this order holds.
 */
Shortages
change_take(const StockLines *lines, int *mark)
{
	Shortages	shortages;

	for (;;)
	{
		*mark = stock_xact_mark();
		shortages = change_try(lines);
		if (shortages.count == 0)
			break;
		stock_xact_undo(*mark);
		if (!change_all_make_way(&shortages))
			break;
	}
	return shortages;
}

Datum
change_shortages_datum(const Shortages *shortages)
{
	JsonbValue	none = {.type = jbvArray};
	StringInfoData json;

	if (shortages->count == 0)	/* the usual case, without a parser */
		return JsonbPGetDatum(JsonbValueToJsonb(&none));
	initStringInfo(&json);
	appendStringInfoChar(&json, '[');
	for (int i = 0; i < shortages->count; i++)
	{
		const Shortage *shortage = &shortages->line[i];
		int64		wanted = shortage->line->quantity;

		appendStringInfoString(&json, i == 0 ? "{\"sku\": " : ", {\"sku\": ");
		escape_json(&json, text_to_cstring(shortage->line->sku));
		appendStringInfo(&json, ", \"wanted\": %lld, \"available\": %lld, \"missing\": %lld}",
						 (long long) wanted, (long long) shortage->available,
						 (long long) (wanted - shortage->available));
	}
	appendStringInfoChar(&json, ']');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}
