/*
 * status.c
 *		What idempotency_status() reads from the library and its workers.
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/shared.h"

PG_FUNCTION_INFO_V1(idempotency_preloaded_version);
PG_FUNCTION_INFO_V1(idempotency_is_served);
PG_FUNCTION_INFO_V1(idempotency_last_check);
PG_FUNCTION_INFO_V1(idempotency_workers);

/*
 * SQL: idempotency_preloaded_version(), the version of the library, or null if
 * the library is not preloaded.
 */
Datum
idempotency_preloaded_version(PG_FUNCTION_ARGS)
{
	if (!shared_ready())
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(EXTVERSION));
}

/*
 * SQL: idempotency_is_served(), whether idempotency.databases includes this
 * database.
 */
Datum
idempotency_is_served(PG_FUNCTION_ARGS)
{
	char	   *name = get_database_name(MyDatabaseId);

	PG_RETURN_BOOL(name != NULL && settings_database_wanted(name));
}

/*
 * SQL: idempotency_last_check(), when the launcher was last told to look for
 * the extension in this database, or the database got its entry in shared
 * memory; null if too many databases have one.
 */
Datum
idempotency_last_check(PG_FUNCTION_ARGS)
{
	SharedDatabase *database = shared_find_my_database();

	if (database == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(shared_last_check(database));
}

/*
 * SQL: idempotency_workers(), a row for each worker slot that is in use or
 * whose workers have logged errors.
 */
Datum
idempotency_workers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SharedDatabase *database = shared_find_my_database();

	InitMaterializedSRF(fcinfo, 0);
	for (int slot = 0; database != NULL && slot < SHARED_WORKER_SLOTS; slot++)
	{
		SharedWorker worker = shared_copy_worker(database, slot);
		Datum		values[5] = {0};
		bool		nulls[5] = {false};

		if (worker.pid == 0 && worker.errors == 0)
			continue;
		values[0] = CStringGetTextDatum(slot >= SHARED_RELAY ? "relay" : "sweeper");
		values[1] = Int32GetDatum(worker.pid);
		nulls[1] = worker.pid == 0;
		values[2] = Int64GetDatum(worker.errors);
		values[3] = TimestampTzGetDatum(worker.last_error_at);
		nulls[3] = worker.errors == 0;
		values[4] = CStringGetTextDatum(worker.last_error);
		nulls[4] = worker.errors == 0;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
