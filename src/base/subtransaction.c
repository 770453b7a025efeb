/*
 * subtransaction.c
 *		Runs a function in a subtransaction and tells whether it has failed.
 *
 * The only place that begins subtransactions.  Two things are easily done
 * wrong.  After an error, nothing that can fail comes before the rollback, not
 * even a copy of the error: if it were thrown on first, the session would be
 * left in a transaction that no command can end.  And an error in the midst of
 * the commit of the subtransaction, which allocates memory, must not be
 * swallowed: the parent has taken over the transaction id by then, and would
 * commit what is rolled back here.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/subtransaction.h"

ErrorData *
subtransaction_try(void (*step) (void *arg), void *arg, bool keep)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	volatile bool ending = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		step(arg);
		ending = true;
		if (keep)
			ReleaseCurrentSubTransaction();
		else
			RollbackAndReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (ending || geterrcode() == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}
