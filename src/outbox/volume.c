/*
 * volume.c
 *		The space of the file system that the log is on, for idempotency_status.
 */
#include "postgres.h"

#include <sys/statvfs.h>

#include "access/htup_details.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"

#include "base/compat.h"

PG_FUNCTION_INFO_V1(outbox_volume);

/*
 * SQL: outbox_volume(table, OUT free, OUT total).  What is reserved for root is
 * not free.  Both are null where the file system tells nothing.
 */
Datum
outbox_volume(PG_FUNCTION_ARGS)
{
	Oid			tablespace = get_rel_tablespace(PG_GETARG_OID(0));
	TupleDesc	desc;
	Datum		values[2] = {0};
	bool		nulls[2] = {true, true};
	struct statvfs volume;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (!OidIsValid(tablespace))
		tablespace = MyDatabaseTableSpace;
	if (statvfs(GetDatabasePath(MyDatabaseId, tablespace), &volume) == 0)
	{
		values[0] = Int64GetDatum((int64) volume.f_bavail * volume.f_frsize);
		values[1] = Int64GetDatum((int64) volume.f_blocks * volume.f_frsize);
		nulls[0] = nulls[1] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
