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
 * names (names_build).  Who writes the first row of a name sets its bits in any
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

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/args.h"
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
#define NAMES_BLOCKS_MAX 256	/* blocks of log and history in a step */
#define NAMES_HOLDS_MAX 5000	/* index entries of holds in a step */

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

/* The build of this session, which takes several calls. */
static struct
{
	bool		begun;
	uint32		generation;		/* of the filter, when it began */
	uint64		forgotten;		/* likewise */
	Oid			log;
	bool		at_holds;
	text	   *hold;			/* the last one that was read, of the holds */
	int			table;			/* 0: the log; others: the history */
	Oid			file;			/* of the table */
	BlockNumber block;			/* that is read next */
	BlockNumber end;			/* of what is read of the table */
	int64		spent_us;
}			build;

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
	Assert(database != NULL);
	pg_atomic_fetch_add_u64(&database->names_forgotten, 1);
	pg_atomic_write_u64(&database->names_complete, 0);
}

void
names_note_moved(void)
{
	names_prepare();
	pg_atomic_fetch_add_u64(&database->names_forgotten, 1);
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
	Assert(pg_atomic_read_u32(&shared->generation) % 2 == 1);
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
names_read(Relation table, TableScanDesc scan, Oid log, int columns, int column)
{
	TupleTableSlot *row = relation_slot(table, columns);

	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		bool		isnull;
		Datum		name = slot_getattr(row, column + 1, &isnull);

		CHECK_FOR_INTERRUPTS();
		if (!isnull && !VARATT_IS_EXTERNAL(DatumGetPointer(name)))
			(void) names_set(names_hash(log, DatumGetTextPP(name)));
	}
	ExecDropSingleTupleTableSlot(row);
}

/*
 * Remembers the last name of a step, or that there are no more.
 */
static void
names_keep_hold(const text *name)
{
	text	   *before = build.hold;
	text	   *kept = NULL;

	if (name != NULL)
	{
		kept = MemoryContextAlloc(TopMemoryContext, VARSIZE_ANY(name));
		memcpy(kept, name, VARSIZE_ANY(name));
	}
	build.hold = kept;
	if (before != NULL)
		pfree(before);
}

/*
 * Sets the bits of names that an index of the holds begins with, in its order.
 * Returns whether there are no more.
 */
static bool
names_read_entries(IndexScanDesc scan, Oid log)
{
	text	   *last = NULL;

	for (int i = 0; i < NAMES_HOLDS_MAX; i++)
	{
		Datum		name;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
		{
			names_keep_hold(NULL);
			return true;
		}
		name = index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &isnull);
		if (last != NULL &&
			args_compare_texts(last, DatumGetTextPP(name)) == 0)
			continue;
		if (last != NULL)
			pfree(last);
		last = DatumGetTextPCopy(name);
		(void) names_set(names_hash(log, last));
	}
	names_keep_hold(last);
	return false;
}

/*
 * Reads names of open reservations, after the last one of the step before.  All
 * entries of the index count, so these are also those that are not committed,
 * and some that have ended.  A name keeps its place in this order, though its
 * rows move while they are updated.  Returns whether all were read.
 */
static bool
names_read_holds(Oid log)
{
	Relation	hold = table_open(catalog_get()->stock_hold, AccessShareLock);
	Relation	index = relation_open_index(hold, HOLD_ATT_RESERVATION + 1, 1,
											0, AccessShareLock);
	IndexScanDesc scan = compat_index_beginscan(hold, index, SnapshotAny, 1);
	bool		done;
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTGreaterStrategyNumber, F_TEXT_GT,
				PointerGetDatum(build.hold == NULL ?
								cstring_to_text("") : build.hold));
	scan->xs_want_itup = true;
	index_rescan(scan, &key, 1, NULL, 0);
	done = names_read_entries(scan, log);
	index_endscan(scan);
	index_close(index, AccessShareLock);
	table_close(hold, AccessShareLock);
	return done;
}

/*
 * Reads some blocks of a table, from build.block on.  Returns whether it has
 * reached those that the table had when its first ones were read.
 */
static bool
names_read_blocks(Oid oid, Oid log, int *blocks)
{
	Relation	table = table_open(oid, AccessShareLock);
	Oid			file = table->rd_rel->relfilenode;
	BlockNumber upto;

	if (build.block == 0 || build.file != file)
	{
		build.block = 0;
		build.end = RelationGetNumberOfBlocks(table);
		build.file = file;
	}
	Assert(*blocks > 0 && build.block <= build.end);
	upto = Min(build.end, build.block + *blocks);
	if (upto > build.block)
	{
		Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
		ItemPointerData first;
		ItemPointerData last;
		TableScanDesc scan;

		ItemPointerSet(&first, build.block, 0);
		ItemPointerSet(&last, upto - 1, MaxOffsetNumber);
		scan = compat_table_beginscan_tidrange(table, latest, &first, &last);
		names_read(table, scan, log, LOG_ATTS, LOG_ATT_RESERVATION);
		table_endscan(scan);
		UnregisterSnapshot(latest);
	}
	*blocks -= upto - build.block;
	build.block = upto;
	table_close(table, AccessShareLock);
	return upto >= build.end;
}

/*
 * One step of a build.  The holds come first, then the log, then the history:
 * rows only move in this direction, and what moves out of a table while it is
 * read is found in the next one.  New rows of names that were new have set
 * their bits themselves.  A build begins again when that is not so: after
 * external DML, and when rows move from one table of the history to another.
 * Returns whether it is done.
 */
static bool
names_build(Oid log, uint32 generation)
{
	const Catalog *catalog = catalog_get();
	uint64		forgotten = pg_atomic_read_u64(&database->names_forgotten);
	int			blocks = NAMES_BLOCKS_MAX;

	Assert(generation % 2 == 0 && OidIsValid(log));
	if (!build.begun || build.generation != generation ||
		build.forgotten != forgotten || build.log != log)
	{
		build.begun = true;
		build.log = log;
		build.generation = generation;
		build.forgotten = forgotten;
		build.at_holds = true;
		build.table = 0;
		build.block = 0;
		build.spent_us = 0;
		names_keep_hold(NULL);
	}
	if (build.at_holds)
		build.at_holds = !names_read_holds(log);
	if (build.at_holds)
		return false;
	while (build.table <= CATALOG_RING_SIZE && blocks > 0)
	{
		Oid			table = build.table == 0 ? log :
			catalog->rings[RING_HISTORY].tables[build.table - 1];

		if (!names_read_blocks(table, log, &blocks))
			continue;
		build.table++;
		build.block = 0;
	}
	if (build.table <= CATALOG_RING_SIZE)
		return false;
	build.begun = false;
	pg_atomic_write_u64(&database->names_complete,
						names_completeness(log, generation));
	return true;
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
	uint32		generation;
	TimestampTz end;
	bool		done;

	if (!build.begun && names_are_too_many())
		names_clear();
	generation = pg_atomic_read_u32(&shared->generation);
	if (generation % 2 != 0 || names_are_complete(log) ||
		(!build.begun && begin < rest_until && built == generation))
		PG_RETURN_BOOL(false);
	built = generation;
	done = names_build(log, generation);
	names_allow_more();			/* or another sweeper would clear it */
	end = GetCurrentTimestamp();
	build.spent_us += end - begin;
	if (!done)
		PG_RETURN_BOOL(true);
	rest_until = end + NAMES_REST * build.spent_us;
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
