/*
 * wait.c
 *		For procedures that sleep: without a snapshot, and without locks.
 *
 * A snapshot that is held for long keeps VACUUM from removing rows, and a lock
 * on a table keeps DDL waiting.  A function cannot let go of the snapshot of
 * the query that calls it, but a procedure can: PortalRunUtility tolerates
 * that.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "base/wait.h"

/*
 * A CALL with results registers its snapshot, too, for values that it returns
 * from tables.  We return copies.
 */
void
wait_release_snapshot(const char *procedure)
{
	Portal		portal = ActivePortal;

	if (ActiveSnapshotSet())
	{
		if (portal != NULL && portal->portalSnapshot == GetActiveSnapshot())
			portal->portalSnapshot = NULL;
		PopActiveSnapshot();
	}
	if (portal != NULL && portal->holdSnapshot != NULL)
	{
		UnregisterSnapshotFromOwner(portal->holdSnapshot, portal->resowner);
		portal->holdSnapshot = NULL;
	}
	InvalidateCatalogSnapshot();
	if (HaveRegisteredOrActiveSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s must be called without a snapshot", procedure),
				 errhint("Call it outside of functions, in the isolation level READ COMMITTED.")));
}

static void
wait_end_look(MemoryContext context, ResourceOwner owner)
{
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	InvalidateCatalogSnapshot();
}

/*
 * The subtransaction must end after an error, too.
 */
void
wait_look(void (*look) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		/* Otherwise, SPI would take one for the CALL, to be kept. */
		PushActiveSnapshot(GetLatestSnapshot());
		SPI_connect();
		look(arg);
		SPI_finish();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		wait_end_look(context, owner);
		ReThrowError(error);
	}
	PG_END_TRY();
	wait_end_look(context, owner);
}
