/*
 * lapse.c
 *		When the next reservation of this database lapses, in shared memory, so
 *		that the sweeper searches for lapsed ones only then.
 *
 * No reservation lapses before that time.  It is 0 after a start of the server.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/shared.h"
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
lapse_note(TimestampTz at)
{
	uint64		known = pg_atomic_read_u64(&database->lapses_at);
	uint64		wanted = at < 0 ? 0 : (uint64) at;

	while (wanted < known &&
		   !pg_atomic_compare_exchange_u64(&database->lapses_at, &known,
										   wanted))
		;
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
	uint64		at = (uint64) Max(PG_GETARG_TIMESTAMPTZ(0), 0);

	shared_require("stock");
	lapse_begin();
	PG_RETURN_BOOL(stock_xact_is_external() ||
				   pg_atomic_read_u64(&database->lapses_at) <= at);
}
