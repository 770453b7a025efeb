/*
 * names.c
 *		A filter in shared memory that knows which names of reservations are
 *		new.
 *
 * A reservation needs a name that was never used, and nearly always has one.
 * To search the holds, the log and the history for a name that is not there
 * takes longer than all the rest.  The filter has a few bits for each name that
 * was used.  If one of them is not set, the name is new; if all are set, it may
 * be known, and is searched.
 *
 * A session sets the bits of a name and then inserts its first row, and holds
 * the lock of the name in shared mode for both.  Of several sessions that find
 * the name new, one sets the bits; the others then find them set.  They take
 * the lock alone for a moment, so that the row is there when they search.
 *
 * The filter is complete for a database when its sweeper has read all of its
 * names (names_learn).  Who writes the first row of a name sets its bits in any
 * case, so the build misses none: the row was there before it, or its bits were
 * set after the filter was empty.  External DML does not set bits; after it the
 * filter is built again, and until then all names are searched.  When the
 * filter has too many bits, it is cleared, and then built again.  No row of a
 * name may be written without bits that were set in the same generation of the
 * filter; that is why it is cleared between two moments when no lock is held.
 *
 * All databases share the filter.  Model: test/models/names.pml.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/hold.h"
#include "stock/ledger.h"
#include "stock/names.h"
#include "stock/stock_xact.h"

#include <math.h>

#define NAMES_TRANCHE "idempotency stock names"
#define NAMES_STRIPES 64
#define NAMES_BITS 5			/* of a name, all in one word */
#define NAMES_WORD_BITS 64
#define NAMES_SAMPLE 1024		/* words that are counted to estimate */
#define NAMES_FULL 0.35			/* share of bits that are set; 0.5 % mistakes */
#define NAMES_REST 100			/* a build again after 100 times its time */

typedef struct NamesShared
{
	pg_atomic_uint32 generation;	/* odd while the filter is cleared */
	pg_atomic_uint64 full;		/* clear it above this share, in millionths */
} NamesShared;

static NamesShared *shared = NULL;
static pg_atomic_uint64 *words = NULL;
static uint64 word_count;		/* a power of two */
static LWLockPadded *stripes = NULL;	/* and one more: who clears */
static SharedDatabase *database = NULL;

PG_FUNCTION_INFO_V1(stock_learn_names);
PG_FUNCTION_INFO_V1(stock_names);

void
names_request(void)
{
	Size		room = (Size) settings_stock_names_memory_kb * 1024;

	word_count = (uint64) 1 <<
		pg_leftmost_one_pos64(room / sizeof(pg_atomic_uint64));
	RequestAddinShmemSpace(MAXALIGN(sizeof(NamesShared)));
	RequestAddinShmemSpace(word_count * sizeof(pg_atomic_uint64));
	RequestNamedLWLockTranche(NAMES_TRANCHE, NAMES_STRIPES + 1);
}

void
names_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("idempotency stock names", sizeof(NamesShared),
							 &found);
	words = ShmemInitStruct("idempotency stock names words",
							word_count * sizeof(pg_atomic_uint64), &found);
	stripes = GetNamedLWLockTranche(NAMES_TRANCHE);
	if (!found)
	{
		pg_atomic_init_u32(&shared->generation, 0);
		pg_atomic_init_u64(&shared->full, 0);
		for (uint64 i = 0; i < word_count; i++)
			pg_atomic_init_u64(&words[i], 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * The OIDs tell the names of different databases apart.
 */
static uint64
names_hash(Oid log, const text *reservation)
{
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(reservation),
							   VARSIZE_ANY_EXHDR(reservation),
							   (uint64) MyDatabaseId << 32 | log);
}

static LWLock *
names_stripe(uint64 hash)
{
	return &stripes[hash % NAMES_STRIPES].lock;
}

/*
 * The bits, the word and the stripe come from different bits of the hash.
 */
static uint64
names_bits(uint64 hash)
{
	uint64		bits = 0;

	for (int i = 1; i <= NAMES_BITS; i++)
		bits |= (uint64) 1 << ((hash >> (6 * i)) % NAMES_WORD_BITS);
	return bits;
}

static pg_atomic_uint64 *
names_word(uint64 hash)
{
	return &words[(hash >> (6 * (NAMES_BITS + 1))) & (word_count - 1)];
}

/*
 * Sets the bits of a name.  Returns whether all of them were set.
 */
static bool
names_set(uint64 hash)
{
	uint64		bits = names_bits(hash);

	return (pg_atomic_fetch_or_u64(names_word(hash), bits) & bits) == bits;
}

/*
 * What a database records when the filter is complete for it.
 */
static uint64
names_completeness(Oid log, uint32 generation)
{
	return (uint64) generation << 32 | log;
}

void
names_prepare(void)
{
	if (database == NULL)
		database = shared_my_database();
}

ReservationName
names_find(Oid log, const text *reservation)
{
	ReservationName name = {.hash = names_hash(log, reservation)};
	uint64		bits = names_bits(name.hash);

	name.generation = pg_atomic_read_u32(&shared->generation);
	name.is_new = pg_atomic_read_u64(&database->names_complete) ==
		names_completeness(log, name.generation) &&
		(pg_atomic_read_u64(names_word(name.hash)) & bits) != bits;
	return name;
}

void
names_note(ReservationName *name)
{
	LWLock	   *stripe = names_stripe(name->hash);

	name->is_new = false;
	LWLockAcquire(stripe, LW_EXCLUSIVE);
	(void) names_set(name->hash);
	name->generation = pg_atomic_read_u32(&shared->generation);
	LWLockRelease(stripe);
}

bool
names_begin(const ReservationName *name)
{
	LWLock	   *stripe = names_stripe(name->hash);

	LWLockAcquire(stripe, LW_SHARED);
	if (name->generation == pg_atomic_read_u32(&shared->generation) &&
		!(name->is_new && names_set(name->hash)))
		return true;
	LWLockRelease(stripe);
	return false;
}

void
names_end(const ReservationName *name)
{
	LWLockRelease(names_stripe(name->hash));
}

void
names_forget(void)
{
	pg_atomic_write_u64(&database->names_complete, 0);
}

/*
 * Waits until nobody is between the bits of a name and its row.
 */
static void
names_next_generation(void)
{
	for (int i = 0; i < NAMES_STRIPES; i++)
		LWLockAcquire(&stripes[i].lock, LW_EXCLUSIVE);
	pg_atomic_fetch_add_u32(&shared->generation, 1);
	for (int i = NAMES_STRIPES - 1; i >= 0; i--)
		LWLockRelease(&stripes[i].lock);
}

/*
 * Returns the share of the bits that are set, estimated.
 */
static double
names_share(void)
{
	int			set = 0;

	for (int i = 0; i < NAMES_SAMPLE; i++)
	{
		uint64		at = pg_prng_uint64(&pg_global_prng_state);

		set += pg_popcount64(pg_atomic_read_u64(&words[at & (word_count - 1)]));
	}
	return set / (NAMES_SAMPLE * (double) NAMES_WORD_BITS);
}

static bool
names_are_too_many(void)
{
	double		full = pg_atomic_read_u64(&shared->full) / 1e6;

	return names_share() > Max(full, NAMES_FULL);
}

/*
 * Clears the filter of all databases, unless another sweeper does.
 */
static void
names_clear(void)
{
	LWLock	   *clears = &stripes[NAMES_STRIPES].lock;

	if (!LWLockConditionalAcquire(clears, LW_EXCLUSIVE))
		return;
	names_next_generation();
	for (uint64 i = 0; i < word_count; i++)
		pg_atomic_write_u64(&words[i], 0);
	pg_atomic_write_u64(&shared->full, 0);
	names_next_generation();
	LWLockRelease(clears);
}

/*
 * Sets the bits of all names in a table.  SnapshotAny also finds rows that are
 * not committed yet.  A name that is too long for its row is none of ours.
 */
static void
names_read(Oid oid, Oid log, int columns, int column, Snapshot snapshot)
{
	Relation	table = table_open(oid, AccessShareLock);
	TupleTableSlot *row = relation_slot(table, columns);
	TableScanDesc scan = compat_table_beginscan(table, snapshot);

	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		bool		isnull;
		Datum		name = slot_getattr(row, column + 1, &isnull);

		CHECK_FOR_INTERRUPTS();
		if (!isnull && !VARATT_IS_EXTERNAL(DatumGetPointer(name)))
			(void) names_set(names_hash(log, DatumGetTextPP(name)));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	table_close(table, AccessShareLock);
}

/*
 * Reads all names of this database.  The holds come first: a reservation that
 * is settled meanwhile is then found in the log.  The active snapshot keeps
 * their rows from being pruned while they move.
 */
static void
names_build(Oid log)
{
	uint32		generation = pg_atomic_read_u32(&shared->generation);
	const Catalog *catalog = catalog_get();
	Snapshot	latest;

	if (generation % 2 != 0)
		return;
	Assert(ActiveSnapshotSet());
	names_read(catalog->stock_hold, log, HOLD_ATTS, HOLD_ATT_RESERVATION,
			   SnapshotAny);
	latest = RegisterSnapshot(GetLatestSnapshot());
	names_read(log, log, LOG_ATTS, LOG_ATT_RESERVATION, latest);
	for (int i = 0; i < CATALOG_RING_SIZE; i++)
		names_read(catalog->rings[RING_HISTORY].tables[i], log, LOG_ATTS,
				   LOG_ATT_RESERVATION, latest);
	UnregisterSnapshot(latest);
	pg_atomic_write_u64(&database->names_complete,
						names_completeness(log, generation));
}

/*
 * The filter may have twice as many names as now before it is cleared again.
 */
static void
names_allow_more(void)
{
	double		unset = 1 - names_share();
	uint64		full = (1 - unset * unset) * 1e6;

	pg_atomic_write_u64(&shared->full,
						Max(full, pg_atomic_read_u64(&shared->full)));
}

static bool
names_are_complete(Oid log)
{
	return pg_atomic_read_u64(&database->names_complete) ==
		names_completeness(log, pg_atomic_read_u32(&shared->generation));
}

/*
 * SQL: stock_learn_names(max_rows), for the sweeper: clears the filter when it
 * is full, and builds it unless it is complete.  If external DML makes it
 * incomplete again and again, builds take a small part of the time.
 */
Datum
stock_learn_names(PG_FUNCTION_ARGS)
{
	static TimestampTz rest_until = 0;
	static uint32 built = 0;	/* the generation of the last build */
	Oid			log = stock_xact_begin();
	TimestampTz begin = GetCurrentTimestamp();
	TimestampTz end;

	if (names_are_too_many())
		names_clear();
	if (names_are_complete(log) ||
		(begin < rest_until &&
		 built == pg_atomic_read_u32(&shared->generation)))
		PG_RETURN_BOOL(false);
	built = pg_atomic_read_u32(&shared->generation);
	names_build(log);
	names_allow_more();
	end = GetCurrentTimestamp();
	rest_until = end + NAMES_REST * (end - begin);
	PG_RETURN_BOOL(false);
}

/*
 * SQL: stock_names(OUT complete, OUT mistakes), whether the filter is complete
 * for this database, and which share of new names it takes for known.
 */
Datum
stock_names(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};
	double		share;

	shared_require("stock");
	names_prepare();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	share = names_share();
	values[0] = BoolGetDatum(names_are_complete(catalog_get()->stock_log));
	values[1] = Float8GetDatum(pow(share, NAMES_BITS));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
