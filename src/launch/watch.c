/*
 * watch.c
 *		Notices what happens to databases and to the extension in them, and
 *		lets the launcher know.
 *
 * CREATE and DROP EXTENSION make the launcher look into the database once they
 * have committed.  Commands that need a database without sessions (DROP
 * DATABASE, CREATE DATABASE with it as the template, and so on) keep our
 * workers out of it for as long as they run: the server's own short wait for
 * others to leave is enough for the workers to go.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "tcop/utility.h"

#include "base/shared.h"
#include "launch/watch.h"

static object_access_hook_type previous_object_access = NULL;
static ProcessUtility_hook_type previous_utility = NULL;
static bool check_at_commit = false;
static bool callback_registered = false;

PG_FUNCTION_INFO_V1(idempotency_announce);

static void
watch_transaction_ended(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && check_at_commit)
		(void) shared_check_database(MyDatabaseId);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		check_at_commit = false;
}

static void
watch_check_at_commit(void)
{
	if (!callback_registered)
		RegisterXactCallback(watch_transaction_ended, NULL);
	callback_registered = true;
	check_at_commit = true;
}

/*
 * Called by the install script.
 */
Datum
idempotency_announce(PG_FUNCTION_ARGS)
{
	if (!shared_ready())
		ereport(NOTICE,
				(errmsg("claims work now; outbox, stock and clean-up need the library idempotency to be preloaded"),
				 errhint("Add idempotency to shared_preload_libraries and restart the server.")));
	else if (shared_database(MyDatabaseId) == NULL)
		ereport(WARNING,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("this database gets no workers: too many databases use the extension idempotency"),
				 errdetail("One server can have %d of them.", SHARED_DATABASES_MAX)));
	else
		watch_check_at_commit();
	PG_RETURN_VOID();
}

static void
watch_object_access(ObjectAccessType access, Oid class, Oid object,
					int sub_object, void *arg)
{
	if (previous_object_access)
		previous_object_access(access, class, object, sub_object, arg);
	if (access == OAT_DROP && class == ExtensionRelationId)
	{
		char	   *name = get_extension_name(object);

		if (name != NULL && strcmp(name, "idempotency") == 0)
			watch_check_at_commit();
	}
}

static const char *
watch_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

/*
 * The database that a command needs for itself, or InvalidOid.
 */
static Oid
watch_database_to_vacate(Node *statement)
{
	const char *name = NULL;

	if (IsA(statement, DropdbStmt))
		name = castNode(DropdbStmt, statement)->dbname;
	else if (IsA(statement, CreatedbStmt))
		name = watch_option(castNode(CreatedbStmt, statement)->options, "template");
	else if (IsA(statement, RenameStmt) &&
			 castNode(RenameStmt, statement)->renameType == OBJECT_DATABASE)
		name = castNode(RenameStmt, statement)->subname;
	else if (IsA(statement, AlterDatabaseStmt) &&
			 watch_option(castNode(AlterDatabaseStmt, statement)->options, "tablespace"))
		name = castNode(AlterDatabaseStmt, statement)->dbname;
	return name ? get_database_oid(name, true) : InvalidOid;
}

static void
watch_end_vacating(int code, Datum database)
{
	shared_vacate_database(DatumGetObjectId(database), false);
}

static void
watch_utility(PlannedStmt *statement, const char *query, bool read_only_tree,
			  ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *environment, DestReceiver *dest,
			  QueryCompletion *completion)
{
	ProcessUtility_hook_type next = previous_utility ? previous_utility :
		standard_ProcessUtility;
	Oid			database = watch_database_to_vacate(statement->utilityStmt);

	if (!OidIsValid(database))
	{
		next(statement, query, read_only_tree, context, params, environment,
			 dest, completion);
		return;
	}
	shared_vacate_database(database, true);
	PG_ENSURE_ERROR_CLEANUP(watch_end_vacating, ObjectIdGetDatum(database));
	{
		next(statement, query, read_only_tree, context, params, environment,
			 dest, completion);
	}
	PG_END_ENSURE_ERROR_CLEANUP(watch_end_vacating, ObjectIdGetDatum(database));
	watch_end_vacating(0, ObjectIdGetDatum(database));
}

void
watch_install_hooks(void)
{
	previous_object_access = object_access_hook;
	object_access_hook = watch_object_access;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = watch_utility;
}
