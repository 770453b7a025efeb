/*
 * retire.c
 *		Has all in an old segment of keys expired?
 *
 * A segment can have gigabytes, and the sweeper has other work to do.  So it
 * reads a part of the segment at a time, in a transaction of its own.  Rows of
 * a quiet segment are only deleted, so what was found about a part stays true,
 * also about the whole, until the segment is retired.  If the segment was
 * changed by a command, such as one that disables its trigger, it is read from
 * the start.
 *
 * How far it was read is in the memory of the session: another session that
 * takes the sweeper's place begins again.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "datatype/timestamp.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/invalidation.h"
#include "claim/key.h"
#include "claim/retire.h"

/* The columns of idem_scan. */
enum
{
	SCAN_DONE,
	SCAN_EXPIRED,
	SCAN_EVICTED,
	SCAN_OTHERS,
	SCAN_TOOK,
	SCAN_COLUMNS
};

/* What is known of one of the tables. */
typedef struct SegmentScan
{
	Oid			table;			/* InvalidOid: nothing */
	int64		segment;		/* number of what is in the table */
	bool		evict;			/* finished keys may be forgotten */
	bool		done;
	BlockNumber next;			/* not read yet */
	int64		expired;
	int64		evicted;		/* not expired, but finished */
	int64		others;			/* have to be kept */
	int64		took_us;
} SegmentScan;

static SegmentScan scans[RING_SIZE];

PG_FUNCTION_INFO_V1(idem_scan);

static void
retire_table_changed(Oid table)
{
	for (int i = 0; i < RING_SIZE; i++)
	{
		if (!OidIsValid(table) || scans[i].table == table)
			scans[i].table = InvalidOid;
	}
}

bool
retire_has_begun(int slot, Oid table, bool evict)
{
	const SegmentScan *scan = &scans[slot];

	return OidIsValid(scan->table) && scan->table == table &&
		scan->evict == evict && (scan->next > 0 || scan->done);
}

/*
 * Returns what is known of a segment, after it was locked: from now on a change
 * of the table makes it unknown.
 */
static SegmentScan *
retire_scan(int slot, Oid table, int64 segment, bool evict)
{
	static bool watching = false;
	SegmentScan *scan = &scans[slot];

	if (!watching)
		invalidation_watch_relations(retire_table_changed);
	watching = true;
	if (scan->table != table || scan->segment != segment ||
		scan->evict != evict)
		*scan = (SegmentScan)
	{
		.table = table,
			.segment = segment,
			.evict = evict
	};
	return scan;
}

static void
retire_count_row(SegmentScan *scan, TupleTableSlot *row)
{
	if (key_expiry_of_row(row) <= GetCurrentTimestamp())
		scan->expired++;
	else if (scan->evict && key_row(row).state != KEY_IN_PROGRESS)
		scan->evicted++;
	else
		scan->others++;
}

/*
 * Reads the next part.  If it fails, or has rows that have to be kept, all is
 * read again.
 */
static void
retire_read(SegmentScan *scan, Relation table)
{
	SegmentScan read = *scan;
	TimestampTz began = GetCurrentTimestamp();
	TupleTableSlot *row = table_slot_create(table, NULL);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	BlockNumber blocks = RelationGetNumberOfBlocks(table);
	BlockNumber end = Min(read.next + RETIRE_PAGES, blocks);
	ItemPointerData from;
	ItemPointerData to;
	TableScanDesc rows;

	scan->table = InvalidOid;
	ItemPointerSet(&from, read.next, FirstOffsetNumber);
	ItemPointerSet(&to, end == blocks ? MaxBlockNumber : end - 1,
				   MaxOffsetNumber);
	rows = compat_table_beginscan_tidrange(table, latest, &from, &to);
	while (table_scan_getnextslot_tidrange(rows, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		retire_count_row(&read, row);
	}
	table_endscan(rows);
	UnregisterSnapshot(latest);
	ExecDropSingleTupleTableSlot(row);
	read.took_us += GetCurrentTimestamp() - began;
	read.next = end;
	read.done = end == blocks;
	*scan = read;
}

/*
 * SQL: idem_scan(slot smallint, segment bigint, evict boolean), reads a part of
 * a segment that is quiet, unless all was read.
 */
Datum
idem_scan(PG_FUNCTION_ARGS)
{
	Oid			oid = key_segment_arg(fcinfo, 0);
	SegmentScan *scan;
	SegmentScan result;
	Relation	table;
	Datum		values[SCAN_COLUMNS];
	bool		nulls[SCAN_COLUMNS] = {false};
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	table = table_open(oid, AccessShareLock);
	scan = retire_scan(PG_GETARG_INT16(0), oid, PG_GETARG_INT64(1),
					   PG_GETARG_BOOL(2));
	if (!scan->done)
		retire_read(scan, table);
	result = *scan;
	if (result.others > 0)
		scan->table = InvalidOid;
	table_close(table, AccessShareLock);
	values[SCAN_DONE] = BoolGetDatum(result.done);
	values[SCAN_EXPIRED] = Int64GetDatum(result.expired);
	values[SCAN_EVICTED] = Int64GetDatum(result.evicted);
	values[SCAN_OTHERS] = Int64GetDatum(result.others);
	values[SCAN_TOOK] = IntervalPGetDatum(palloc0(sizeof(Interval)));
	DatumGetIntervalP(values[SCAN_TOOK])->time = result.took_us;
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values,
											 nulls));
}
