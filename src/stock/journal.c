/*
 * journal.c
 *		What the open transaction has taken from the counters of items and
 *		added to them, and what its end makes of that.
 *
 * A note for each item: what was taken from the common counter, which an abort
 * gives back; and what was added and is left, which a commit gives to all.
 * Own additions are used up first and never touch the common counter before the
 * commit.  An entry for each step, so that a savepoint, or a call that falls
 * short halfway, can be undone.
 *
 * The order that keeps counter and log equal:
 *
 *   first   lock stock_log, to the end of the transaction;
 *   then    make room for the note, pin the counter, load it if need be;
 *   then    take: subtract and note it down with nothing in between that can
 *           fail; only then the row of the log
 *   end     the commit is visible: settle and unpin in one stretch; after that
 *           the server lets go of the lock
 *
 * PREPARE TRANSACTION is refused: no callback would run at COMMIT PREPARED.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/catalog.h"
#include "base/relation.h"
#include "base/shared.h"
#include "base/trigger.h"
#include "stock/item.h"
#include "stock/journal.h"

#define JOURNAL_INITIAL 16		/* notes, entries: doubled as needed */
#define JOURNAL_KEEP 1024		/* larger ones are freed after the transaction */

typedef struct JournalNote
{
	EscrowItem *item;
	EscrowPart	part;
	int64		pending;		/* added, and not taken again */
	bool		created;
	TimestampTz lapses_at;		/* the first of its reservations to do so */
	int			level;			/* of nested transactions that first touched it */
} JournalNote;

/* The difference that a step made to a note. */
typedef struct JournalEntry
{
	int			note;
	int			level;			/* of nested transactions that made it */
	JournalNote difference;
} JournalEntry;

/* Which note an item has. */
typedef struct NoteSlot
{
	EscrowItem *item;
	int			note;
	char		status;
} NoteSlot;

#define SH_PREFIX slots
#define SH_ELEMENT_TYPE NoteSlot
#define SH_KEY_TYPE EscrowItem *
#define SH_KEY item
#define SH_HASH_KEY(table, key) murmurhash32((uint32) ((uintptr_t) (key) >> 4))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static JournalNote *notes = NULL;
static int	note_count = 0;
static int	note_room = 0;
static JournalEntry *entries = NULL;
static int	entry_count = 0;
static int	entry_room = 0;
static slots_hash *slots = NULL;

static Oid	locked_log = InvalidOid;	/* by this transaction */
static EscrowItem *pinned = NULL;	/* and not noted down yet */
static EscrowItem *loading = NULL;
static int	foreign_level = 0;	/* 0: no other hands are at the tables */
static bool callbacks_registered = false;

/*
 * Forgets everything; cannot fail.
 */
static void
journal_reset(void)
{
	note_count = 0;
	entry_count = 0;
	locked_log = InvalidOid;
	foreign_level = 0;
	if (slots == NULL)
		return;					/* no room was made yet */
	slots_reset(slots);
	if (Max(note_room, entry_room) <= JOURNAL_KEEP)
		return;
	pfree(notes);
	pfree(entries);
	slots_destroy(slots);
	notes = NULL;
	entries = NULL;
	slots = NULL;
	note_room = entry_room = 0;
}

/*
 * What an error has interrupted: the pin that has no note, the load.
 */
static void
journal_let_go(void)
{
	if (loading != NULL)
		escrow_fail_load(loading);
	loading = NULL;
	if (pinned != NULL)
		escrow_unpin(pinned);
	pinned = NULL;
}

static void
journal_end(bool committed)
{
	journal_let_go();
	for (int i = 0; i < note_count; i++)
	{
		JournalNote *note = &notes[i];

		escrow_settle(note->item,
					  committed ? note->pending : note->part.taken,
					  committed ? note->part.left : note->part.received,
					  committed && note->created, note->lapses_at);
	}
	if (committed && foreign_level > 0)
		escrow_forget_all(locked_log);
	journal_reset();
}

static void
journal_refuse_prepare(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot PREPARE a transaction that has changed stock")));
}

/*
 * Runs after the end of the transaction has become visible to new snapshots,
 * and before its locks go.
 */
static void
journal_transaction_ended(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			if (OidIsValid(locked_log))
				journal_end(event == XACT_EVENT_COMMIT);
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (OidIsValid(locked_log))
				journal_refuse_prepare();
			break;
		default:
			break;
	}
}

/*
 * What a savepoint's end makes of the entries that belong to it.
 */
static void
journal_end_entries(int level, bool committed)
{
	int			mark = entry_count;

	for (; mark > 0 && entries[mark - 1].level >= level; mark--)
		entries[mark - 1].level = level - 1;
	if (!committed)
		journal_undo(mark);
}

/*
 * The lock of the log that it took goes with a savepoint that is rolled back.
 * So do the pins of what it was the first to touch; those of the levels above
 * stay.
 */
static void
journal_end_notes(int level, bool committed)
{
	int			mark = note_count;

	for (; mark > 0 && notes[mark - 1].level >= level; mark--)
		notes[mark - 1].level = level - 1;
	while (!committed && note_count > mark)
	{
		EscrowItem *item = notes[--note_count].item;

		Assert(slots != NULL);
		(void) slots_delete(slots, item);
		escrow_unpin(item);
	}
}

static void
journal_subtransaction_ended(SubXactEvent event, SubTransactionId mine,
							 SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	bool		committed = event == SUBXACT_EVENT_COMMIT_SUB;

	if (!OidIsValid(locked_log) ||
		(event != SUBXACT_EVENT_ABORT_SUB && !committed))
		return;
	if (!committed)
		journal_let_go();
	journal_end_entries(level, committed);
	journal_end_notes(level, committed);
	if (foreign_level >= level)
		foreign_level = committed ? level - 1 : 0;
}

static void
journal_register_callbacks(void)
{
	if (callbacks_registered)
		return;
	RegisterXactCallback(journal_transaction_ended, NULL);
	RegisterSubXactCallback(journal_subtransaction_ended, NULL);
	callbacks_registered = true;
}

/*
 * Looks the log up anew if it is another once the lock is there: the extension
 * may have been dropped and created until then.  The lock belongs to the
 * transaction, or to the savepoint, as the notes do.
 */
static Oid
journal_lock(LOCKMODE mode)
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
journal_begin(void)
{
	shared_require("stock");
	PreventCommandIfParallelMode("a change of stock");
	if (foreign_level > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot change stock in a transaction that has written to its tables directly"),
				 errhint("Commit first.")));
	journal_register_callbacks();
	locked_log = journal_lock(RowExclusiveLock);
	trigger_require(&catalog_get()->stock_triggers);
	return locked_log;
}

/*
 * Room for one more note and entry, so that they can be written without fail.
 */
static void
journal_make_room(void)
{
	if (slots == NULL)
		slots = slots_create(TopMemoryContext, JOURNAL_INITIAL, NULL);
	if (note_count == note_room)
	{
		int			room = Max(note_room * 2, JOURNAL_INITIAL);
		Size		size = mul_size(room, sizeof(JournalNote));

		notes = notes == NULL ? MemoryContextAlloc(TopMemoryContext, size) :
			repalloc_huge(notes, size);
		note_room = room;
	}
	if (entry_count == entry_room)
	{
		int			room = Max(entry_room * 2, JOURNAL_INITIAL);
		Size		size = mul_size(room, sizeof(JournalEntry));

		entries = entries == NULL ? MemoryContextAlloc(TopMemoryContext, size) :
			repalloc_huge(entries, size);
		entry_room = room;
	}
}

/*
 * Keeps the counter that was just pinned, unless this transaction has it pinned,
 * for which there is room.  Returns its note and whether that is new.
 */
static int
journal_keep_pinned(bool *fresh)
{
	NoteSlot   *slot;
	bool		found;

	slot = slots_insert(slots, pinned, &found);
	if (found)
		escrow_unpin(pinned);
	else
	{
		slot->note = note_count++;
		notes[slot->note] = (JournalNote) {
			.item = pinned,
			.lapses_at = DT_NOEND,
			.level = GetCurrentTransactionNestLevel()
		};
	}
	pinned = NULL;
	*fresh = !found;
	return slot->note;
}

/*
 * The locks come first: while a load is under way, others sleep until it is
 * done, which the deadlock detector does not see.
 */
static void
journal_load(EscrowItem *item, const text *sku)
{
	ItemLevel	level;

	item_lock_for_load();
	if (!escrow_begin_load(item))
		return;
	loading = item;
	level = item_load(sku);
	escrow_publish(item, &level);
	loading = NULL;
}

int
journal_touch(const text *sku, bool create)
{
	bool		fresh;
	int			note;
	EscrowItem *item;

	journal_make_room();
	pinned = escrow_pin(locked_log, sku);
	note = journal_keep_pinned(&fresh);
	item = notes[note].item;
	if (!escrow_is_loaded(item))
		journal_load(item, sku);
	if (create || notes[note].created || escrow_is_known(item))
		return note;
	if (fresh)
	{
		(void) slots_delete(slots, item);
		note_count--;
		escrow_unpin(item);
	}
	return -1;
}

/*
 * Writes a step down, for which there is room.
 */
static void
journal_write(int note, JournalNote difference)
{
	JournalNote *to = &notes[note];

	to->part.taken += difference.part.taken;
	to->part.received += difference.part.received;
	to->part.left += difference.part.left;
	to->pending += difference.pending;
	entries[entry_count++] = (JournalEntry) {
		.note = note,
		.level = GetCurrentTransactionNestLevel(),
		.difference = difference
	};
}

/*
 * The item's creator is the first to touch it: a savepoint that is rolled back
 * takes the note along.
 */
void
journal_create(int note)
{
	notes[note].created = true;
}

bool
journal_is_new(int note)
{
	return notes[note].created;
}

bool
journal_take(int note, int64 quantity)
{
	int64		own = Min(notes[note].pending, quantity);
	int64		common = quantity - own;

	journal_make_room();
	if (!escrow_take(notes[note].item, common))
		return false;
	journal_write(note, (JournalNote) {.part.taken = common,.pending = -own});
	return true;
}

void
journal_add(int note, int64 quantity, bool is_new)
{
	int64		pending;

	journal_make_room();
	if (pg_add_s64_overflow(notes[note].pending, quantity, &pending) ||
		(is_new && !escrow_receive(notes[note].item, quantity)))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("stock would be out of range"),
				 errdetail("What is available of an item and what is reserved must fit into a bigint together.")));
	journal_write(note, (JournalNote) {
		.part.received = is_new ? quantity : 0,.pending = quantity
	});
	escrow_count_row(notes[note].item);
}

void
journal_remove(int note, int64 quantity)
{
	journal_make_room();
	journal_write(note, (JournalNote) {.part.left = quantity});
}

/*
 * Where there is no counter, the next load sees it, or sees too much on hand for
 * a while: that only refuses what comes near the range of bigint.
 */
void
journal_confirm(const text *sku, int64 quantity)
{
	bool		fresh;
	int			note;

	journal_make_room();
	pinned = escrow_pin_loaded(locked_log, sku);
	if (pinned == NULL)
		return;
	note = journal_keep_pinned(&fresh);
	escrow_count_row(notes[note].item);
	journal_remove(note, quantity);
}

/*
 * Said at once, and again at the end: who looks for lapsed ones in between does
 * not see these yet.
 */
void
journal_will_lapse(int note, TimestampTz at)
{
	notes[note].lapses_at = Min(notes[note].lapses_at, at);
	escrow_will_lapse(notes[note].item, at);
}

int64
journal_available(int note)
{
	int64		available;

	if (pg_add_s64_overflow(escrow_available(notes[note].item),
							notes[note].pending, &available))
		return PG_INT64_MAX;
	return available;
}

EscrowItem *
journal_item(int note)
{
	return notes[note].item;
}

int
journal_mark(void)
{
	return entry_count;
}

void
journal_undo(int mark)
{
	while (entry_count > mark)
	{
		JournalEntry *entry = &entries[--entry_count];
		JournalNote *note = &notes[entry->note];
		JournalNote *difference = &entry->difference;

		note->part.taken -= difference->part.taken;
		note->part.received -= difference->part.received;
		note->part.left -= difference->part.left;
		note->pending -= difference->pending;
		escrow_undo(note->item, &difference->part);
	}
}

/*
 * The lock keeps everybody else from having pins until this transaction ends.
 */
void
journal_note_foreign(void)
{
	int			level = GetCurrentTransactionNestLevel();

	journal_register_callbacks();
	locked_log = journal_lock(ShareRowExclusiveLock);
	if (foreign_level == 0)
		foreign_level = level;
}

bool
journal_is_foreign(void)
{
	return foreign_level > 0;
}
