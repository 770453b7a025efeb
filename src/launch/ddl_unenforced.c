/*
 * ddl_unenforced.c
 *		Refuses what would not be enforced on tables that our C code writes to.
 *
 * base/relation.c writes to some of our tables without the executor, and
 * base/ring.c truncates some.  A constraint, rule or policy that an
 * administrator adds to such a table would hold for a few of its rows, with no
 * message; a new column would stop all calls; a foreign key that refers to it
 * would keep the sweeper from truncating it, hours later.  So nobody may create
 * these.  Our other tables are written by queries, which do what an
 * administrator wants.
 *
 * Unique and exclusion constraints are possible, since base/relation.c enforces
 * them, and so are foreign keys that refer to stock_item, of which our code
 * removes no row.  What was created while the library was not preloaded is
 * found by idempotency_status().
 *
 * Here a probe of a catalog tells which table is meant, as in ddl_guard.c.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_rewrite.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/catalog.h"
#include "base/members.h"
#include "launch/ddl_guard.h"
#include "launch/ddl_unenforced.h"

#define UNENFORCED_NOT_NULL 'n' /* a kind of constraint since PostgreSQL 18 */

/* Hints. */
#define UNENFORCED_ARGUMENTS \
	"Check the arguments before you call a function of the extension."
#define UNENFORCED_PRIVILEGES \
	"Give roles no privilege on the table, and a view of your own."

static bool
unenforced_is_of_ring(const Catalog *catalog, Oid table)
{
	for (int i = 0; i < RINGS; i++)
	{
		for (int j = 0; j < CATALOG_RING_SIZE; j++)
		{
			if (catalog->rings[i].tables[j] == table)
				return true;
		}
	}
	return false;
}

/*
 * Does C code write to this table of ours?  Our scripts may do anything, and so
 * may pg_upgrade, which makes members of an extension one by one.
 */
static bool
unenforced_is_written(Oid table)
{
	const Catalog *catalog;

	if (!members_include(RelationRelationId, table) || IsBinaryUpgrade ||
		(creating_extension && CurrentExtensionObject == members_extension()))
		return false;
	catalog = catalog_get();
	return unenforced_is_of_ring(catalog, table) ||
		table == catalog->stock_log || table == catalog->stock_hold ||
		table == catalog->stock_item || table == catalog->stock_queue ||
		table == catalog->stock_in_doubt;
}

static void
unenforced_refuse(Oid table, const char *what, const char *name,
				  const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 name ?
			 errmsg("cannot create %s \"%s\" on table \"%s\" of extension idempotency",
					what, name, get_rel_name(table)) :
			 errmsg("cannot create %s on table \"%s\" of extension idempotency",
					what, get_rel_name(table)),
			 errdetail("The extension writes to this table without the executor, so it would not be enforced."),
			 errhint("%s", hint)));
}

static void
unenforced_check_constraint(HeapTuple row)
{
	Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(row);
	const char *name = NameStr(form->conname);

	if (form->contype != CONSTRAINT_CHECK &&
		form->contype != CONSTRAINT_FOREIGN &&
		form->contype != UNENFORCED_NOT_NULL)
		return;
	if (unenforced_is_written(form->conrelid))
		unenforced_refuse(form->conrelid, "constraint", name,
						  UNENFORCED_ARGUMENTS);
	if (form->contype == CONSTRAINT_FOREIGN &&
		unenforced_is_written(form->confrelid) &&
		form->confrelid != catalog_get()->stock_item)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("foreign key \"%s\" cannot refer to table \"%s\" of extension idempotency",
						name, get_rel_name(form->confrelid)),
				 errdetail("The extension removes rows from this table without the executor, so the foreign key would not be enforced."),
				 errhint("Store the value without a foreign key. One on stock_item is possible.")));
}

static void
unenforced_compare(Oid table, Form_pg_attribute before, Form_pg_attribute now)
{
	if (now->attnotnull && !before->attnotnull)
		unenforced_refuse(table, "a NOT NULL constraint", NULL,
						  UNENFORCED_ARGUMENTS);
	if (now->atttypid != before->atttypid ||
		now->attcollation != before->attcollation)
		unenforced_refuse(table, "a column of another type", NULL,
						  "Create a view that has it.");
}

/*
 * A column may be altered, but not be made NOT NULL, nor get another type.  The
 * system cache still has it as it was.
 */
static void
unenforced_check_column(Oid table, AttrNumber column)
{
	Relation	rel = table_open(AttributeRelationId, AccessShareLock);
	HeapTuple	before = SearchSysCache2(ATTNUM, ObjectIdGetDatum(table),
										 Int16GetDatum(column));
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	now;

	ScanKeyInit(&keys[0], Anum_pg_attribute_attrelid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(table));
	ScanKeyInit(&keys[1], Anum_pg_attribute_attnum, BTEqualStrategyNumber,
				F_INT2EQ, Int16GetDatum(column));
	scan = systable_beginscan(rel, AttributeRelidNumIndexId, true, SnapshotSelf,
							  lengthof(keys), keys);
	now = systable_getnext(scan);
	if (HeapTupleIsValid(before) && HeapTupleIsValid(now))
		unenforced_compare(table, (Form_pg_attribute) GETSTRUCT(before),
						   (Form_pg_attribute) GETSTRUCT(now));
	systable_endscan(scan);
	if (HeapTupleIsValid(before))
		ReleaseSysCache(before);
	table_close(rel, AccessShareLock);
}

static void
unenforced_check_rule(HeapTuple row)
{
	Form_pg_rewrite form = (Form_pg_rewrite) GETSTRUCT(row);

	if (unenforced_is_written(form->ev_class))
		unenforced_refuse(form->ev_class, "rule", NameStr(form->rulename),
						  "Call the functions of the extension from functions of your own.");
}

static void
unenforced_check_policy(HeapTuple row)
{
	Form_pg_policy form = (Form_pg_policy) GETSTRUCT(row);

	if (unenforced_is_written(form->polrelid))
		unenforced_refuse(form->polrelid, "policy", NameStr(form->polname),
						  UNENFORCED_PRIVILEGES);
}

static void
unenforced_check_new_row(Oid class, Oid object)
{
	HeapTuple	row;

	switch (class)
	{
		case ConstraintRelationId:
			row = ddl_guard_new_row(class, ConstraintOidIndexId,
									Anum_pg_constraint_oid, object);
			if (HeapTupleIsValid(row))
				unenforced_check_constraint(row);
			break;
		case RewriteRelationId:
			row = ddl_guard_new_row(class, RewriteOidIndexId,
									Anum_pg_rewrite_oid, object);
			if (HeapTupleIsValid(row))
				unenforced_check_rule(row);
			break;
		case PolicyRelationId:
			row = ddl_guard_new_row(class, PolicyOidIndexId,
									Anum_pg_policy_oid, object);
			if (HeapTupleIsValid(row))
				unenforced_check_policy(row);
			break;
	}
}

void
unenforced_check(ObjectAccessType access, Oid class, Oid object, int sub_object)
{
	if (class == ConstraintRelationId || class == RewriteRelationId ||
		class == PolicyRelationId)
	{
		if (access == OAT_POST_CREATE && OidIsValid(members_extension()))
			unenforced_check_new_row(class, object);
	}
	else if (class == RelationRelationId && sub_object > 0 &&
			 access != OAT_DROP && unenforced_is_written(object))
	{
		if (access == OAT_POST_CREATE)
			unenforced_refuse(object, "a column", NULL,
							  "Store it in a table of your own.");
		unenforced_check_column(object, sub_object);
	}
}

/*
 * Looks up a name as the command itself will do.
 */
static bool
unenforced_means_written(RangeVar *name, Oid *table)
{
	*table = RangeVarGetRelid(name, NoLock, true);
	return OidIsValid(*table) && unenforced_is_written(*table);
}

static void
unenforced_check_parent(RangeVar *parent)
{
	Oid			table;

	if (unenforced_means_written(parent, &table))
		unenforced_refuse(table, "a child", NULL,
						  "Create the table with LIKE instead of INHERITS.");
}

static void
unenforced_check_command(const AlterTableStmt *statement,
						 const AlterTableCmd *command)
{
	RangeVar   *partition;
	Oid			table;

	switch (command->subtype)
	{
		case AT_EnableRowSecurity:
		case AT_ForceRowSecurity:
			if (unenforced_means_written(statement->relation, &table))
				unenforced_refuse(table, "row security", NULL,
								  UNENFORCED_PRIVILEGES);
			break;
		case AT_AddInherit:
			unenforced_check_parent(castNode(RangeVar, command->def));
			break;
		case AT_AttachPartition:
			partition = castNode(PartitionCmd, command->def)->name;
			if (unenforced_means_written(partition, &table))
				unenforced_refuse(table, "bounds of a partition", NULL,
								  "Create a view instead.");
			break;
		default:
			break;
	}
}

static bool
unenforced_concerns(AlterTableType type)
{
	return type == AT_EnableRowSecurity || type == AT_ForceRowSecurity ||
		type == AT_AddInherit || type == AT_AttachPartition;
}

void
unenforced_before_alter(const AlterTableStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->cmds)
	{
		const AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);

		if (unenforced_concerns(command->subtype) &&
			OidIsValid(members_extension()))
			unenforced_check_command(statement, command);
	}
}

void
unenforced_before_create(const CreateStmt *statement)
{
	ListCell   *cell;

	if (statement->inhRelations == NIL || statement->partbound != NULL ||
		!OidIsValid(members_extension()))
		return;
	foreach(cell, statement->inhRelations)
		unenforced_check_parent(lfirst_node(RangeVar, cell));
}
