/*
 * escrow.c
 *		The counters of available quantities, in shared memory.
 *
 * A row that every reservation updates is locked from the update to the commit,
 * so such reservations commit one after another.  Therefore the available
 * quantity of an item in use is in shared memory: a reservation takes from the
 * counter at once and writes only rows of its own.  A commit keeps what was
 * taken, an abort gives it back.  What a transaction adds becomes available to
 * others when it commits.  stock_xact.c keeps the part of each transaction.
 *
 * The counter is a cache of root record, log and holds, and never the truth.
 * It equals them because of these rules:
 *
 * - A transaction pins a counter before it has any effect on the item, and
 *   unpins it after its end is visible and settled here.  A counter is loaded
 *   only if it is missing, and before any transaction that has pinned it has
 *   effects.
 * - A transaction holds RowExclusiveLock on stock_log from before it pins until
 *   after it unpins.  External DML takes a lock that conflicts with it
 *   (guard.c), so there are no pins then, and drops the counters.
 * - Pinned counters are not evicted.
 *
 * Locks.  Items are in an array of places, and in chains by hash value.  The
 * LWLock of a chain's partition guards which items are in the chain; a spinlock
 * in each place guards the numbers.  No code that can fail runs under either
 * lock or in the callbacks at the end of a transaction.  Scans over many items
 * visit one place at a time and hold no partition lock in between.
 *
 * The key contains the OID of the log, so that counters from before a DROP
 * EXTENSION match nothing.  The counters of a database are dropped with the
 * database, since its OIDs can be reused.
 *
 * The sweeper finds what it has to do by these counters, too, and not by a
 * search of the tables, which has to look at each item: the items with a long
 * log, and those of which a reservation lapses.  What an evicted counter has
 * known of that is noted for all items without a counter together, and then
 * there is a search (lapse.c).
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/int.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/args.h"
#include "base/settings.h"
#include "stock/escrow.h"
#include "stock/lapse.h"
#include "stock/queue.h"
#include "stock/stock.h"

#define ESCROW_PARTITIONS 128
#define ESCROW_TRANCHE "idempotency stock"
#define ESCROW_ROUNDS 3			/* passes over all places to find one */
#define ESCROW_NONE (-1)		/* no item: the end of a chain */
#define ESCROW_BITS 32			/* per word */
#define ESCROW_GROUP 64			/* places whose lapses are noted together */

typedef struct EscrowKey
{
	Oid			database;
	Oid			log;
	uint32		hash;			/* of the other fields */
	int			length;
	char		sku[STOCK_NAME_MAX];
} EscrowKey;

typedef enum EscrowState
{
	ESCROW_MISSING,
	ESCROW_LOADING,
	ESCROW_READY
} EscrowState;

/* The state of a place in the array. */
typedef enum EscrowPlace
{
	ESCROW_FREE,
	ESCROW_TAKEN,				/* a session is about to put an item in it */
	ESCROW_IN_USE				/* it has an item, which is in its chain */
} EscrowPlace;

struct EscrowItem
{
	int			next;			/* in its chain; guarded by the partition */
	EscrowKey	key;			/* does not change while the place is in use */
	slock_t		mutex;			/* guards the fields below */
	EscrowPlace place;
	EscrowState state;
	bool		known;			/* the item exists */
	bool		used;			/* since the last search for a place */
	int			pins;			/* number of pins by transactions */
	int			rows;			/* approximate number in its log */
	int			waiting;		/* reservations in its queue */
	uint64		touches;		/* number of pins so far */
	int64		available;
	int64		on_hand;		/* upper bound of available plus reserved */
	bool		too_many;		/* on hand was out of range when loaded */
	TimestampTz lapses_at;		/* none of its holds lapses before this */
	uint64		lapses_sooner;	/* changes by escrow_will_lapse */
	int64		queue_from;		/* no row of its queue has a smaller id */
	uint64		queue_joins;	/* commits that have joined the queue */
	ConditionVariable loaded;
};

/*
 * State that does not belong to one item.
 */
typedef struct EscrowShared
{
	pg_atomic_uint32 hand;		/* where the search for a place continues */
	pg_atomic_uint32 crowd;		/* a log with more rows is crowded */
} EscrowShared;

static EscrowShared *shared = NULL;
static EscrowItem *items = NULL;	/* settings_stock_items places */
static int *chains = NULL;		/* first item of each; guarded like "next" */
static pg_atomic_uint32 *crowded = NULL;	/* one bit per place */
static pg_atomic_uint32 *called = NULL; /* likewise: the queue may be served */

/* Of each group, a time before which no reservation of its items lapses. */
static pg_atomic_uint64 *groups = NULL;
static LWLockPadded *partitions = NULL;

/*
 * Returns the number of chains: a multiple of the number of partitions, so that
 * each chain belongs to one partition.
 */
static int
escrow_chains(void)
{
	return TYPEALIGN(ESCROW_PARTITIONS, settings_stock_items);
}

static int
escrow_words(void)
{
	return settings_stock_items / ESCROW_BITS + 1;
}

static int
escrow_groups(void)
{
	return settings_stock_items / ESCROW_GROUP + 1;
}

void
escrow_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(EscrowShared)));
	RequestAddinShmemSpace(mul_size(settings_stock_items, sizeof(EscrowItem)));
	RequestAddinShmemSpace(mul_size(escrow_chains(), sizeof(int)));
	RequestAddinShmemSpace(mul_size(2 * escrow_words(),
									sizeof(pg_atomic_uint32)));
	RequestAddinShmemSpace(mul_size(escrow_groups(),
									sizeof(pg_atomic_uint64)));
	RequestNamedLWLockTranche(ESCROW_TRANCHE, ESCROW_PARTITIONS);
}

static void
escrow_init_shared(void)
{
	pg_atomic_init_u32(&shared->hand, 0);
	pg_atomic_init_u32(&shared->crowd, settings_stock_compact_after);
	for (int i = 0; i < settings_stock_items; i++)
	{
		SpinLockInit(&items[i].mutex);
		items[i].place = ESCROW_FREE;
	}
	for (int i = 0; i < escrow_chains(); i++)
		chains[i] = ESCROW_NONE;
	for (int i = 0; i < 2 * escrow_words(); i++)
		pg_atomic_init_u32(&crowded[i], 0);
	for (int i = 0; i < escrow_groups(); i++)
		pg_atomic_init_u64(&groups[i], (uint64) DT_NOEND);
}

void
escrow_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("idempotency stock", sizeof(EscrowShared), &found);
	items = ShmemInitStruct("idempotency stock items",
							mul_size(settings_stock_items, sizeof(EscrowItem)),
							&found);
	chains = ShmemInitStruct("idempotency stock chains",
							 mul_size(escrow_chains(), sizeof(int)), &found);
	crowded = ShmemInitStruct("idempotency stock crowded",
							  mul_size(2 * escrow_words(),
									   sizeof(pg_atomic_uint32)),
							  &found);
	called = crowded + escrow_words();
	groups = ShmemInitStruct("idempotency stock groups",
							 mul_size(escrow_groups(),
									  sizeof(pg_atomic_uint64)),
							 &found);
	partitions = GetNamedLWLockTranche(ESCROW_TRANCHE);
	if (!found)
		escrow_init_shared();
	LWLockRelease(AddinShmemInitLock);
}

/*
 * The sku may come from a row, so its length is checked here.
 */
static EscrowKey
escrow_key(Oid log, const text *sku)
{
	EscrowKey	key = {.database = MyDatabaseId, .log = log};

	key.length = VARSIZE_ANY_EXHDR(sku);
	if (key.length > STOCK_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sku is too long"),
				 errdetail("It has %d bytes; the limit is %d.",
						   key.length, STOCK_NAME_MAX)));
	memcpy(key.sku, VARDATA_ANY(sku), key.length);
	key.hash = hash_bytes((const unsigned char *) key.sku, key.length);
	key.hash = hash_combine(key.hash, key.database ^ key.log);
	return key;
}

static bool
escrow_same_key(const EscrowKey *a, const EscrowKey *b)
{
	return a->hash == b->hash && a->database == b->database &&
		a->log == b->log && a->length == b->length &&
		memcmp(a->sku, b->sku, a->length) == 0;
}

static int *
escrow_chain(uint32 hash)
{
	return &chains[hash % escrow_chains()];
}

static LWLock *
escrow_partition(uint32 hash)
{
	return &partitions[hash % escrow_chains() % ESCROW_PARTITIONS].lock;
}

/*
 * Finds an item in its chain.  The caller holds the lock of the partition.
 */
static EscrowItem *
escrow_find(const EscrowKey *key)
{
	int			at = *escrow_chain(key->hash);

	Assert(LWLockHeldByMe(escrow_partition(key->hash)));
	while (at != ESCROW_NONE)
	{
		if (escrow_same_key(&items[at].key, key))
			return &items[at];
		at = items[at].next;
	}
	return NULL;
}

static void
escrow_pin_found(EscrowItem *item)
{
	SpinLockAcquire(&item->mutex);
	Assert(item->place == ESCROW_IN_USE && item->pins >= 0);
	item->pins++;
	item->touches++;
	item->used = true;
	SpinLockRelease(&item->mutex);
}

void
escrow_pin_again(EscrowItem *item)
{
	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0);
	item->pins++;
	SpinLockRelease(&item->mutex);
}

text *
escrow_sku(const EscrowItem *item)
{
	return cstring_to_text_with_len(item->key.sku, item->key.length);
}

static EscrowItem *
escrow_find_and_pin(const EscrowKey *key)
{
	EscrowItem *item;

	LWLockAcquire(escrow_partition(key->hash), LW_SHARED);
	item = escrow_find(key);
	if (item != NULL)
		escrow_pin_found(item);
	LWLockRelease(escrow_partition(key->hash));
	return item;
}

static void
escrow_set_place(EscrowItem *item, EscrowPlace place)
{
	SpinLockAcquire(&item->mutex);
	item->place = place;
	SpinLockRelease(&item->mutex);
}

/*
 * Removes an item with this hash from its chain unless it is pinned.  The place
 * then belongs to the caller.
 */
static bool
escrow_remove(EscrowItem *item, uint32 hash)
{
	int			at = item - items;
	bool		remove;

	LWLockAcquire(escrow_partition(hash), LW_EXCLUSIVE);
	SpinLockAcquire(&item->mutex);
	remove = item->place == ESCROW_IN_USE && item->key.hash == hash &&
		item->pins == 0;
	if (remove)
		item->place = ESCROW_TAKEN;
	SpinLockRelease(&item->mutex);
	if (remove)
	{
		int		   *link = escrow_chain(hash);

		while (*link != at)
		{
			Assert(*link != ESCROW_NONE);
			link = &items[*link].next;
		}
		*link = item->next;
	}
	LWLockRelease(escrow_partition(hash));
	return remove;
}

/*
 * Notes a time at which a reservation of an item lapses.  It is in the item
 * before, so that whoever reads the group misses none.
 */
static void
escrow_note_lapse(const EscrowItem *item, TimestampTz at)
{
	lapse_lower(&groups[(item - items) / ESCROW_GROUP], at);
}

/*
 * Returns whether the bit of a place was set, and clears it.
 */
static bool
escrow_take_bit(pg_atomic_uint32 *words, int at)
{
	uint32		bit = (uint32) 1 << (at % ESCROW_BITS);

	return (pg_atomic_fetch_and_u32(&words[at / ESCROW_BITS], ~bit) & bit) != 0;
}

/*
 * Passes on what an evicted counter has known, in a place that the caller has
 * taken.
 */
static void
escrow_evicted(const EscrowItem *item)
{
	TimestampTz at = item->state == ESCROW_READY ? item->lapses_at : DT_NOBEGIN;

	Assert(item->place == ESCROW_TAKEN && item->pins == 0);
	if (at != DT_NOEND)
		lapse_note_evicted(item->key.database, at);
	if (escrow_take_bit(called, item - items))
		queue_call_evicted(item->key.database);
}

/*
 * Takes a place if it is free, or if its item is not pinned and was not used
 * since the last search (or used_too).
 */
static bool
escrow_try_place(EscrowItem *item, bool used_too)
{
	bool		evict;
	bool		taken;
	uint32		hash;

	SpinLockAcquire(&item->mutex);
	taken = item->place == ESCROW_FREE;
	if (taken)
		item->place = ESCROW_TAKEN;
	evict = item->place == ESCROW_IN_USE && item->pins == 0 &&
		(used_too || !item->used);
	item->used = false;
	hash = item->key.hash;
	SpinLockRelease(&item->mutex);
	if (taken || !evict || !escrow_remove(item, hash))
		return taken;
	escrow_evicted(item);
	return true;
}

/*
 * Searches for a place, from where the last search ended: a free one or one
 * that was not used since; in the last round any that is not pinned.
 */
static EscrowItem *
escrow_take_place(void)
{
	uint32		room = settings_stock_items;

	for (uint64 looks = 0; looks < ESCROW_ROUNDS * (uint64) room; looks++)
	{
		uint32		at = pg_atomic_fetch_add_u32(&shared->hand, 1) % room;

		CHECK_FOR_INTERRUPTS();
		if (escrow_try_place(&items[at],
							 looks >= (ESCROW_ROUNDS - 1) * (uint64) room))
			return &items[at];
	}
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many items of stock are in use"),
			 errdetail("There is room for %d, and open transactions have changed each of them.",
					   settings_stock_items),
			 errhint("Increase idempotency.stock_items.")));
}

/*
 * No other session reads a place that is taken.
 */
static void
escrow_init(EscrowItem *item, const EscrowKey *key)
{
	item->key = *key;
	item->state = ESCROW_MISSING;
	item->known = false;
	item->used = true;
	item->pins = 1;
	item->rows = 0;
	item->waiting = 0;
	/* A counter that was evicted and loaded again must differ in touches. */
	item->touches = (uint64) GetCurrentTimestamp();
	item->available = 0;
	item->on_hand = 0;
	item->lapses_at = DT_NOBEGIN;
	item->lapses_sooner = item->touches;	/* and in looks */
	item->queue_from = 0;
	item->queue_joins = item->touches;
	ConditionVariableInit(&item->loaded);
}

/*
 * Adds an item, pinned, in a place that the caller has taken.  If another
 * session has added the item in between, pins that one and frees the place.
 */
static EscrowItem *
escrow_add_item(EscrowItem *place, const EscrowKey *key)
{
	LWLock	   *partition = escrow_partition(key->hash);
	EscrowItem *item;

	Assert(place->place == ESCROW_TAKEN);
	LWLockAcquire(partition, LW_EXCLUSIVE);
	item = escrow_find(key);
	if (item != NULL)
		escrow_pin_found(item);
	else
	{
		escrow_init(place, key);
		place->next = *escrow_chain(key->hash);
		*escrow_chain(key->hash) = place - items;
	}
	escrow_set_place(place, item == NULL ? ESCROW_IN_USE : ESCROW_FREE);
	LWLockRelease(partition);
	return item == NULL ? place : item;
}

EscrowItem *
escrow_pin(Oid log, const text *sku)
{
	EscrowKey	key = escrow_key(log, sku);
	EscrowItem *item = escrow_find_and_pin(&key);

	if (item == NULL)
		item = escrow_add_item(escrow_take_place(), &key);
	return item;
}

/*
 * Ignores a counter that is being loaded: whether the load includes the
 * caller's changes is not known.
 */
EscrowItem *
escrow_pin_loaded(Oid log, const text *sku)
{
	EscrowKey	key = escrow_key(log, sku);
	EscrowItem *item = escrow_find_and_pin(&key);

	if (item == NULL || escrow_is_loaded(item))
		return item;
	escrow_unpin(item);
	return NULL;
}

/*
 * Sets the bit of an item with many rows.  The sweeper reads the bits instead
 * of all items.
 */
static void
escrow_note_crowded(const EscrowItem *item, int rows)
{
	int			at = item - items;
	pg_atomic_uint32 *word = &crowded[at / ESCROW_BITS];
	uint32		bit = (uint32) 1 << (at % ESCROW_BITS);

	if ((uint32) rows > pg_atomic_read_u32(&shared->crowd) &&
		(pg_atomic_read_u32(word) & bit) == 0)
		pg_atomic_fetch_or_u32(word, bit);
}

void
escrow_unpin(EscrowItem *item)
{
	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0);
	item->pins--;
	SpinLockRelease(&item->mutex);
}

bool
escrow_is_loaded(EscrowItem *item)
{
	bool		loaded;

	SpinLockAcquire(&item->mutex);
	loaded = item->state == ESCROW_READY;
	SpinLockRelease(&item->mutex);
	return loaded;
}

bool
escrow_begin_load(EscrowItem *item)
{
	EscrowState found;

	Assert(item->pins > 0);
	ConditionVariablePrepareToSleep(&item->loaded);
	for (;;)
	{
		SpinLockAcquire(&item->mutex);
		found = item->state;
		if (found == ESCROW_MISSING)
			item->state = ESCROW_LOADING;
		SpinLockRelease(&item->mutex);
		if (found != ESCROW_LOADING)
			break;
		ConditionVariableSleep(&item->loaded, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	return found == ESCROW_MISSING;
}

void
escrow_publish(EscrowItem *item, const ItemLevel *level)
{
	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->state == ESCROW_LOADING);
	item->state = ESCROW_READY;
	item->known = level->known;
	item->available = level->available;
	item->on_hand = level->on_hand;
	item->too_many = level->too_many;
	item->rows = level->rows;
	item->waiting = level->waiting;
	item->lapses_at = level->lapses_at;
	SpinLockRelease(&item->mutex);
	escrow_note_crowded(item, level->rows);
	escrow_note_lapse(item, level->lapses_at);
	ConditionVariableBroadcast(&item->loaded);
}

void
escrow_fail_load(EscrowItem *item)
{
	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->state == ESCROW_LOADING);
	item->state = ESCROW_MISSING;
	SpinLockRelease(&item->mutex);
	ConditionVariableBroadcast(&item->loaded);
}

bool
escrow_is_there(Oid log, const text *sku)
{
	EscrowKey	key = escrow_key(log, sku);
	EscrowItem *item;
	bool		loaded;

	LWLockAcquire(escrow_partition(key.hash), LW_SHARED);
	item = escrow_find(&key);
	loaded = item != NULL && escrow_is_loaded(item);
	LWLockRelease(escrow_partition(key.hash));
	return loaded;
}

bool
escrow_is_known(EscrowItem *item)
{
	bool		known;

	SpinLockAcquire(&item->mutex);
	known = item->known;
	SpinLockRelease(&item->mutex);
	return known;
}

int64
escrow_available(EscrowItem *item)
{
	int64		available;

	SpinLockAcquire(&item->mutex);
	available = item->available;
	SpinLockRelease(&item->mutex);
	return available;
}

int
escrow_waiting(EscrowItem *item)
{
	int			waiting;

	SpinLockAcquire(&item->mutex);
	waiting = item->waiting;
	SpinLockRelease(&item->mutex);
	return waiting;
}

bool
escrow_take(EscrowItem *item, int64 quantity, int past)
{
	bool		enough;

	Assert(quantity >= 0);
	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->state == ESCROW_READY);
	enough = item->available >= quantity && item->waiting <= past;
	if (enough)
		item->available -= quantity;
	SpinLockRelease(&item->mutex);
	return enough;
}

/*
 * The counter must not overflow, however open transactions and reservations
 * end.  It cannot, since the available quantity is never more than what is on
 * hand, which is checked here.  If on_hand was out of range when the counter
 * was loaded, its true value is not known, so nothing can be received.
 */
bool
escrow_receive(EscrowItem *item, int64 quantity)
{
	int64		on_hand;
	bool		fits;

	Assert(quantity >= 0);
	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->state == ESCROW_READY);
	fits = !item->too_many &&
		!pg_add_s64_overflow(item->on_hand, quantity, &on_hand);
	if (fits)
		item->on_hand = on_hand;
	SpinLockRelease(&item->mutex);
	return fits;
}

/*
 * The sum can be out of range only if holds were written by external DML.
 */
static int64
escrow_add(int64 available, int64 quantity)
{
	int64		sum;

	return pg_add_s64_overflow(available, quantity, &sum) ? PG_INT64_MAX : sum;
}

void
escrow_join(EscrowItem *item)
{
	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->waiting >= 0);
	item->waiting++;
	SpinLockRelease(&item->mutex);
}

/*
 * Notes that the queue of an item could be served, while it is pinned: an
 * eviction passes that on.
 */
void
escrow_call(EscrowItem *item)
{
	int			at = item - items;

	Assert(item->pins > 0);
	pg_atomic_fetch_or_u32(&called[at / ESCROW_BITS],
						   (uint32) 1 << (at % ESCROW_BITS));
}

/*
 * Undoes a part; the caller holds the mutex.
 */
static bool
escrow_give_back(EscrowItem *item, const EscrowPart *part)
{
	bool		call;

	Assert(item->pins > 0 && item->waiting >= part->joined);
	Assert(part->taken >= 0 && part->received >= 0);
	item->available = escrow_add(item->available, part->taken);
	item->on_hand -= part->received;
	item->waiting -= part->joined;
	call = item->waiting > 0 && part->taken > 0;
	if (call)
		escrow_call(item);
	return call;
}

bool
escrow_undo(EscrowItem *item, const EscrowPart *part)
{
	bool		call;

	SpinLockAcquire(&item->mutex);
	call = escrow_give_back(item, part);
	SpinLockRelease(&item->mutex);
	return call;
}

bool
escrow_abort(EscrowItem *item, const EscrowPart *part)
{
	bool		call;

	SpinLockAcquire(&item->mutex);
	call = escrow_give_back(item, part);
	item->pins--;
	SpinLockRelease(&item->mutex);
	return call;
}

/*
 * The queue is also served after a reservation has joined it: what became
 * available before that did not concern the queue.  Searches that have not seen
 * the new reservations must not tell when the next one lapses.
 */
bool
escrow_commit(EscrowItem *item, const EscrowPart *part)
{
	bool		call;

	if (part->lapses_at != DT_NOEND)
		escrow_will_lapse(item, part->lapses_at);

	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->waiting >= part->served);
	Assert(part->pending >= 0 && part->left >= 0);
	item->available = escrow_add(item->available, part->pending);
	item->on_hand -= part->left;
	item->waiting -= part->served;
	item->known |= part->created;
	if (part->joined > 0)
	{
		item->queue_from = Min(item->queue_from, part->first_id);
		item->queue_joins++;
	}
	call = item->waiting > 0 &&
		(part->pending > 0 || part->joined > 0 || part->served > 0);
	if (call)
		escrow_call(item);
	item->pins--;
	SpinLockRelease(&item->mutex);
	return call;
}

int64
escrow_queue_from(EscrowItem *item, uint64 *look)
{
	int64		from;

	SpinLockAcquire(&item->mutex);
	from = item->queue_from;
	*look = item->queue_joins;
	SpinLockRelease(&item->mutex);
	return from;
}

void
escrow_set_queue_from(EscrowItem *item, int64 id, uint64 look)
{
	SpinLockAcquire(&item->mutex);
	if (item->queue_joins == look)
		item->queue_from = id;
	SpinLockRelease(&item->mutex);
}

/*
 * Looks at a place for escrow_next_called.  What was noted of other databases,
 * or is noted from now on, stays.
 */
static bool
escrow_was_called(EscrowItem *item, Oid log, text **sku)
{
	EscrowKey	key;
	bool		found;

	SpinLockAcquire(&item->mutex);
	found = item->place == ESCROW_IN_USE &&
		item->key.database == MyDatabaseId && item->key.log == log &&
		escrow_take_bit(called, item - items);
	if (found)
		key = item->key;
	SpinLockRelease(&item->mutex);
	if (found)
		*sku = cstring_to_text_with_len(key.sku, key.length);
	return found;
}

bool
escrow_next_called(int *looks, Oid log, text **sku)
{
	static int	next = 0;		/* where the search continues */

	while (*looks < settings_stock_items)
	{
		int			at = next;

		if (at % ESCROW_BITS == 0 &&
			pg_atomic_read_u32(&called[at / ESCROW_BITS]) == 0)
		{
			*looks += ESCROW_BITS;
			next = at + ESCROW_BITS < settings_stock_items ?
				at + ESCROW_BITS : 0;
			continue;
		}
		(*looks)++;
		next = (at + 1) % settings_stock_items;
		if (escrow_was_called(&items[at], log, sku))
			return true;
	}
	return false;
}

bool
escrow_may_lapse(EscrowItem *item, TimestampTz now, EscrowDue *due)
{
	SpinLockAcquire(&item->mutex);
	due->from = item->lapses_at;
	due->look = item->lapses_sooner;
	SpinLockRelease(&item->mutex);
	return due->from <= now;
}

/*
 * The search may have missed a reservation that was made meanwhile.
 */
void
escrow_none_lapses(EscrowItem *item, TimestampTz before, uint64 look)
{
	SpinLockAcquire(&item->mutex);
	if (item->lapses_sooner == look)
		item->lapses_at = before;
	SpinLockRelease(&item->mutex);
	escrow_note_lapse(item, before);
}

void
escrow_none_lapses_of(Oid log, const EscrowDue *due, TimestampTz before)
{
	EscrowItem *item = escrow_pin_loaded(log, due->sku);

	if (item == NULL)
		return;
	escrow_none_lapses(item, before, due->look);
	escrow_unpin(item);
}

void
escrow_will_lapse(EscrowItem *item, TimestampTz at)
{
	SpinLockAcquire(&item->mutex);
	item->lapses_at = Min(item->lapses_at, at);
	item->lapses_sooner++;
	SpinLockRelease(&item->mutex);
	escrow_note_lapse(item, at);
}

/*
 * Looks at a place for escrow_next_due.  The sku is copied when the mutex is
 * released.
 */
static bool
escrow_is_due(EscrowItem *item, Oid log, TimestampTz now, EscrowDue *due)
{
	EscrowKey	key;
	bool		found;

	SpinLockAcquire(&item->mutex);
	found = item->place == ESCROW_IN_USE && item->state == ESCROW_READY &&
		item->key.database == MyDatabaseId && item->key.log == log &&
		item->lapses_at <= now;
	if (found)
		key = item->key;
	due->from = item->lapses_at;
	due->look = item->lapses_sooner;
	SpinLockRelease(&item->mutex);
	if (found)
		due->sku = cstring_to_text_with_len(key.sku, key.length);
	return found;
}

/*
 * Returns whether a reservation of any item in a group may have lapsed.  If so,
 * what is known of the group is corrected: some that were noted are settled.
 */
static bool
escrow_group_is_due(int group, TimestampTz now)
{
	int			end = Min((group + 1) * ESCROW_GROUP, settings_stock_items);

	if (pg_atomic_read_u64(&groups[group]) > (uint64) now)
		return false;
	pg_atomic_exchange_u64(&groups[group], (uint64) DT_NOEND);
	for (int i = group * ESCROW_GROUP; i < end; i++)
	{
		EscrowItem *item = &items[i];
		TimestampTz at;

		SpinLockAcquire(&item->mutex);
		at = item->place == ESCROW_IN_USE && item->state == ESCROW_READY ?
			item->lapses_at : DT_NOEND;
		SpinLockRelease(&item->mutex);
		escrow_note_lapse(item, at);
	}
	return true;
}

bool
escrow_next_due(int *looks, Oid log, TimestampTz now, EscrowDue *due)
{
	static int	next = 0;		/* where the search continues */

	while (*looks < settings_stock_items)
	{
		int			at = next;

		if (at % ESCROW_GROUP == 0 &&
			!escrow_group_is_due(at / ESCROW_GROUP, now))
		{
			*looks += ESCROW_GROUP;
			next = at + ESCROW_GROUP < settings_stock_items ?
				at + ESCROW_GROUP : 0;
			continue;
		}
		(*looks)++;
		next = (at + 1) % settings_stock_items;
		if (escrow_is_due(&items[at], log, now, due))
			return true;
	}
	return false;
}

bool
escrow_any_lapses(Oid log, TimestampTz now)
{
	EscrowDue	due;

	for (int i = 0; i < settings_stock_items; i++)
	{
		if (i % ESCROW_GROUP == 0 &&
			!escrow_group_is_due(i / ESCROW_GROUP, now))
			i += ESCROW_GROUP - 1;
		else if (escrow_is_due(&items[i], log, now, &due))
			return true;
	}
	return false;
}

/*
 * Drops the counters of a log; if log is InvalidOid, of all logs of a database.
 */
static void
escrow_forget(Oid database, Oid log)
{
	for (int i = 0; i < settings_stock_items; i++)
	{
		EscrowItem *item = &items[i];
		uint32		hash;
		bool		forget;

		SpinLockAcquire(&item->mutex);
		forget = item->place == ESCROW_IN_USE &&
			item->key.database == database &&
			(!OidIsValid(log) || item->key.log == log);
		Assert(!forget || item->pins == 0);
		hash = item->key.hash;
		SpinLockRelease(&item->mutex);
		if (forget && escrow_remove(item, hash))
			escrow_set_place(item, ESCROW_FREE);
	}
}

void
escrow_forget_all(Oid log)
{
	escrow_forget(MyDatabaseId, log);
}

void
escrow_forget_database(Oid database)
{
	escrow_forget(database, InvalidOid);
}

void
escrow_count_row(EscrowItem *item)
{
	int			rows;

	SpinLockAcquire(&item->mutex);
	rows = ++item->rows;
	SpinLockRelease(&item->mutex);
	escrow_note_crowded(item, rows);
}

/*
 * Copies a counter if it is loaded and belongs to this log.
 */
static bool
escrow_copy_level(EscrowItem *item, Oid log, EscrowLevel *level)
{
	EscrowItem	copy;
	bool		copied;

	SpinLockAcquire(&item->mutex);
	copied = item->place == ESCROW_IN_USE && item->state == ESCROW_READY &&
		item->key.database == MyDatabaseId && item->key.log == log;
	if (copied)
		copy = *item;
	SpinLockRelease(&item->mutex);
	if (!copied)
		return false;
	level->sku = cstring_to_text_with_len(copy.key.sku, copy.key.length);
	level->available = copy.available;
	level->touches = copy.touches;
	level->pinned = copy.pins > 0;
	level->rows = copy.rows;
	level->waiting = copy.waiting;
	return true;
}

bool
escrow_level_at(int place, Oid log, EscrowLevel *level)
{
	Assert(place >= 0 && place < settings_stock_items);
	return escrow_copy_level(&items[place], log, level);
}

/*
 * The partition lock is released before the copy, which allocates memory.  The
 * place may have another item by then, so the name is compared.
 */
bool
escrow_level_of(Oid log, const text *sku, EscrowLevel *level)
{
	EscrowKey	key = escrow_key(log, sku);
	EscrowItem *item;

	LWLockAcquire(escrow_partition(key.hash), LW_SHARED);
	item = escrow_find(&key);
	LWLockRelease(escrow_partition(key.hash));
	return item != NULL && escrow_copy_level(item, log, level) &&
		args_compare_texts(level->sku, sku) == 0;
}

/*
 * The value is the same for all databases, and every sweeper sets it each time.
 * When it becomes smaller, the bits of some items have to be set.
 */
void
escrow_set_crowd(int rows)
{
	if (pg_atomic_exchange_u32(&shared->crowd, rows) <= (uint32) rows)
		return;
	for (int i = 0; i < settings_stock_items; i++)
	{
		int			has;

		SpinLockAcquire(&items[i].mutex);
		has = items[i].place == ESCROW_IN_USE ? items[i].rows : 0;
		SpinLockRelease(&items[i].mutex);
		escrow_note_crowded(&items[i], has);
	}
}

/*
 * Clears the bit of an item, if it is set, and sets it again if the item is
 * still crowded; rows that others add meanwhile set it as well.  Returns
 * whether it is a crowded item of this log.
 */
static bool
escrow_is_crowded(int at, Oid log, int rows, EscrowLevel *level)
{
	int			has;

	if (!escrow_take_bit(crowded, at))
		return false;
	SpinLockAcquire(&items[at].mutex);
	has = items[at].place == ESCROW_IN_USE ? items[at].rows : 0;
	SpinLockRelease(&items[at].mutex);
	escrow_note_crowded(&items[at], has);
	return escrow_copy_level(&items[at], log, level) && level->rows > rows;
}

bool
escrow_next_crowded(int *looks, Oid log, int rows, EscrowLevel *level)
{
	static int	next = 0;		/* where the search continues */

	while (*looks < settings_stock_items)
	{
		int			at = next;

		if (at % ESCROW_BITS == 0 &&
			pg_atomic_read_u32(&crowded[at / ESCROW_BITS]) == 0)
		{
			*looks += ESCROW_BITS;
			next = at + ESCROW_BITS < settings_stock_items ?
				at + ESCROW_BITS : 0;
			continue;
		}
		(*looks)++;
		next = (at + 1) % settings_stock_items;
		if (escrow_is_crowded(at, log, rows, level))
			return true;
	}
	return false;
}

void
escrow_count_compacted(EscrowItem *item, int rows, bool complete)
{
	Assert(rows >= 0);
	SpinLockAcquire(&item->mutex);
	item->rows = complete ? 0 : Max(item->rows - rows, 0);
	SpinLockRelease(&item->mutex);
}
