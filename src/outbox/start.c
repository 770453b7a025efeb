/*
 * start.c
 *		Where a new subscription starts to read, and how far back an existing
 *		one can be set.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/relation.h"
#include "base/shared.h"
#include "outbox/reader.h"

/* The columns of outbox_ring that are read here, and the number of columns. */
enum
{
	RING_ATT_STATE = 2,
	RING_ATT_LAST_POSITION = 8,
	RING_ATTS
};

PG_FUNCTION_INFO_V1(outbox_start_position);
PG_FUNCTION_INFO_V1(outbox_retired_to);

/*
 * SQL: outbox_start_position(), for start => 'latest'.  Events of transactions
 * that are open now will commit later, so those transactions are stragglers,
 * from their first position on.
 */
Datum
outbox_start_position(PG_FUNCTION_ARGS)
{
	OutboxHorizon horizon;
	TupleDesc	desc;
	Datum	   *xids;
	Datum	   *froms;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	MemoryContext caller = CurrentMemoryContext;
	HeapTuple	result;

	shared_require("the outbox");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	SPI_connect();
	MemoryContextSwitchTo(caller);	/* the result outlives SPI_finish */
	horizon = outbox_horizon_begin();
	xids = palloc((horizon.straggler_count + 1) * sizeof(Datum));
	froms = palloc((horizon.straggler_count + 1) * sizeof(Datum));
	for (int i = 0; i < horizon.straggler_count; i++)
	{
		xids[i] = FullTransactionIdGetDatum(horizon.stragglers[i].xid);
		froms[i] = Int64GetDatum(horizon.stragglers[i].lo);
	}
	values[0] = Int64GetDatum(horizon.max_position);
	values[1] = query_array8(xids, horizon.straggler_count, XID8OID);
	values[2] = query_array8(froms, horizon.straggler_count, INT8OID);
	result = heap_form_tuple(BlessTupleDesc(desc), values, nulls);
	outbox_horizon_end(&horizon);
	SPI_finish();
	PG_RETURN_DATUM(HeapTupleGetDatum(result));
}

static int64
start_retired_to(TupleTableSlot *row)
{
	bool		isnull;
	Datum		state = slot_getattr(row, RING_ATT_STATE, &isnull);
	Datum		last = slot_getattr(row, RING_ATT_LAST_POSITION, &isnull);

	if (isnull || strcmp(TextDatumGetCString(state), "retired") != 0)
		return 0;
	return DatumGetInt64(last);
}

/*
 * SQL: outbox_retired_to(), the last position of retired segments, which can be
 * truncated at any time.  Reads the ring as it is now, independent of the
 * transaction's snapshot.  No segment is retired while a caller has a lock on
 * outbox_partition.
 */
Datum
outbox_retired_to(PG_FUNCTION_ARGS)
{
	Relation	ring = table_open(catalog_get()->rings[RING_LOG].state,
								  AccessShareLock);
	TupleTableSlot *row = relation_slot(ring, RING_ATTS);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = compat_table_beginscan(ring, latest);
	int64		retired_to = 0;

	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		int64		last = start_retired_to(row);

		retired_to = Max(retired_to, last);
	}
	table_endscan(scan);
	UnregisterSnapshot(latest);
	ExecDropSingleTupleTableSlot(row);
	table_close(ring, AccessShareLock);
	PG_RETURN_INT64(retired_to);
}
