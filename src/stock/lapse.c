/*
 * lapse.c
 *		When the next reservation of this database lapses of an item without a
 *		counter, in shared memory, so that the sweeper searches all items only
 *		then.
 *
 * Counters know when reservations of their items lapse (escrow.c), and a
 * reservation is only made with a counter.  So this time is needed after a
 * start of the server, when it is 0, after external DML, and for counters that
 * were evicted.  No reservation of an item without a counter lapses before.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/shared.h"
#include "stock/escrow.h"
#include "stock/lapse.h"
#include "stock/stock_xact.h"

static SharedDatabase *database = NULL;

PG_FUNCTION_INFO_V1(stock_may_lapse);

void
lapse_begin(void)
{
	if (database == NULL)
		database = shared_my_database();
}

void
lapse_lower(pg_atomic_uint64 *to, TimestampTz at)
{
	uint64		known = pg_atomic_read_u64(to);
	uint64		wanted = at < 0 ? 0 : (uint64) at;

	while (wanted < known &&
		   !pg_atomic_compare_exchange_u64(to, &known, wanted))
		;
}

void
lapse_note(TimestampTz at)
{
	Assert(database != NULL);
	lapse_lower(&database->lapses_at, at);
}

void
lapse_note_evicted(Oid of, TimestampTz at)
{
	SharedDatabase *entry = shared_database_of(of);

	if (entry != NULL)
		lapse_lower(&entry->lapses_at, at);
}

bool
lapse_take(TimestampTz now)
{
	if (pg_atomic_read_u64(&database->lapses_at) > (uint64) now)
		return false;
	pg_atomic_exchange_u64(&database->lapses_at, (uint64) DT_NOEND);
	return true;
}

/*
 * SQL: stock_may_lapse(at), may any reservation have lapsed at this time?
 */
Datum
stock_may_lapse(PG_FUNCTION_ARGS)
{
	TimestampTz at = Max(PG_GETARG_TIMESTAMPTZ(0), 0);

	shared_require("stock");
	lapse_begin();
	PG_RETURN_BOOL(stock_xact_is_external() ||
				   pg_atomic_read_u64(&database->lapses_at) <= (uint64) at ||
				   escrow_any_lapses(catalog_get()->stock_log, at));
}
