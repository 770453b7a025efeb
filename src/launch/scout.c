/*
 * scout.c
 *		A short-lived worker that looks whether a database has the extension,
 *		and who owns it.
 *
 * The launcher cannot look itself: it is connected to no database.  The scout
 * connects as the bootstrap superuser, since it does not know the owner yet,
 * and therefore reads nothing but a system catalog.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "base/shared.h"
#include "base/worker.h"

PGDLLEXPORT void scout_main(Datum arg);

static Oid
scout_extension_owner(void)
{
	Oid			owner = InvalidOid;

	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute("SELECT extowner FROM pg_catalog.pg_extension"
					" WHERE extname OPERATOR(pg_catalog.=) 'idempotency'",
					true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_extension");
	if (SPI_processed == 1)
	{
		bool		isnull;

		owner = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[0],
											   SPI_tuptable->tupdesc, 1, &isnull));
	}
	PopActiveSnapshot();
	SPI_finish();
	return owner;
}

void
scout_main(Datum arg)
{
	worker_start_in_database();
	StartTransactionCommand();
	shared_set_owner(MyDatabaseId, scout_extension_owner());
	CommitTransactionCommand();
}
