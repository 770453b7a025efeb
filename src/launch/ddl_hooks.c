/*
 * ddl_hooks.c
 *		The hooks on utility commands and on DDL.  Tells the launcher what
 *		happens to databases and to the extension in them.
 *
 * The hooks run for everybody's commands.  They return after they have looked
 * at the kind of a command, or of an object and of what happens to it, unless
 * it may concern us: src/README.md says what each costs.  What a command is
 * must be known before it is executed, since it may be freed meanwhile.
 *
 * CREATE and DROP EXTENSION make the launcher look into the database when
 * their transaction ends.  Commands that need a database without sessions
 * (DROP DATABASE, CREATE DATABASE with it as the template, and so on) keep our
 * workers out of it until their transaction ends: the server waits for a few
 * seconds for other sessions to leave, which is enough for our workers to
 * exit.
 *
 * No callback runs for a prepared transaction when it ends.  So after COMMIT
 * and ROLLBACK PREPARED relays look for events and changed subscriptions, what
 * the transaction has done to stock is settled, and the launcher looks into the
 * database if the extension was created or dropped.
 *
 * DROP DATABASE resets what shared memory holds of the database, since another
 * database may get its OID.  This happens at the end of the command, before its
 * commit: then the database has no sessions and cannot get any.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lwlock.h"
#include "tcop/utility.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/callback.h"
#include "base/compat.h"
#include "base/members.h"
#include "base/shared.h"
#include "launch/ddl_guard.h"
#include "launch/ddl_hooks.h"
#include "launch/ddl_unenforced.h"
#include "outbox/xacts.h"
#include "relay/traffic.h"
#include "stock/escrow.h"
#include "stock/guard.h"
#include "stock/in_doubt.h"

static object_access_hook_type previous_object_access = NULL;
static ProcessUtility_hook_type previous_utility = NULL;

/* Called when a command has been executed. */
typedef void (*DdlHooksAfter) (void);

/* State of the current transaction. */
static bool check_at_end = false;
static bool wake_at_end = false;
static List *vacated = NIL;		/* list of OIDs, in TopTransactionContext */
static Oid	dropping = InvalidOid;	/* database that this command drops */
static ResourceOwner ending_owner;	/* while COMMIT or ROLLBACK PREPARED runs */
static Oid	ending_extension;	/* the extension before that */
static bool callback_registered = false;

PG_FUNCTION_INFO_V1(idempotency_announce);

/*
 * The launcher can see what the transaction did to the extension or database
 * only after its end.
 */
static void
ddl_hooks_transaction_ended(XactEvent event, void *arg)
{
	ListCell   *cell;

	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	CALLBACK_BEGIN();
	if (check_at_end)
		(void) shared_check_database(MyDatabaseId);
	check_at_end = false;
	foreach(cell, vacated)
		shared_vacate_database(lfirst_oid(cell), false);
	vacated = NIL;
	if (wake_at_end)
		shared_wake_launcher();
	wake_at_end = false;
	CALLBACK_END();
}

static void
ddl_hooks_register_callback(void)
{
	if (!callback_registered)
		RegisterXactCallback(ddl_hooks_transaction_ended, NULL);
	callback_registered = true;
}

static void
ddl_hooks_check_at_end(void)
{
	ddl_hooks_register_callback();
	check_at_end = true;
}

static void
ddl_hooks_wake_at_end(void)
{
	ddl_hooks_register_callback();
	wake_at_end = true;
}

/*
 * SQL: idempotency_announce(), called at the end of install and upgrade
 * scripts.
 */
Datum
idempotency_announce(PG_FUNCTION_ARGS)
{
	members_announce_change();
	if (!shared_ready())
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("claims work now; outbox, stock and clean-up need the library idempotency to be preloaded"),
				 errhint("Add idempotency to shared_preload_libraries and restart the server.")));
	else if (shared_database(MyDatabaseId) == NULL)
		ereport(WARNING,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("this database gets no workers: too many databases use the extension idempotency"),
				 errdetail("One server can have %d of them.", SHARED_DATABASES_MAX)));
	else
		ddl_hooks_check_at_end();
	PG_RETURN_VOID();
}

/*
 * Nobody does it later.
 */
static void
ddl_hooks_drop_extension(void)
{
	ddl_hooks_check_at_end();
	in_doubt_resolve();
	traffic_forget_database(MyDatabaseId);
}

static void
ddl_hooks_object_access(ObjectAccessType access, Oid class, Oid object,
						int sub_object, void *arg)
{
	if (previous_object_access)
		previous_object_access(access, class, object, sub_object, arg);
	if (access != OAT_POST_CREATE && access != OAT_POST_ALTER &&
		access != OAT_DROP)
		return;
	ddl_guard_check(access, class, object, sub_object);
	unenforced_check(access, class, object, sub_object);
	if (access == OAT_DROP && class == ExtensionRelationId &&
		object == members_extension())
		ddl_hooks_drop_extension();
	if (access == OAT_DROP && class == DatabaseRelationId)
		dropping = object;
}

static const char *
ddl_hooks_option(List *options, const char *name)
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
 * Returns the database that a command needs without sessions, or InvalidOid.
 */
static Oid
ddl_hooks_database_to_vacate(Node *statement)
{
	const char *name = NULL;

	if (IsA(statement, DropdbStmt))
		name = castNode(DropdbStmt, statement)->dbname;
	else if (IsA(statement, CreatedbStmt))
		name = ddl_hooks_option(castNode(CreatedbStmt, statement)->options, "template");
	else if (IsA(statement, RenameStmt) &&
			 castNode(RenameStmt, statement)->renameType == OBJECT_DATABASE)
		name = castNode(RenameStmt, statement)->subname;
	else if (IsA(statement, AlterDatabaseStmt) &&
			 ddl_hooks_option(castNode(AlterDatabaseStmt, statement)->options,
							  "tablespace"))
		name = castNode(AlterDatabaseStmt, statement)->dbname;
	return name ? get_database_oid(name, true) : InvalidOid;
}

/*
 * A command that will be refused must not stop workers.
 */
static bool
ddl_hooks_may_vacate(Oid database)
{
	return OidIsValid(database) && compat_owns_database(database, GetUserId());
}

static void
ddl_hooks_vacate(Oid database)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	ddl_hooks_register_callback();
	vacated = lappend_oid(vacated, database);
	shared_vacate_database(database, true);
	MemoryContextSwitchTo(old);
}

/*
 * A database is needed without sessions.  Its template may have the extension;
 * ALLOW_CONNECTIONS may change.
 */
static void
ddl_hooks_before_database(Node *statement)
{
	Oid			database = ddl_hooks_database_to_vacate(statement);

	if (ddl_hooks_may_vacate(database))
		ddl_hooks_vacate(database);
	if (IsA(statement, CreatedbStmt) || IsA(statement, AlterDatabaseStmt))
		ddl_hooks_wake_at_end();
}

static bool
ddl_hooks_ends_prepared(Node *statement)
{
	const TransactionStmt *command = (TransactionStmt *) statement;

	return IsA(statement, TransactionStmt) &&
		(command->kind == TRANS_STMT_COMMIT_PREPARED ||
		 command->kind == TRANS_STMT_ROLLBACK_PREPARED);
}

/*
 * Does what can fail, while an error still keeps the transaction prepared.
 */
static void
ddl_hooks_before_prepared(void)
{
	xacts_end_prepared();
	ddl_hooks_register_callback();
	ending_owner = ResourceOwnerCreate(CurrentResourceOwner,
									   "idempotency: end of a prepared transaction");
	ending_extension = members_extension();
}

/*
 * Settles what the transaction has done to stock, and returns whether the
 * extension is another one now.  Nothing here needs the tables of the
 * extension, whose version may be another one.
 */
static bool
ddl_hooks_look_after_prepared(void)
{
	in_doubt_resolve();
	AcceptInvalidationMessages();
	return members_extension() != ending_extension;
}

/*
 * The prepared transaction has ended, so its client must not be told of an
 * error, nor of a cancel.  What fails here is done later: the sweeper settles,
 * and the launcher looks.
 */
static void
ddl_hooks_after_prepared(void)
{
	uint32		holdoff = ++InterruptHoldoffCount;
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner outer = CurrentResourceOwner;

	Assert(ending_owner != NULL);
	CurrentResourceOwner = ending_owner;
	check_at_end = true;
	PG_TRY();
	{
		check_at_end = ddl_hooks_look_after_prepared();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		InterruptHoldoffCount = holdoff;
		LWLockReleaseAll();
		FlushErrorState();
	}
	PG_END_TRY();
	CurrentResourceOwner = outer;
	for (int phase = RESOURCE_RELEASE_BEFORE_LOCKS;
		 phase <= RESOURCE_RELEASE_AFTER_LOCKS; phase++)
		ResourceOwnerRelease(ending_owner, phase, false, false);
	ResourceOwnerDelete(ending_owner);
	RESUME_INTERRUPTS();
}

/*
 * The object access hook has recorded the OID of the dropped database.  Its
 * name could be looked up only before the command, when it might still be the
 * name of another database.
 */
static void
ddl_hooks_after_drop(void)
{
	if (!OidIsValid(dropping))
		return;
	shared_drop_database(dropping);
	in_doubt_forget_database(dropping);
	traffic_forget_database(dropping);
	escrow_forget_database(dropping);
	dropping = InvalidOid;
}

/*
 * Returns what is to be called when the command has been executed, or NULL.
 */
static DdlHooksAfter
ddl_hooks_before(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			guard_before_alter(castNode(AlterTableStmt, statement));
			unenforced_before_alter(castNode(AlterTableStmt, statement));
			return NULL;
		case T_CreateStmt:
			unenforced_before_create(castNode(CreateStmt, statement));
			return NULL;
		case T_CreateForeignTableStmt:
			unenforced_before_create((CreateStmt *) statement);
			return NULL;
		case T_DropdbStmt:
			ddl_hooks_before_database(statement);
			dropping = InvalidOid;
			return ddl_hooks_after_drop;
		case T_CreatedbStmt:
		case T_RenameStmt:
		case T_AlterDatabaseStmt:
			ddl_hooks_before_database(statement);
			return NULL;
		case T_TransactionStmt:
			if (!ddl_hooks_ends_prepared(statement))
				return NULL;
			ddl_hooks_before_prepared();
			return ddl_hooks_after_prepared;
		default:
			return NULL;
	}
}

/*
 * CALL and DO may end the transaction, and with it the life of the statement
 * and of its parameters.
 */
static void
ddl_hooks_utility(PlannedStmt *statement, const char *query,
				  bool read_only_tree, ProcessUtilityContext context,
				  ParamListInfo params, QueryEnvironment *environment,
				  DestReceiver *dest, QueryCompletion *completion)
{
	DdlHooksAfter after = ddl_hooks_before(statement->utilityStmt);

	(previous_utility ? previous_utility : standard_ProcessUtility)
		(statement, query, read_only_tree, context, params, environment, dest,
		 completion);
	if (after != NULL)
		after();
}

void
ddl_hooks_install_hooks(void)
{
	previous_object_access = object_access_hook;
	object_access_hook = ddl_hooks_object_access;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = ddl_hooks_utility;
}
