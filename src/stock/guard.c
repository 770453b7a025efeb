/*
 * guard.c
 *		Keeps the counters right when somebody else changes the tables.
 *
 * A restore, logical replication, an owner's UPDATE or TRUNCATE: the counters
 * know nothing of it.  The triggers on stock_log and stock_item come here before
 * the first change.  From then until its end that transaction is alone: it waits
 * for every transaction that has changed stock, keeps new ones out, and
 * drops the counters when it commits.
 *
 * The compaction changes these tables too, though no sum: it says so.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "base/query.h"
#include "base/shared.h"
#include "base/trigger.h"
#include "stock/journal.h"

static bool compacting = false;

PG_FUNCTION_INFO_V1(stock_guard);
PG_FUNCTION_INFO_V1(stock_compact);

/*
 * SQL: the trigger of stock_log and stock_item.  Where the library is not
 * preloaded there are no counters.
 */
Datum
stock_guard(PG_FUNCTION_ARGS)
{
	static const TriggerEvent kinds[] = {
		TRIGGER_EVENT_BEFORE | TRIGGER_EVENT_ROW | TRIGGER_EVENT_INSERT,
		TRIGGER_EVENT_BEFORE | TRIGGER_EVENT_ROW | TRIGGER_EVENT_UPDATE,
		TRIGGER_EVENT_BEFORE | TRIGGER_EVENT_ROW | TRIGGER_EVENT_DELETE,
		TRIGGER_EVENT_BEFORE | TRIGGER_EVENT_TRUNCATE
	};
	const Catalog *catalog = catalog_get();
	Oid			tables[] = {catalog->stock_log, catalog->stock_item};
	TriggerData *trigger = trigger_called(fcinfo, kinds, lengthof(kinds),
										  tables, lengthof(tables));

	if (shared_ready() && !compacting)
		journal_note_foreign();
	if (TRIGGER_FIRED_FOR_STATEMENT(trigger->tg_event))
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
						   trigger->tg_newtuple : trigger->tg_trigtuple);
}

static bool
guard_compact(int max_rows)
{
	static SavedQuery step = {
		.sql = "SELECT @extschema@.stock_compact_next($1)",.types = {INT4OID}
	};
	Datum		values[1] = {Int32GetDatum(max_rows)};
	bool		isnull;
	bool		more;

	SPI_connect();
	query_run(&step, values, NULL, false);
	more = DatumGetBool(query_datum(0, 1, &isnull));
	SPI_finish();
	return more;
}

/*
 * SQL: stock_compact(max_rows), one step of the sweeper's.
 */
Datum
stock_compact(PG_FUNCTION_ARGS)
{
	bool		more = false;

	PreventCommandDuringRecovery("stock_compact()");
	PreventCommandIfReadOnly("stock_compact()");
	(void) journal_begin();
	compacting = true;
	PG_TRY();
	{
		more = guard_compact(PG_GETARG_INT32(0));
	}
	PG_FINALLY();
	{
		compacting = false;
	}
	PG_END_TRY();
	PG_RETURN_BOOL(more);
}
