/*
 * start.c
 *		outbox_start_position: where a new subscription starts to read.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/xid8.h"

#include "base/compat.h"
#include "base/query.h"
#include "base/shared.h"
#include "outbox/reader.h"

PG_FUNCTION_INFO_V1(outbox_start_position);

/*
 * SQL: outbox_start_position(), for start => 'latest'.  The events of
 * transactions that are open now are still to come, so those transactions are
 * stragglers from their first position on.
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
	horizon = outbox_horizon_begin();
	MemoryContextSwitchTo(caller);
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
