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
 * SQL: idempotency_workers(), a row for each worker slot that is or was in use.
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
		bool		is_relay = slot >= SHARED_RELAY;
		Datum		values[9] = {0};
		bool		nulls[9] = {false};

		if (worker.started_at == 0)
			continue;
		values[0] = CStringGetTextDatum(is_relay ? "relay" : "sweeper");
		values[1] = Int32GetDatum(is_relay ? slot - SHARED_RELAY + 1 : 1);
		values[2] = Int32GetDatum(worker.pid);
		nulls[2] = worker.pid == 0;
		values[3] = TimestampTzGetDatum(worker.started_at);
		values[4] = Int64GetDatum(worker.starts);
		values[5] = TimestampTzGetDatum(worker.last_success_at);
		nulls[5] = worker.last_success_at == 0;
		values[6] = Int64GetDatum(worker.errors);
		values[7] = TimestampTzGetDatum(worker.last_error_at);
		nulls[7] = worker.last_error_at == 0;
		values[8] = CStringGetTextDatum(worker.last_error);
		nulls[8] = worker.last_error_at == 0;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
