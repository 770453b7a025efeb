/*
 * subtransaction.c
 *		Runs a function in a subtransaction and tells whether it has failed.
 *
 * The only place that begins subtransactions.  Two things are easily done
 * wrong.  If an error were thrown on before the rollback, the session would be
 * left in a transaction that no command can end.  The error is copied before:
 * one that was thrown by ReThrowError, as RAISE does in PL/pgSQL, has parts in
 * memory that the rollback frees.  And an error in the midst of
 * the commit of the subtransaction, which allocates memory, must not be
 * swallowed: the parent has taken over the transaction id by then, and would
 * commit what is rolled back here.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/subtransaction.h"

/*
 * If there is no memory for the copy, that is the error, after the rollback.
 */
static ErrorData *
subtransaction_copy_error(void)
{
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		error = CopyErrorData();
	}
	PG_CATCH();
	{
		RollbackAndReleaseCurrentSubTransaction();
		PG_RE_THROW();
	}
	PG_END_TRY();
	FlushErrorState();
	return error;
}

ErrorData *
subtransaction_try(void (*step) (void *arg), void *arg, bool keep)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	volatile bool ending = false;
	int			level PG_USED_FOR_ASSERTS_ONLY;

	level = GetCurrentTransactionNestLevel();
	Assert(IsTransactionState());
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
		MemoryContextSwitchTo(context);
		error = subtransaction_copy_error();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		Assert(GetCurrentTransactionNestLevel() == level);
		if (ending || error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
	}
	PG_END_TRY();
	Assert(GetCurrentTransactionNestLevel() == level);
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}
