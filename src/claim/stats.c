/*
 * stats.c
 *		What claims were answered, counted since the server started.
 *
 * The counters are in shared memory, one atomic addition an answer: an answer
 * counts as it is given, whatever becomes of its transaction.  Without the
 * library being preloaded nothing is counted.
 */
#include "postgres.h"

#include "funcapi.h"

#include "base/shared.h"
#include "claim/stats.h"

PG_FUNCTION_INFO_V1(idem_counters);
PG_FUNCTION_INFO_V1(idem_count_expired);

void
stats_count_claim(IdemOutcome outcome, int attempt)
{
	static const SharedCounter counters[IDEM_OUTCOMES] = {
		[IDEM_CLAIMED] = SHARED_CLAIMED,
		[IDEM_IN_PROGRESS] = SHARED_IN_PROGRESS,
		[IDEM_COMPLETED] = SHARED_REPLAYED,
		[IDEM_FAILED] = SHARED_REPLAYED,
		[IDEM_MISMATCH] = SHARED_MISMATCHES,
	};

	shared_count(counters[outcome], 1);
	if (outcome == IDEM_CLAIMED && attempt > 1)
		shared_count(SHARED_TAKEOVERS, 1);
}

/*
 * SQL: idem_count_expired(keys bigint).
 */
Datum
idem_count_expired(PG_FUNCTION_ARGS)
{
	shared_count(SHARED_EXPIRED, PG_GETARG_INT64(0));
	PG_RETURN_VOID();
}

/*
 * SQL: idem_counters().  All null without the library being preloaded.
 */
Datum
idem_counters(PG_FUNCTION_ARGS)
{
	Datum		values[1 + SHARED_COUNTERS] = {0};
	bool		nulls[1 + SHARED_COUNTERS];
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	memset(nulls, !shared_ready(), sizeof(nulls));
	if (shared_ready())
	{
		SharedDatabase *database = shared_my_database();

		values[0] = TimestampTzGetDatum(database->since);
		for (int i = 0; i < SHARED_COUNTERS; i++)
			values[1 + i] =
				Int64GetDatum((int64) pg_atomic_read_u64(&database->counters[i]));
	}
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
