/*
 * stats.c
 *		Claim statistics: answers since counting began, and keys by state.
 *
 * The number of keys in each state is estimated from a sample of pages.
 *
 * The counters are in shared memory and cost one atomic addition per answer.
 * An answer counts even if its transaction aborts.  Nothing is counted if the
 * library is not preloaded, or if the table of databases is full.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/shared.h"
#include "base/statistics.h"
#include "claim/key.h"
#include "claim/stats.h"

/* The columns of idem_sample. */
enum
{
	SAMPLE_KEYS,
	SAMPLE_EXPIRED,
	SAMPLE_IN_PROGRESS,
	SAMPLE_COMPLETED,
	SAMPLE_FAILED,
	SAMPLE_RETRYABLE,
	SAMPLE_OLDEST_LEASE,
	SAMPLE_COLUMNS
};

typedef struct Sample
{
	double		counts[SAMPLE_OLDEST_LEASE];
	TimestampTz oldest_lease;	/* 0: none */
} Sample;

PG_FUNCTION_INFO_V1(idem_counters);
PG_FUNCTION_INFO_V1(idem_evicted);
PG_FUNCTION_INFO_V1(idem_count_expired);
PG_FUNCTION_INFO_V1(idem_count_evicted);
PG_FUNCTION_INFO_V1(idem_sample);

void
stats_count_claim(IdemOutcome outcome, bool taken_over)
{
	static const SharedCounter counters[IDEM_OUTCOMES] = {
		[IDEM_CLAIMED] = SHARED_CLAIMED,
		[IDEM_IN_PROGRESS] = SHARED_IN_PROGRESS,
		[IDEM_COMPLETED] = SHARED_REPLAYED,
		[IDEM_FAILED] = SHARED_REPLAYED,
		[IDEM_MISMATCH] = SHARED_MISMATCHES,
	};

	shared_count(counters[outcome], 1);
	if (taken_over)
		shared_count(SHARED_TAKEOVERS, 1);
}

/*
 * SQL: idem_count_expired(keys bigint), adds to the counter of expired keys.
 */
Datum
idem_count_expired(PG_FUNCTION_ARGS)
{
	shared_count(SHARED_EXPIRED, PG_GETARG_INT64(0));
	PG_RETURN_VOID();
}

/*
 * SQL: idem_count_evicted(keys bigint), adds to the counter of evicted keys.
 */
Datum
idem_count_evicted(PG_FUNCTION_ARGS)
{
	shared_count(SHARED_EVICTED, PG_GETARG_INT64(0));
	PG_RETURN_VOID();
}

static void
sample_add_row(Sample *sample, const KeyRow *row)
{
	sample->counts[SAMPLE_KEYS]++;
	if (row->expires_at <= GetCurrentTimestamp())
	{
		sample->counts[SAMPLE_EXPIRED]++;
		return;
	}
	switch (row->state)
	{
		case KEY_IN_PROGRESS:
			sample->counts[SAMPLE_IN_PROGRESS]++;
			if (sample->oldest_lease == 0 ||
				row->lease_until < sample->oldest_lease)
				sample->oldest_lease = row->lease_until;
			break;
		case KEY_COMPLETED:
			sample->counts[SAMPLE_COMPLETED]++;
			break;
		case KEY_FAILED:
			sample->counts[SAMPLE_FAILED]++;
			break;
		case KEY_RETRYABLE:
			sample->counts[SAMPLE_RETRYABLE]++;
			break;
	}
}

static void
sample_add_pages(Sample *sample, Relation table, BlockNumber first,
				 BlockNumber last)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	ItemPointerData from;
	ItemPointerData to;
	TableScanDesc scan;

	ItemPointerSet(&from, first, FirstOffsetNumber);
	ItemPointerSet(&to, last, MaxOffsetNumber);
	scan = compat_table_beginscan_tidrange(table, GetActiveSnapshot(),
										   &from, &to);
	while (table_scan_getnextslot_tidrange(scan, ForwardScanDirection, slot))
	{
		KeyRow		row = key_row(slot);

		CHECK_FOR_INTERRUPTS();
		sample_add_row(sample, &row);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Reads at most this number of pages, evenly spread, and extrapolates.
 */
static Sample
sample_table(Relation table, int pages)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(table);
	Sample		sample = {0};

	if (blocks == 0)
		return sample;
	if (blocks <= (BlockNumber) pages)
	{
		sample_add_pages(&sample, table, 0, blocks - 1);
		return sample;
	}
	for (int i = 0; i < pages; i++)
	{
		BlockNumber block = (BlockNumber) ((uint64) blocks * i / pages);

		sample_add_pages(&sample, table, block, block);
	}
	for (int i = 0; i < SAMPLE_OLDEST_LEASE; i++)
		sample.counts[i] *= (double) blocks / pages;
	return sample;
}

/*
 * SQL: idem_sample(slot smallint, pages integer), the estimated number of keys
 * by state in one segment.
 */
Datum
idem_sample(PG_FUNCTION_ARGS)
{
	int			pages = PG_GETARG_INT32(1);
	Relation	table;
	Sample		sample;
	Datum		values[SAMPLE_COLUMNS];
	bool		nulls[SAMPLE_COLUMNS] = {false};
	TupleDesc	desc;

	if (pages <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("pages must be positive")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	table = table_open(key_segment_arg(fcinfo, 0), AccessShareLock);
	sample = sample_table(table, pages);
	table_close(table, AccessShareLock);
	for (int i = 0; i < SAMPLE_OLDEST_LEASE; i++)
		values[i] = Float8GetDatum(sample.counts[i]);
	values[SAMPLE_OLDEST_LEASE] = TimestampTzGetDatum(sample.oldest_lease);
	nulls[SAMPLE_OLDEST_LEASE] = sample.oldest_lease == 0;
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values,
											 nulls));
}

/*
 * SQL: idem_counters(), all but the last.
 */
Datum
idem_counters(PG_FUNCTION_ARGS)
{
	return statistics_row(fcinfo, SHARED_CLAIMED, SHARED_EXPIRED);
}

/*
 * SQL: idem_evicted().  Null if nothing is counted.
 */
Datum
idem_evicted(PG_FUNCTION_ARGS)
{
	SharedDatabase *database = shared_find_my_database();
	uint64		evicted;

	if (database == NULL)
		PG_RETURN_NULL();
	evicted = pg_atomic_read_u64(&database->counters[SHARED_EVICTED]);
	PG_RETURN_INT64((int64) evicted);
}
