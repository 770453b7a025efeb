/*
 * grant.c
 *		idempotency_grant and the other functions that give roles privileges.
 *
 * A grant has to be one of the caller, so these functions are no SECURITY
 * DEFINER functions.  If one of them performed what adds the record to the
 * audit, its callers would need the privilege to do that, and could add records
 * of what has never happened.  A call from C needs no privilege.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"

PG_FUNCTION_INFO_V1(idempotency_grant);

static Oid
grant_function(const char *name, const Oid *types, int count)
{
	Oid			function = catalog_internal_function(name, types, count);

	if (!OidIsValid(function))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" of extension idempotency is missing",
						name)));
	return function;
}

/*
 * SQL: idempotency_grant(role), idempotency_grant_reader(role) and so on.  An
 * internal function NAME_only does what NAME has to do.
 */
Datum
idempotency_grant(PG_FUNCTION_ARGS)
{
	static const Oid granted[] = {REGROLEOID};
	static const Oid recorded[] = {TEXTOID, REGROLEOID};
	char	   *name = get_func_name(fcinfo->flinfo->fn_oid);
	Oid			grant;
	Oid			record;

	args_require(fcinfo, 0, "role");
	if (name == NULL)
		elog(ERROR, "cache lookup failed for function %u",
			 fcinfo->flinfo->fn_oid);
	grant = grant_function(psprintf("%s_only", name), granted,
						   lengthof(granted));
	record = grant_function("idempotency_record_grant", recorded,
							lengthof(recorded));
	OidFunctionCall1(grant, PG_GETARG_DATUM(0));
	OidFunctionCall2(record, CStringGetTextDatum(name), PG_GETARG_DATUM(0));
	PG_RETURN_VOID();
}
