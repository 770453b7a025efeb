/*
 * stock_xact.c
 *		The open transaction's state: what it has taken from the counters of
 *		items and added to them, and what its end does with that.
 *
 * Each item that the transaction uses has an entry: what was taken from the
 * shared counter, which an abort gives back; and what was added and not taken
 * again, which a commit adds to the shared counter.  A reservation that waits
 * is counted at once, too: if the commit counted it, another session could see
 * its row, end its wait and count that first.  Own additions are used up
 * first and do not touch the shared counter before the commit.  Each step is
 * recorded, so that a savepoint, or a call that fails halfway, can be undone.
 *
 * The order of steps that keeps counters and tables equal:
 *
 *   first   lock stock_log until the end of the transaction;
 *   then    make room for the entry, pin the counter, load it if necessary;
 *   then    take: subtract and record the step, with nothing in between that
 *           can fail; only then write the row of the log or the hold;
 *   at end  when the commit is visible: settle and unpin; after that the
 *           server releases the lock.
 *
 * PREPARE TRANSACTION hands all of it over (in_doubt.c), with the lock.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/callback.h"
#include "base/catalog.h"
#include "base/relation.h"
#include "base/shared.h"
#include "base/trigger.h"
#include "stock/in_doubt.h"
#include "stock/item.h"
#include "stock/lapse.h"
#include "stock/names.h"
#include "stock/queue.h"
#include "stock/stock_xact.h"

#define STOCK_XACT_INITIAL 16	/* entries and steps at first; they double */
#define STOCK_XACT_KEEP 1024	/* larger arrays are freed at the end */

typedef struct StockXactEntry
{
	EscrowItem *item;
	EscrowPart	part;
	int			level;			/* nesting level that first touched it */
	bool		in_doubt;		/* entered there by PREPARE TRANSACTION */
} StockXactEntry;

/* The change that a step made to an entry. */
typedef struct StockXactStep
{
	int			entry;
	int			level;			/* nesting level that made it */
	EscrowPart	difference;
} StockXactStep;

static StockXactEntry *entries = NULL;
static int	entry_count = 0;
static int	entry_capacity = 0;
static StockXactStep *steps = NULL;
static int	step_count = 0;
static int	step_capacity = 0;
static int *places = NULL;		/* of entries, by their items; see below */

static Oid	locked_log = InvalidOid;	/* by this transaction */
static EscrowItem *loading = NULL;
static int	external_level = 0; /* nesting level of external DML; 0: none */
static int64 first_id = PG_INT64_MAX;	/* of the rows that it has written */

/* When the first hold lapses that it has changed, perhaps without a counter. */
static TimestampTz hidden_lapse_at = DT_NOEND;

/*
 * The entry of an item is found through places: twice as many numbers as there
 * is room for entries, each the number of an entry, counted from 1, or 0.  An
 * entry has the first free place from the one that the item's hash says.  There
 * is always a free place, so neither inserting nor deleting can fail, unlike in
 * a hash table that grows by itself.
 *
 * Returns the place of the item's entry, or else the one for it.
 */
static int *
stock_xact_place(const EscrowItem *item)
{
	uint32		mask = (uint32) entry_capacity * 2 - 1;
	uint32		at = murmurhash32((uint32) ((uintptr_t) item >> 4)) & mask;

	Assert(entry_capacity > 0 && (mask & (mask + 1)) == 0);
	Assert(entry_count <= entry_capacity);
	while (places[at] != 0 && entries[places[at] - 1].item != item)
		at = (at + 1) & mask;
	return &places[at];
}

/*
 * Removes the last entry.  All others were there before it, so none of them is
 * searched beyond its place.
 */
static EscrowItem *
stock_xact_pop_entry(void)
{
	EscrowItem *item = entries[entry_count - 1].item;

	Assert(*stock_xact_place(item) == entry_count);
	*stock_xact_place(item) = 0;
	entry_count--;
	return item;
}

/*
 * Forgets everything; cannot fail.
 */
static void
stock_xact_reset(void)
{
	while (entry_count > 0)
		(void) stock_xact_pop_entry();
	Assert(loading == NULL);
	step_count = 0;
	locked_log = InvalidOid;
	external_level = 0;
	first_id = PG_INT64_MAX;
	hidden_lapse_at = DT_NOEND;
	if (entry_capacity > STOCK_XACT_KEEP)
	{
		pfree(entries);
		pfree(places);
		entries = NULL;
		places = NULL;
		entry_capacity = 0;
	}
	if (step_capacity > STOCK_XACT_KEEP)
	{
		pfree(steps);
		steps = NULL;
		step_capacity = 0;
	}
}

/*
 * Ends a load that an error has interrupted.
 */
static void
stock_xact_let_go(void)
{
	if (loading != NULL)
		escrow_fail_load(loading);
	loading = NULL;
}

static void
stock_xact_end(bool committed)
{
	bool		call = false;

	CALLBACK_BEGIN();
	Assert(entry_count == 0 || entries[entry_count - 1].level == 1);
	in_doubt_cancel();
	stock_xact_let_go();
	for (int i = 0; i < entry_count; i++)
	{
		StockXactEntry *entry = &entries[i];

		entry->part.first_id = first_id;
		if (committed)
			call |= escrow_commit(entry->item, &entry->part);
		else
			call |= escrow_abort(entry->item, &entry->part);
	}
	if (call)
		queue_call(QUEUE_SOME);
	if (committed && external_level > 0)
	{
		escrow_forget_all(locked_log);
		names_forget();
		lapse_note(0);
		queue_call(QUEUE_ALL);
		pg_atomic_fetch_add_u64(&shared_my_database()->stock_reopened, 1);
	}
	stock_xact_reset();
	CALLBACK_END();
}

/*
 * Has the transaction done anything to the item that its end has to settle?
 */
static bool
stock_xact_has_effect(const StockXactEntry *entry)
{
	const EscrowPart *part = &entry->part;

	return part->taken != 0 || part->received != 0 || part->left != 0 ||
		part->pending != 0 || part->joined != 0 || part->served != 0 ||
		part->created || part->lapses_at != DT_NOEND;
}

/*
 * What external DML has changed is not known to the counters, which its commit
 * would have to drop.
 */
static void
stock_xact_before_prepare(void)
{
	if (external_level > 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has written to the tables of stock directly")));
	PushActiveSnapshot(GetTransactionSnapshot());
	for (int i = 0; i < entry_count; i++)
	{
		StockXactEntry *entry = &entries[i];

		Assert(entry->level == 1 && !entry->in_doubt);
		entry->part.first_id = first_id;
		entry->in_doubt = stock_xact_has_effect(entry);
		if (entry->in_doubt)
			in_doubt_enter(entry->item, &entry->part);
	}
	PopActiveSnapshot();
}

static void
stock_xact_prepared(void)
{
	CALLBACK_BEGIN();
	for (int i = 0; i < entry_count; i++)
	{
		if (!entries[i].in_doubt)
			escrow_unpin(entries[i].item);
	}
	in_doubt_activate();
	stock_xact_reset();
	CALLBACK_END();
}

/*
 * Called after the end of the transaction is visible to new snapshots and
 * before its locks are released.
 */
static void
stock_xact_transaction_ended(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			if (OidIsValid(locked_log))
				stock_xact_end(event == XACT_EVENT_COMMIT);
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (OidIsValid(locked_log))
				stock_xact_before_prepare();
			break;
		case XACT_EVENT_PREPARE:
			if (OidIsValid(locked_log))
				stock_xact_prepared();
			break;
		default:
			break;
	}
}

/*
 * At the end of a subtransaction its steps pass to its parent, or are undone.
 */
static void
stock_xact_end_steps(int level, bool committed)
{
	int			mark = step_count;

	Assert(level > 1);
	for (; mark > 0 && steps[mark - 1].level >= level; mark--)
		steps[mark - 1].level = level - 1;
	if (!committed)
		stock_xact_undo(mark);
}

/*
 * A subtransaction that is rolled back loses its lock on the log, so it must
 * unpin the items that it was the first to touch.  Items that its parents have
 * touched stay pinned.
 */
static void
stock_xact_end_entries(int level, bool committed)
{
	int			mark = entry_count;

	for (; mark > 0 && entries[mark - 1].level >= level; mark--)
		entries[mark - 1].level = level - 1;
	while (!committed && entry_count > mark)
		escrow_unpin(stock_xact_pop_entry());
}

static void
stock_xact_subtransaction_ended(SubXactEvent event, SubTransactionId mine,
								SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	bool		committed = event == SUBXACT_EVENT_COMMIT_SUB;

	if (!OidIsValid(locked_log) ||
		(event != SUBXACT_EVENT_ABORT_SUB && !committed))
		return;
	CALLBACK_BEGIN();
	if (!committed)
		stock_xact_let_go();
	stock_xact_end_steps(level, committed);
	stock_xact_end_entries(level, committed);
	if (external_level >= level)
		external_level = committed ? level - 1 : 0;
	CALLBACK_END();
}

/*
 * Either call allocates memory and may fail, and none may be made twice.
 */
static void
stock_xact_register_callbacks(void)
{
	static bool transactions = false;
	static bool subtransactions = false;

	if (!transactions)
		RegisterXactCallback(stock_xact_transaction_ended, NULL);
	transactions = true;
	if (!subtransactions)
		RegisterSubXactCallback(stock_xact_subtransaction_ended, NULL);
	subtransactions = true;
}

/*
 * The extension may be dropped and created again while we wait for the lock, so
 * the log is looked up again when the lock is granted.  The lock belongs to the
 * transaction or subtransaction, as the entries do.
 */
static Oid
stock_xact_lock(LOCKMODE mode)
{
	for (;;)
	{
		Oid			log = catalog_get()->stock_log;

		relation_hold(log, mode);
		if (catalog_get()->stock_log == log)
			return log;
		relation_release(log, mode);
	}
}

Oid
stock_xact_begin(void)
{
	shared_require("stock");
	PreventCommandIfParallelMode("a change of stock");
	if (external_level > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot change stock in a transaction that has written to its tables directly"),
				 errhint("Commit first.")));
	stock_xact_register_callbacks();
	lapse_begin();
	queue_begin();
	names_prepare();
	locked_log = stock_xact_lock(RowExclusiveLock);
	trigger_require(&catalog_get()->stock_triggers);
	return locked_log;
}

static StockXactEntry *
stock_xact_entry(const StockLine *line)
{
	Assert(line->entry > 0 && line->entry <= entry_count);
	return &entries[line->entry - 1];
}

/*
 * Returns a larger array, or the first one, in TopMemoryContext.
 */
static void *
stock_xact_enlarge(void *array, Size size)
{
	return array == NULL ? MemoryContextAllocHuge(TopMemoryContext, size) :
		repalloc_huge(array, size);
}

/*
 * The capacity counts only when all arrays have it.
 */
static void
stock_xact_enlarge_entries(void)
{
	int			capacity = Max(entry_capacity * 2, STOCK_XACT_INITIAL);
	Size		places_size = mul_size(capacity, 2 * sizeof(int));

	entries = stock_xact_enlarge(entries,
								 mul_size(capacity, sizeof(StockXactEntry)));
	places = stock_xact_enlarge(places, places_size);
	memset(places, 0, places_size);
	entry_capacity = capacity;
	for (int i = 0; i < entry_count; i++)
		*stock_xact_place(entries[i].item) = i + 1;
}

/*
 * Makes room for one more entry and step, so that recording them cannot fail.
 */
static void
stock_xact_make_room(void)
{
	if (entry_count == entry_capacity)
		stock_xact_enlarge_entries();
	if (step_count == step_capacity)
	{
		int			capacity = Max(step_capacity * 2, STOCK_XACT_INITIAL);

		steps = stock_xact_enlarge(steps,
								   mul_size(capacity, sizeof(StockXactStep)));
		step_capacity = capacity;
	}
}

/*
 * Makes an entry for a counter that was just pinned.  If the transaction has
 * an entry for it already, unpins it once.  The line remembers the entry.
 * Returns the entry, and whether it is new.  The caller has made room, so this
 * cannot fail.
 */
static StockXactEntry *
stock_xact_keep_pinned(EscrowItem *pinned, StockLine *line, bool *fresh)
{
	StockXactEntry entry = {
		.item = pinned,
		.part.lapses_at = DT_NOEND,
		.level = GetCurrentTransactionNestLevel()
	};
	int		   *place = stock_xact_place(pinned);

	Assert(entry_count < entry_capacity);
	Assert(entry_count == 0 || entries[entry_count - 1].level <= entry.level);
	*fresh = *place == 0;
	if (*fresh)
	{
		entries[entry_count++] = entry;
		*place = entry_count;
	}
	else
		escrow_unpin(pinned);
	line->entry = *place;
	return stock_xact_entry(line);
}

/*
 * The locks are taken before the load begins: during a load other sessions
 * sleep on a condition variable, which the deadlock detector does not see.
 *
 * The load does not see when a reservation lapses that the transaction has
 * confirmed or extended before.  If it rolls back, that is the time again.
 */
static void
stock_xact_load(EscrowItem *item, const text *sku)
{
	item_lock_for_load();
	in_doubt_lock_for_load();
	if (!escrow_begin_load(item))
		return;
	Assert(loading == NULL);
	loading = item;
	in_doubt_load(item, locked_log, sku);
	loading = NULL;
	if (hidden_lapse_at != DT_NOEND)
		escrow_will_lapse(item, hidden_lapse_at);
}

bool
stock_xact_touch(StockLine *line, bool create)
{
	StockXactEntry *entry;
	bool		fresh;

	if (line->entry != 0)
		return true;
	stock_xact_make_room();
	entry = stock_xact_keep_pinned(escrow_pin(locked_log, line->sku), line,
								   &fresh);
	if (!escrow_is_loaded(entry->item))
		stock_xact_load(entry->item, line->sku);
	if (create || entry->part.created || escrow_is_known(entry->item))
		return true;
	line->entry = 0;
	if (fresh)
		escrow_unpin(stock_xact_pop_entry());
	return false;
}

/*
 * Records a step.  The caller has made room.
 */
static void
stock_xact_write(StockXactEntry *to, EscrowPart difference)
{
	StockXactStep step = {
		.entry = to - entries,
		.level = GetCurrentTransactionNestLevel(),
		.difference = difference
	};

	Assert(step_count < step_capacity);
	Assert(step_count == 0 || steps[step_count - 1].level <= step.level);
	to->part.taken += difference.taken;
	to->part.received += difference.received;
	to->part.left += difference.left;
	to->part.pending += difference.pending;
	to->part.joined += difference.joined;
	to->part.served += difference.served;
	steps[step_count++] = step;
}

/*
 * Not recorded as a step: the creator is the first to touch the item, so
 * rolling back its subtransaction removes the entry.
 */
void
stock_xact_create(const StockLine *line)
{
	stock_xact_entry(line)->part.created = true;
}

bool
stock_xact_is_new(const StockLine *line)
{
	return stock_xact_entry(line)->part.created;
}

bool
stock_xact_take(const StockLine *line, bool overtake)
{
	EscrowPart	difference = {0};
	StockXactEntry *entry;
	int64		own;
	int64		common;

	stock_xact_make_room();
	entry = stock_xact_entry(line);
	Assert(entry->part.pending >= 0);
	own = Min(entry->part.pending, line->quantity);
	common = line->quantity - own;
	if (!escrow_take(entry->item, common,
					 overtake ? PG_INT32_MAX : entry->part.served))
		return false;
	difference.taken = common;
	difference.pending = -own;
	stock_xact_write(entry, difference);
	return true;
}

void
stock_xact_add(const StockLine *line, bool is_new)
{
	EscrowPart	difference = {0};
	StockXactEntry *entry;
	int64		pending;

	stock_xact_make_room();
	entry = stock_xact_entry(line);
	if (pg_add_s64_overflow(entry->part.pending, line->quantity, &pending) ||
		(is_new && !escrow_receive(entry->item, line->quantity)))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("stock would be out of range"),
				 errdetail("What is available of an item and what is reserved must fit into a bigint together.")));
	difference.received = is_new ? line->quantity : 0;
	difference.pending = line->quantity;
	stock_xact_write(entry, difference);
	escrow_count_row(entry->item);
}

void
stock_xact_remove(const StockLine *line)
{
	EscrowPart	difference = {.left = line->quantity};

	stock_xact_make_room();
	stock_xact_write(stock_xact_entry(line), difference);
	escrow_count_row(stock_xact_item(line));
}

void
stock_xact_join(const StockLine *line)
{
	EscrowPart	difference = {.joined = 1};

	stock_xact_make_room();
	escrow_join(stock_xact_item(line));
	stock_xact_write(stock_xact_entry(line), difference);
}

void
stock_xact_leave(const StockLine *line)
{
	EscrowPart	difference = {.served = 1};

	stock_xact_make_room();
	stock_xact_write(stock_xact_entry(line), difference);
}

void
stock_xact_hide_lapse(TimestampTz lapses_at)
{
	hidden_lapse_at = Min(hidden_lapse_at, lapses_at);
}

/*
 * If there is no counter, no step is recorded.  The next load either sees this
 * change, or has too much on hand for a while, which only refuses quantities
 * near the limit of bigint.
 */
void
stock_xact_confirm(StockLine *line, TimestampTz lapses_at)
{
	EscrowItem *pinned;
	bool		fresh;

	stock_xact_make_room();
	pinned = escrow_pin_loaded(locked_log, line->sku);
	if (pinned == NULL)
	{
		stock_xact_hide_lapse(lapses_at);
		return;
	}
	(void) stock_xact_keep_pinned(pinned, line, &fresh);
	stock_xact_remove(line);
}

/*
 * The time is announced at once and again at the end of the transaction: a
 * session that searches for lapsed reservations in between does not see the new
 * ones.
 */
void
stock_xact_will_lapse(const StockLine *line, TimestampTz at)
{
	StockXactEntry *entry = stock_xact_entry(line);

	entry->part.lapses_at = Min(entry->part.lapses_at, at);
	escrow_will_lapse(entry->item, at);
}

void
stock_xact_note_lapsed(const StockLine *line)
{
	const StockXactEntry *entry = stock_xact_entry(line);

	if (entry->part.lapses_at <= GetCurrentTimestamp())
		escrow_will_lapse(entry->item, entry->part.lapses_at);
}

bool
stock_xact_next_lapsed(int *at, EscrowDue *due)
{
	TimestampTz now = GetCurrentTimestamp();

	while (*at < entry_count)
	{
		const StockXactEntry *entry = &entries[(*at)++];

		if (entry->part.lapses_at > now)
			continue;
		due->sku = escrow_sku(entry->item);
		due->from = entry->part.lapses_at;
		due->look = 0;
		return true;
	}
	return false;
}

/*
 * Whatever ends a hold writes a row of the log.
 */
bool
stock_xact_sees_committed(void)
{
	return first_id == PG_INT64_MAX && hidden_lapse_at == DT_NOEND;
}

int64
stock_xact_available(const StockLine *line)
{
	StockXactEntry *entry = stock_xact_entry(line);
	int64		available;

	if (pg_add_s64_overflow(escrow_available(entry->item), entry->part.pending,
							&available))
		return PG_INT64_MAX;
	return available;
}

int
stock_xact_waiting(const StockLine *line)
{
	StockXactEntry *entry = stock_xact_entry(line);

	return escrow_waiting(entry->item) - entry->part.served;
}

EscrowItem *
stock_xact_item(const StockLine *line)
{
	return stock_xact_entry(line)->item;
}

int
stock_xact_mark(void)
{
	return step_count;
}

void
stock_xact_undo(int mark)
{
	Assert(mark >= 0 && mark <= step_count);
	while (step_count > mark)
	{
		StockXactStep *step = &steps[--step_count];
		StockXactEntry *entry = &entries[step->entry];
		EscrowPart *difference = &step->difference;

		Assert(step->entry < entry_count);
		entry->part.taken -= difference->taken;
		entry->part.received -= difference->received;
		entry->part.left -= difference->left;
		entry->part.pending -= difference->pending;
		entry->part.joined -= difference->joined;
		entry->part.served -= difference->served;
		Assert(entry->part.taken >= 0 && entry->part.pending >= 0);
		Assert(entry->part.joined >= 0 && entry->part.served >= 0);
		if (escrow_undo(entry->item, difference))
			queue_call(QUEUE_SOME);
	}
}

void
stock_xact_note_id(int64 id)
{
	first_id = Min(first_id, id);
}

/*
 * Takes the lock with which no other transaction can have pins until this one
 * ends.  Prepared ones have ended, but nobody may have settled them.
 */
void
stock_xact_note_external(void)
{
	int			level = GetCurrentTransactionNestLevel();

	stock_xact_register_callbacks();
	lapse_begin();
	queue_begin();
	names_prepare();
	Assert(external_level <= level);
	locked_log = stock_xact_lock(ShareRowExclusiveLock);
	if (external_level == 0)
	{
		external_level = level;
		in_doubt_resolve();
	}
}

bool
stock_xact_is_external(void)
{
	return external_level > 0;
}
