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

#include "executor/spi.h"
#include "tcop/pquery.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "base/subtransaction.h"
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

/* What wait_look calls, with its argument. */
typedef struct WaitLook
{
	void		(*look) (void *arg);
	void	   *arg;
} WaitLook;

static void
wait_look_now(void *arg)
{
	const WaitLook *look = arg;

	/* Otherwise, SPI would take one for the CALL, to be kept. */
	PushActiveSnapshot(GetLatestSnapshot());
	SPI_connect();
	look->look(look->arg);
	SPI_finish();
}

void
wait_look(void (*look) (void *arg), void *arg)
{
	WaitLook	call = {look, arg};
	ErrorData  *error = subtransaction_try(wait_look_now, &call, false);

	if (error != NULL)
		ReThrowError(error);
	InvalidateCatalogSnapshot();
}
