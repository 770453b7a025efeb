/*
 * ddl_guard.c
 *		Refuses DDL on our objects that would let other roles run code in our
 *		workers, and triggers on our tables.
 *
 * Workers change our tables as the extension's owner, who is usually a
 * superuser.  A trigger there would run as that owner, and a role with all
 * privileges on all tables may create one.  Our SQL functions name the schema,
 * so a role that may rename it could put its own functions in their place.  And
 * our C code relies on the columns of our tables and types.  So only superusers
 * may do these things.
 *
 * Superusers may not create triggers on our tables either, since these would
 * not fire: our C code writes without the executor.  A tool that collects
 * changes by triggers, such as pg_repack, would miss our changes and lose them.
 * Foreign keys remain possible; their triggers are internal.
 *
 * This works only if the library is preloaded.  It must never refuse anything
 * on objects that are not ours, and reads no catalog to tell them apart, but
 * for triggers, whose tables are not passed to the hook.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/members.h"
#include "launch/ddl_guard.h"

HeapTuple
ddl_guard_new_row(Oid class, Oid index, AttrNumber oid_column, Oid object)
{
	Relation	rel = table_open(class, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&key, oid_column, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object));
	scan = systable_beginscan(rel, index, true, SnapshotSelf, 1, &key);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		row = heap_copytuple(row);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return row;
}

/*
 * Compares the new row with the system cache, which still has the old name.
 */
static bool
ddl_guard_schema_is_renamed(Oid schema)
{
	HeapTuple	row = ddl_guard_new_row(NamespaceRelationId,
										NamespaceOidIndexId,
										Anum_pg_namespace_oid, schema);
	char	   *name = get_namespace_name(schema);
	Form_pg_namespace form;

	if (!HeapTupleIsValid(row) || name == NULL)
		return false;
	form = (Form_pg_namespace) GETSTRUCT(row);
	return strcmp(name, NameStr(form->nspname)) != 0;
}

static void
ddl_guard_refuse(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be superuser to %s of extension idempotency", what),
			 errdetail("Its workers would run code of other roles.")));
}

static void
ddl_guard_refuse_trigger(Oid table)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot create a trigger on table \"%s\" of extension idempotency",
					get_rel_name(table)),
			 errdetail("The extension writes to its tables without firing triggers."),
			 errhint("To rewrite the table use VACUUM FULL, CLUSTER or REINDEX CONCURRENTLY. pg_repack leaves it out with --exclude-extension=idempotency.")));
}

/*
 * A trigger is ours if its function is.
 */
static void
ddl_guard_check_trigger(Oid trigger)
{
	HeapTuple	row = ddl_guard_new_row(TriggerRelationId, TriggerOidIndexId,
										Anum_pg_trigger_oid, trigger);
	Form_pg_trigger form;

	if (!HeapTupleIsValid(row))
		return;
	form = (Form_pg_trigger) GETSTRUCT(row);
	if (!members_include(RelationRelationId, form->tgrelid))
		return;
	if (!superuser())
		ddl_guard_refuse("create a trigger on a table");
	if (!form->tgisinternal &&
		get_rel_relkind(form->tgrelid) == RELKIND_RELATION &&
		!members_include(ProcedureRelationId, form->tgfoid))
		ddl_guard_refuse_trigger(form->tgrelid);
}

/*
 * The kind of the object comes first, then what is known of this session, then
 * what is known of this database.
 */
void
ddl_guard_check(ObjectAccessType access, Oid class, Oid object, int sub_object)
{
	if (class == TriggerRelationId && access == OAT_POST_CREATE)
	{
		if (OidIsValid(members_extension()))
			ddl_guard_check_trigger(object);
	}
	else if (class == RelationRelationId && sub_object != 0)
	{
		if (!superuser() && members_include(class, object))
			ddl_guard_refuse("change a column of a table or type");
	}
	else if (class == NamespaceRelationId && access == OAT_POST_ALTER)
	{
		if (!superuser() && members_include(class, object) &&
			ddl_guard_schema_is_renamed(object))
			ddl_guard_refuse("rename the schema");
	}
}
