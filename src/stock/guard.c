/*
 * guard.c
 *		Keeps the counters right when the tables are changed by other means than
 *		the functions of stock (external DML).
 *
 * Examples are a restore, logical replication, an owner's UPDATE or TRUNCATE.
 * Neither the counters nor the filter of names sees these changes.  Triggers on
 * the tables of stock call stock_guard before the first change.  From then
 * until its end the transaction is alone: it waits for every transaction that
 * has changed stock, and keeps new ones out.  When it commits, the counters are
 * dropped, and the filter is built again.
 *
 * The compaction changes these tables too, but no sum, and switches the guard
 * off.
 *
 * A command that disables or enables these triggers is made alone in the same
 * way, by a hook: later transactions are refused (base/trigger.c), or find no
 * counters.  While a table is renamed, its triggers cannot be changed, since
 * the catalog cache would not find the table.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "base/members.h"
#include "base/shared.h"
#include "base/trigger.h"
#include "stock/guard.h"
#include "stock/stock_xact.h"

static bool let_pass = false;	/* rows only move between the tables */

PG_FUNCTION_INFO_V1(stock_guard);
PG_FUNCTION_INFO_V1(stock_drop_counters);

/*
 * SQL: stock_guard(), the trigger of the tables of stock.  Without preloading
 * there are no counters, and the trigger does nothing.
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
	TriggerData *trigger = trigger_called(fcinfo, kinds, lengthof(kinds),
										  catalog_get()->guarded,
										  CATALOG_GUARDED);

	if (shared_ready() && !let_pass)
		stock_xact_note_external();
	if (TRIGGER_FIRED_FOR_STATEMENT(trigger->tg_event))
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
						   trigger->tg_newtuple : trigger->tg_trigtuple);
}

void
guard_let_pass(bool let)
{
	let_pass = let;
}

/*
 * SQL: stock_drop_counters(), drops the counters when this transaction commits.
 * Until then it is alone, like a transaction with external DML.
 */
Datum
stock_drop_counters(PG_FUNCTION_ARGS)
{
	if (shared_ready())
		stock_xact_note_external();
	PG_RETURN_VOID();
}

static bool
guard_changes_triggers(const AlterTableStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->cmds)
	{
		AlterTableType type = lfirst_node(AlterTableCmd, cell)->subtype;

		if (type >= AT_EnableTrig && type <= AT_DisableTrigUser)
			return true;
	}
	return false;
}

/*
 * Returns the functions of the triggers of a table, a list of OIDs.  CREATE
 * TRIGGER of another session frees what is read here as soon as a look-up in a
 * catalog takes in that change, so none is made meanwhile.
 */
static List *
guard_trigger_functions(Oid table)
{
	Relation	rel = try_relation_open(table, AccessShareLock);
	List	   *functions = NIL;

	if (rel == NULL)
		return NIL;
	for (int i = 0; rel->trigdesc && i < rel->trigdesc->numtriggers; i++)
		functions = lappend_oid(functions, rel->trigdesc->triggers[i].tgfoid);
	relation_close(rel, AccessShareLock);
	return functions;
}

/*
 * Does a table have triggers that call our stock_guard, whatever their names?
 */
static bool
guard_is_on(Oid table)
{
	ListCell   *cell;

	foreach(cell, guard_trigger_functions(table))
	{
		char	   *name = get_func_name(lfirst_oid(cell));

		if (name != NULL && strcmp(name, "stock_guard") == 0 &&
			members_include(ProcedureRelationId, lfirst_oid(cell)))
			return true;
	}
	return false;
}

static bool
guard_is_ours(Oid table)
{
	const Catalog *catalog = catalog_get();

	for (int i = 0; i < CATALOG_GUARDED; i++)
	{
		if (catalog->guarded[i] == table)
			return true;
	}
	return false;
}

/*
 * A table that has the guard and is none of ours was renamed.  If no table has
 * its name now, catalog_get raises an error; if another table has it, the error
 * is raised here.
 */
void
guard_before_alter(const AlterTableStmt *statement)
{
	Oid			table;

	if (!guard_changes_triggers(statement) || creating_extension ||
		!OidIsValid(members_extension()))
		return;
	table = RangeVarGetRelid(statement->relation, NoLock, true);
	if (!members_include(RelationRelationId, table) ||
		!compat_owns_relation(table, GetUserId()) || !guard_is_on(table))
		return;
	if (!guard_is_ours(table))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot change triggers of table \"%s\"",
						statement->relation->relname),
				 errdetail("It has the trigger of the tables of stock, and another name.")));
	stock_xact_note_external();
}
