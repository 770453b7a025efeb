/*
 * escrow.c
 *		The counters of what is available, in shared memory.
 *
 * A row that everybody updates is as slow as one commit after another.  So
 * the available quantity of an item that is in use stands here: who reserves
 * takes from the counter at once and writes rows of his own only.  Commit keeps
 * what was taken, abort puts it back; what a transaction adds is there for
 * others once it has committed.  journal.c keeps each transaction's part.
 *
 * The counter is a cache of the log and never the truth.  What makes it equal
 * to the log:
 *
 * - A counter is pinned before a transaction has any effect on its item, and
 *   unpinned when its end is visible and settled here.  So nobody has unsettled
 *   changes while a counter is loaded, which happens only where there is none.
 * - Whoever pins holds RowExclusiveLock on stock_log from before until after.
 *   Who changes the tables by other means excludes that (guard.c), finds
 *   no pins, and drops the counters.
 * - Pinned counters are not evicted.
 *
 * Locks.  The lock of an item's partition guards that its counter is there; a
 * spinlock in it guards the figures.  Nothing that can fail is done under
 * either, nor by who ends a transaction.  The key has the OID of the log, so that
 * counters from before a DROP EXTENSION match nothing.  Those of a database go
 * when it is dropped, since OIDs can be used again.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/int.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/escrow.h"
#include "stock/journal.h"
#include "stock/lines.h"

#define ESCROW_PARTITIONS 16
#define ESCROW_TRANCHE "idempotency stock"
#define ESCROW_EVICT_SHARE 8	/* at most one in so many at a time */

typedef struct EscrowKey
{
	Oid			database;
	Oid			log;
	int			length;
	char		sku[STOCK_NAME_MAX];
} EscrowKey;

typedef enum EscrowState
{
	ESCROW_MISSING,
	ESCROW_LOADING,
	ESCROW_READY
} EscrowState;

struct EscrowItem
{
	EscrowKey	key;
	slock_t		mutex;			/* guards all that follows */
	EscrowState state;
	bool		known;			/* the item exists */
	bool		used;			/* since somebody last looked for room */
	int			pins;			/* transactions that may have effects on it */
	int			rows;			/* in its log, about */
	uint64		touches;		/* how often it was pinned */
	int64		available;
	int64		on_hand;		/* available and reserved, at the most */
	TimestampTz lapses_at;		/* none of its holds lapses before */
	uint64		lapses_sooner;	/* how often that was found to be too late */
	ConditionVariable loaded;
};

static HTAB *items = NULL;
static LWLockPadded *partitions = NULL;

PG_FUNCTION_INFO_V1(stock_counters);
PG_FUNCTION_INFO_V1(stock_crowded);
PG_FUNCTION_INFO_V1(stock_count_compacted);

void
escrow_request(void)
{
	RequestAddinShmemSpace(hash_estimate_size(settings_stock_items,
											  sizeof(EscrowItem)));
	RequestNamedLWLockTranche(ESCROW_TRANCHE, ESCROW_PARTITIONS);
}

static uint32
escrow_hash(const void *key, Size size)
{
	const EscrowKey *of = key;

	return hash_combine(hash_bytes((const unsigned char *) of->sku, of->length),
						of->database ^ of->log);
}

static int
escrow_compare(const void *a, const void *b, Size size)
{
	const EscrowKey *x = a;
	const EscrowKey *y = b;

	if (x->database != y->database || x->log != y->log || x->length != y->length)
		return 1;
	return memcmp(x->sku, y->sku, x->length);
}

void
escrow_startup(void)
{
	HASHCTL		info = {
		.keysize = sizeof(EscrowKey),
		.entrysize = sizeof(EscrowItem),
		.hash = escrow_hash,
		.match = escrow_compare,
		.num_partitions = ESCROW_PARTITIONS
	};

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	items = compat_shmem_init_hash("idempotency stock", settings_stock_items,
								   &info,
								   HASH_ELEM | HASH_FUNCTION | HASH_COMPARE |
								   HASH_PARTITION | HASH_FIXED_SIZE);
	partitions = GetNamedLWLockTranche(ESCROW_TRANCHE);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Whatever the sku was read from, it has to fit.
 */
static EscrowKey
escrow_key(Oid log, const text *sku)
{
	EscrowKey	key = {.database = MyDatabaseId,.log = log};

	key.length = VARSIZE_ANY_EXHDR(sku);
	if (key.length > STOCK_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sku is too long"),
				 errdetail("It has %d bytes; the limit is %d.",
						   key.length, STOCK_NAME_MAX)));
	memcpy(key.sku, VARDATA_ANY(sku), key.length);
	return key;
}

static LWLock *
escrow_partition(uint32 hash)
{
	return &partitions[hash % ESCROW_PARTITIONS].lock;
}

static void
escrow_lock_all(LWLockMode mode)
{
	for (int i = 0; i < ESCROW_PARTITIONS; i++)
		LWLockAcquire(&partitions[i].lock, mode);
}

static void
escrow_unlock_all(void)
{
	for (int i = ESCROW_PARTITIONS; --i >= 0;)
		LWLockRelease(&partitions[i].lock);
}

/*
 * Makes room: first for what has not been used since the last time, else
 * for anything that nobody has pinned, up to a share of all.
 */
static int
escrow_evict(bool used_too)
{
	HASH_SEQ_STATUS walk;
	EscrowItem *item;
	int			evicted = 0;
	int			limit = settings_stock_items / ESCROW_EVICT_SHARE + 1;

	escrow_lock_all(LW_EXCLUSIVE);
	hash_seq_init(&walk, items);
	while ((item = hash_seq_search(&walk)) != NULL)
	{
		bool		evict;

		SpinLockAcquire(&item->mutex);
		evict = item->pins == 0 && (used_too || !item->used) && evicted < limit;
		item->used = false;
		SpinLockRelease(&item->mutex);
		if (evict)
			(void) hash_search(items, &item->key, HASH_REMOVE, NULL);
		evicted += evict;
	}
	escrow_unlock_all();
	return evicted;
}

static void
escrow_make_room(void)
{
	if (escrow_evict(false) == 0 && escrow_evict(true) == 0 &&
		hash_get_num_entries(items) >= settings_stock_items)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many items of stock are in use"),
				 errdetail("There is room for %d, and open transactions have changed each of them.",
						   settings_stock_items),
				 errhint("Increase idempotency.stock_items.")));
}

static void
escrow_init(EscrowItem *item)
{
	SpinLockInit(&item->mutex);
	item->state = ESCROW_MISSING;
	item->known = false;
	item->pins = 0;
	item->rows = 0;
	/* One that was evicted meanwhile must not look as if nobody had touched it. */
	item->touches = (uint64) GetCurrentTimestamp();
	item->available = 0;
	item->on_hand = 0;
	item->lapses_at = DT_NOBEGIN;
	item->lapses_sooner = 0;
	ConditionVariableInit(&item->loaded);
}

/*
 * Finds a counter, or adds it, and pins it; NULL: it is not there, or others
 * have taken the room for it.
 */
static EscrowItem *
escrow_try_pin(const EscrowKey *key, HASHACTION action)
{
	uint32		hash = escrow_hash(key, sizeof(EscrowKey));
	LWLock	   *partition = escrow_partition(hash);
	EscrowItem *item;
	bool		found;

	LWLockAcquire(partition, action == HASH_FIND ? LW_SHARED : LW_EXCLUSIVE);
	item = hash_search_with_hash_value(items, key, hash, action, &found);
	if (item != NULL)
	{
		if (!found)
			escrow_init(item);
		SpinLockAcquire(&item->mutex);
		item->pins++;
		item->touches++;
		item->used = true;
		SpinLockRelease(&item->mutex);
	}
	LWLockRelease(partition);
	return item;
}

EscrowItem *
escrow_pin(Oid log, const text *sku)
{
	EscrowKey	key = escrow_key(log, sku);
	EscrowItem *item = escrow_try_pin(&key, HASH_FIND);

	while (item == NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (hash_get_num_entries(items) >= settings_stock_items)
			escrow_make_room();
		item = escrow_try_pin(&key, HASH_ENTER_NULL);
	}
	return item;
}

/*
 * One that is being loaded is passed over: what its load has seen of what the
 * caller does cannot be told.
 */
EscrowItem *
escrow_pin_loaded(Oid log, const text *sku)
{
	EscrowKey	key = escrow_key(log, sku);
	EscrowItem *item = escrow_try_pin(&key, HASH_FIND);

	if (item == NULL || escrow_is_loaded(item))
		return item;
	escrow_unpin(item);
	return NULL;
}

void
escrow_unpin(EscrowItem *item)
{
	SpinLockAcquire(&item->mutex);
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
	Assert(item->state == ESCROW_LOADING);
	item->state = ESCROW_READY;
	item->known = level->known;
	item->available = level->available;
	item->on_hand = level->on_hand;
	item->rows = level->rows;
	SpinLockRelease(&item->mutex);
	ConditionVariableBroadcast(&item->loaded);
}

void
escrow_fail_load(EscrowItem *item)
{
	SpinLockAcquire(&item->mutex);
	item->state = ESCROW_MISSING;
	SpinLockRelease(&item->mutex);
	ConditionVariableBroadcast(&item->loaded);
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

bool
escrow_take(EscrowItem *item, int64 quantity)
{
	bool		enough;

	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->state == ESCROW_READY);
	enough = item->available >= quantity;
	if (enough)
	{
		item->available -= quantity;
		item->rows++;
	}
	SpinLockRelease(&item->mutex);
	return enough;
}

/*
 * However the open transactions end, and whatever becomes of reservations, the
 * counter must not overflow.  What is available is a part of what is on hand.
 */
bool
escrow_receive(EscrowItem *item, int64 quantity)
{
	int64		on_hand;
	bool		fits;

	SpinLockAcquire(&item->mutex);
	Assert(item->pins > 0 && item->state == ESCROW_READY);
	fits = !pg_add_s64_overflow(item->on_hand, quantity, &on_hand);
	if (fits)
		item->on_hand = on_hand;
	SpinLockRelease(&item->mutex);
	return fits;
}

/*
 * More than a bigint can only be where somebody has written holds by hand.
 */
static int64
escrow_add(int64 available, int64 quantity)
{
	int64		sum;

	return pg_add_s64_overflow(available, quantity, &sum) ? PG_INT64_MAX : sum;
}

void
escrow_undo(EscrowItem *item, const EscrowPart *part)
{
	SpinLockAcquire(&item->mutex);
	item->available = escrow_add(item->available, part->taken);
	item->on_hand -= part->received;
	SpinLockRelease(&item->mutex);
}

void
escrow_settle(EscrowItem *item, int64 more, int64 less, bool created,
			  TimestampTz lapses_at)
{
	SpinLockAcquire(&item->mutex);
	item->available = escrow_add(item->available, more);
	item->on_hand -= less;
	item->known |= created;
	item->lapses_at = Min(item->lapses_at, lapses_at);
	item->pins--;
	SpinLockRelease(&item->mutex);
}

bool
escrow_may_lapse(EscrowItem *item, TimestampTz now, uint64 *look)
{
	bool		may;

	SpinLockAcquire(&item->mutex);
	may = item->lapses_at <= now;
	*look = item->lapses_sooner;
	SpinLockRelease(&item->mutex);
	return may;
}

/*
 * A reservation that was made during the look may not have been seen.
 */
void
escrow_none_lapses(EscrowItem *item, TimestampTz before, uint64 look)
{
	SpinLockAcquire(&item->mutex);
	if (item->lapses_sooner == look)
		item->lapses_at = before;
	SpinLockRelease(&item->mutex);
}

void
escrow_will_lapse(EscrowItem *item, TimestampTz at)
{
	SpinLockAcquire(&item->mutex);
	if (at < item->lapses_at || item->lapses_at == DT_NOBEGIN)
	{
		item->lapses_at = Min(item->lapses_at, at);
		item->lapses_sooner++;
	}
	SpinLockRelease(&item->mutex);
}

/*
 * Forgets the counters of a log; of all of a database, if that is InvalidOid.
 */
static void
escrow_forget(Oid database, Oid log)
{
	HASH_SEQ_STATUS walk;
	EscrowItem *item;

	escrow_lock_all(LW_EXCLUSIVE);
	hash_seq_init(&walk, items);
	while ((item = hash_seq_search(&walk)) != NULL)
	{
		if (item->key.database != database ||
			(OidIsValid(log) && item->key.log != log))
			continue;
		Assert(item->pins == 0);
		(void) hash_search(items, &item->key, HASH_REMOVE, NULL);
	}
	escrow_unlock_all();
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
	SpinLockAcquire(&item->mutex);
	item->rows++;
	SpinLockRelease(&item->mutex);
}

/*
 * A copy of the counters of a log that are loaded, of items with more than so
 * many rows; palloc'd.  Only what is filled in takes memory.  What is added at
 * this moment may be missing.
 */
static int
escrow_copy(Oid log, int rows, EscrowItem **copies)
{
	long		room = hash_get_num_entries(items) + ESCROW_PARTITIONS;
	HASH_SEQ_STATUS walk;
	EscrowItem *item;
	int			count = 0;

	*copies = MemoryContextAllocHuge(CurrentMemoryContext,
									 mul_size(room, sizeof(EscrowItem)));
	escrow_lock_all(LW_SHARED);
	hash_seq_init(&walk, items);
	while ((item = hash_seq_search(&walk)) != NULL)
	{
		if (item->key.database != MyDatabaseId || item->key.log != log ||
			count == room)
			continue;
		SpinLockAcquire(&item->mutex);
		(*copies)[count] = *item;
		SpinLockRelease(&item->mutex);
		count += (*copies)[count].state == ESCROW_READY &&
			(*copies)[count].rows > rows;
	}
	escrow_unlock_all();
	return count;
}

static Datum
escrow_sku(const EscrowItem *item)
{
	return PointerGetDatum(cstring_to_text_with_len(item->key.sku,
													item->key.length));
}

/*
 * SQL: stock_counters(), what stock_verify compares with the log.  In a
 * transaction that changes the tables by other means they are worth nothing.
 */
Datum
stock_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	EscrowItem *copies = NULL;
	int			count = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (shared_ready() && !journal_is_foreign())
		count = escrow_copy(catalog_get()->stock_log, -1, &copies);
	for (int i = 0; i < count; i++)
	{
		Datum		values[4] = {
			escrow_sku(&copies[i]),
			Int64GetDatum(copies[i].available),
			Int64GetDatum((int64) copies[i].touches),
			BoolGetDatum(copies[i].pins > 0)
		};
		bool		nulls[4] = {false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * SQL: stock_crowded(rows), the items whose log has more rows.
 */
Datum
stock_crowded(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	EscrowItem *copies;
	int			count;

	shared_require("stock");
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	count = escrow_copy(catalog_get()->stock_log, PG_GETARG_INT32(0), &copies);
	for (int i = 0; i < count; i++)
	{
		Datum		value = escrow_sku(&copies[i]);
		bool		isnull = false;

		tuplestore_putvalues(result->setResult, result->setDesc,
							 &value, &isnull);
	}
	return (Datum) 0;
}

/*
 * SQL: stock_count_compacted(sku, rows, complete).  Those of transactions that
 * were rolled back are forgotten where nothing else is left.
 */
Datum
stock_count_compacted(PG_FUNCTION_ARGS)
{
	EscrowItem *item;

	shared_require("stock");
	item = escrow_pin_loaded(catalog_get()->stock_log, PG_GETARG_TEXT_PP(0));
	if (item == NULL)
		PG_RETURN_VOID();
	SpinLockAcquire(&item->mutex);
	item->rows = PG_GETARG_BOOL(2) ? 0 : Max(item->rows - PG_GETARG_INT32(1), 0);
	item->pins--;
	SpinLockRelease(&item->mutex);
	PG_RETURN_VOID();
}
