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

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/shared.h"
#include "stock/announce.h"
#include "stock/ledger.h"
#include "stock/change.h"
#include "stock/queue.h"
#include "stock/stock.h"
#include "stock/stock_xact.h"

#define CHANGE_LOCK_CLOSED 4	/* kinds; advisory locks of SQL are 1 and 2 */
#define CHANGE_LOCK_BACKORDER 5
#define CHANGE_LAPSED_BATCH 10000	/* lapsed reservations read at a time */

/*
 * If nothing was available of an item that is not new, a customer may want to
 * know, so an event is enqueued, unless it is for those in its queue.
 */
void
change_add(const StockLines *lines, bool is_new)
{
	for (int i = 0; i < lines->count; i++)
	{
		StockLine  *line = &lines->line[i];
		bool		back;

		(void) stock_xact_touch(line, true);
		back = stock_xact_available(line) <= 0 && !stock_xact_is_new(line) &&
			stock_xact_waiting(line) == 0;
		stock_xact_add(line, is_new);
		if (back)
			announce_available(line->sku, stock_xact_available(line));
	}
}

/*
 * Returns the number of the line of an item that is open or was cancelled, or
 * -1.
 */
static int
change_find_number(const text *sku, const Holds *open, const LedgerLines *past)
{
	const StockLine *line = lines_find(&open->lines, sku);

	if (line != NULL)
		return line->number;
	for (int i = 0; i < past->count; i++)
	{
		if (past->line[i].last != STOCK_CONFIRM &&
			args_compare_texts(past->line[i].line.sku, sku) == 0)
			return past->line[i].line.number;
	}
	return -1;
}

void
change_number_lines(StockLines *lines, const Holds *open,
					const LedgerLines *past)
{
	int			next = Max(open->lines.order, past->order);

	for (int i = 0; i < open->lines.count; i++)
		next = Max(next, open->lines.line[i].number + 1);
	for (int i = 0; i < past->count; i++)
		next = Max(next, past->line[i].line.number + 1);
	for (int i = 0; i < lines->count; i++)
	{
		int			number = change_find_number(lines->line[i].sku, open, past);

		lines->line[i].number = number >= 0 ? number : next++;
	}
	if (next > STOCK_LINES_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many lines"),
				 errdetail("The reservation would have had %d in all; the limit is %d.",
						   next, STOCK_LINES_MAX)));
	lines->order = next;
}

static void
change_lock(const text *name, int kind)
{
	uint64		hash =
		hash_bytes_extended((const unsigned char *) VARDATA_ANY(name),
							VARSIZE_ANY_EXHDR(name), 0);
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32),
						 (uint32) hash, kind);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

void
change_lock_closed(const text *reservation)
{
	change_lock(reservation, CHANGE_LOCK_CLOSED);
}

void
change_lock_backorder(const text *sku)
{
	change_lock(sku, CHANGE_LOCK_BACKORDER);
}

bool
change_reopen(const text *reservation, const text *actor,
			  const StockLines *lines, TimestampTz expires_at)
{
	LedgerEntry entry = {
		.change = STOCK_REINSTATE,
		.reservation = reservation,
		.actor = actor
	};
	ItemPointerData *tids = palloc(lines->count * sizeof(ItemPointerData));
	ReservationName name = names_find(catalog_get()->stock_log, reservation);

	names_note(&name);
	change_note_expiry(lines, expires_at);
	if (!holds_open(reservation, &name, lines, expires_at, tids))
		return false;
	ledger_write(&entry, lines);
	return true;
}

bool
change_end_lines(StockChange change, const text *reservation,
				 const text *actor, const Holds *holds, bool wait)
{
	LedgerEntry entry = {
		.change = change,
		.reservation = reservation,
		.actor = actor
	};

	for (int i = 0; i < holds->lines.count; i++)
	{
		if (holds_close(holds, i, wait))
			continue;
		if (holds->lines.count > 1)
			elog(ERROR, "a locked line of a reservation is gone");
		return false;
	}
	ledger_write(&entry, &holds->lines);
	return true;
}

/*
 * Ends the wait of a reservation.  The log records how it ended, but not a
 * reservation, since nothing was reserved.
 */
static bool
change_end_wait(StockChange change, const text *reservation,
				const text *actor, const Holds *holds, bool wait)
{
	LedgerEntry entry = {
		.change = change,
		.reservation = reservation,
		.actor = actor
	};
	StockLine  *line = holds->lines.line;

	(void) stock_xact_touch(line, true);
	if (!holds_close(holds, 0, wait))
		return false;
	queue_leave(line);
	ledger_write(&entry, &holds->lines);
	escrow_count_row(stock_xact_item(line));
	return true;
}

/*
 * A counter that is loaded after the hold is gone would have the quantity
 * already, so the items are touched first.
 */
bool
change_close(StockChange change, const text *reservation, const text *actor,
			 const Holds *holds, bool wait)
{
	if (holds_wait(holds))
		return change_end_wait(change, reservation, actor, holds, wait);
	for (int i = 0; i < holds->lines.count && change != STOCK_CONFIRM; i++)
		(void) stock_xact_touch(&holds->lines.line[i], true);
	if (!change_end_lines(change, reservation, actor, holds, wait))
		return false;
	for (int i = 0; i < holds->lines.count && change == STOCK_CONFIRM; i++)
		stock_xact_confirm(&holds->lines.line[i], holds->expires_at);
	if (change != STOCK_CONFIRM)
		change_add(&holds->lines, false);
	announce_change(change, reservation, &holds->lines);
	shared_count(change == STOCK_CONFIRM ? SHARED_CONFIRMED :
				 change == STOCK_CANCEL ? SHARED_CANCELLED : SHARED_LAPSED, 1);
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
	EscrowDue	due;
	TimestampTz next;
	text	  **lapsed;
	int			count;

	stock_xact_note_lapsed(line);
	if (!escrow_may_lapse(item, GetCurrentTimestamp(), &due))
		return 0;
	count = holds_lapsed(line->sku, due.from, CHANGE_LAPSED_BATCH, true,
						 &lapsed, &next);
	if (count == 0 && stock_xact_sees_committed())
		escrow_none_lapses(item, next, due.look);
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
 * Returns what the caller may take.
 */
static int64
change_available(const StockLine *line, bool overtake)
{
	if (!overtake && stock_xact_waiting(line) > 0)
		return 0;
	return stock_xact_available(line);
}

/*
 * Takes the lines that are available and lists the others.
 */
static Shortages
change_try(const StockLines *lines, bool overtake)
{
	Shortages	shortages = {.line = palloc(lines->count * sizeof(Shortage))};

	for (int i = 0; i < lines->count; i++)
	{
		StockLine  *line = &lines->line[i];
		Shortage   *shortage = &shortages.line[shortages.count];
		bool		known = stock_xact_touch(line, false);

		if (known && stock_xact_take(line, overtake))
			continue;
		shortage->line = line;
		shortage->known = known;
		shortage->available = known ? change_available(line, overtake) : 0;
		/* Another transaction may have given some back in between. */
		shortage->available = Min(shortage->available, line->quantity - 1);
		shortages.unknown |= !known;
		shortages.count++;
	}
	return shortages;
}

/*
 * If others wait for an item, what expires is for them, and the sweeper lets it
 * expire.
 */
static bool
change_all_make_way(const Shortages *shortages, bool overtake)
{
	bool		any = false;

	for (int i = 0; i < shortages->count; i++)
	{
		const Shortage *shortage = &shortages->line[i];

		if (shortage->known &&
			(overtake || stock_xact_waiting(shortage->line) == 0))
			any |= change_make_way(shortage->line);
	}
	return any;
}

/*
 * Between two tries all lines are given back, so that no lapsed reservation
 * expires to replace a quantity that another line of this order holds.
 */
Shortages
change_take(const StockLines *lines, bool overtake, int *mark)
{
	Shortages	shortages;

	for (;;)
	{
		*mark = stock_xact_mark();
		shortages = change_try(lines, overtake);
		if (shortages.count == 0)
			break;
		stock_xact_undo(*mark);
		if (!change_all_make_way(&shortages, overtake))
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
