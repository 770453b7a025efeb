/*
 * discovery.c
 *		A short-lived worker that reads whether a database has the extension,
 *		and who owns it.
 *
 * The launcher cannot read that, since it is connected to no database.  It
 * starts this worker, which stores the result in shared memory.
 *
 * Discovery connects as the bootstrap superuser, since it does not know the
 * owner yet.  So it must not read or run anything but system catalogs.
 *
 * Before PostgreSQL 17 a worker cannot run as a role without LOGIN.  If the
 * owner is a superuser without LOGIN, workers run as the bootstrap superuser
 * instead, which has the same privileges.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/shared.h"
#include "base/worker.h"

PGDLLEXPORT void discovery_main(Datum arg);

/*
 * This warning is all that an operator sees, since no worker is started that
 * could fail.
 */
static void
discovery_report_old(const char *version)
{
	ereport(WARNING,
			(errmsg("database \"%s\" has version %s of extension idempotency, which is too old for the library",
					get_database_name(MyDatabaseId), version),
			 errdetail("No events are delivered and nothing is cleaned up there."),
			 errhint("Run ALTER EXTENSION idempotency UPDATE in that database."),
			 errhidecontext(true)));
}

/*
 * Returns the role that workers run as.  InvalidOid: the extension does not
 * exist, or is older than the library and must be updated before workers can
 * run.  A schema of the internal name that is not a member of the extension
 * does not count: workers must not touch the tables in it.
 */
static Oid
discovery_find_owner(void)
{
	Oid			owner = InvalidOid;

	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute("SELECT e.extowner, r.rolsuper AND NOT r.rolcanlogin, e.extversion,"
					" EXISTS (SELECT FROM pg_catalog.pg_depend d"
					"  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) d.objid"
					"  WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass"
					"  AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass"
					"  AND d.refobjid OPERATOR(pg_catalog.=) e.oid"
					"  AND d.deptype OPERATOR(pg_catalog.=) 'e'"
					"  AND n.nspname OPERATOR(pg_catalog.=) '" CATALOG_INTERNAL_SCHEMA "')"
					" FROM pg_catalog.pg_extension e"
					" JOIN pg_catalog.pg_authid r"
					"  ON r.oid OPERATOR(pg_catalog.=) e.extowner"
					" WHERE e.extname OPERATOR(pg_catalog.=) 'idempotency'",
					true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_extension");
	if (SPI_processed == 1)
	{
		HeapTuple	row = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;

		if (!DatumGetBool(SPI_getbinval(row, desc, 4, &isnull)))
			discovery_report_old(SPI_getvalue(row, desc, 3));
		else if (DatumGetBool(SPI_getbinval(row, desc, 2, &isnull)))
			owner = BOOTSTRAP_SUPERUSERID;
		else
			owner = DatumGetObjectId(SPI_getbinval(row, desc, 1, &isnull));
	}
	PopActiveSnapshot();
	SPI_finish();
	return owner;
}

void
discovery_main(Datum arg)
{
	worker_start_in_database();
	StartTransactionCommand();
	shared_set_owner(MyDatabaseId, discovery_find_owner());
	CommitTransactionCommand();
}
