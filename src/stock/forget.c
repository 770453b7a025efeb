/*
 * forget.c
 *		What must be kept of a table of the history that is dropped: the search
 *		for it, in steps.
 *
 * Rows of a reservation are needed for longer if it has lines that are open and
 * others that are closed, or if a reinstatement in that table has left a line
 * cancelled (compaction.sql).  The first kind is found by reading all holds, so
 * that is done in steps, while others change them.  A step moves the rows of
 * what it finds.
 *
 * What the search has passed cannot become needed, but for one case: all lines
 * were closed, and a transaction opens some again.  Rows of lines that are
 * closed later are newer.  Such a transaction keeps the table locked until its
 * end, and counts itself after it has got the lock (ledger_keep).  So the
 * search begins at a moment when none holds it, and the table may be dropped at
 * a later such moment, if none was counted in between.  Otherwise there is
 * another search; after some of these, all of it is done at once, with the
 * lock.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/query.h"
#include "base/settings.h"
#include "base/shared.h"
#include "stock/guard.h"
#include "stock/names.h"

#define FORGET_HOLDS_SHARE 10	/* so many holds are read for a row to move */
#define FORGET_SEARCHES_MAX 5	/* of a table, before one with the lock */

static struct
{
	bool		begun;
	bool		complete;
	int64		segment;		/* of the table */
	int			number;			/* of searches for this table */
	uint64		reopened;		/* what was counted at the start */
	bool		at_holds;		/* the reinstatements are done */
	int64		opened_id;		/* the last one of these */
	text	   *reservation;	/* the last one of the holds; NULL: none */
	FullTransactionId moved_by; /* the last step, if it has moved rows */
}			search;

PG_FUNCTION_INFO_V1(stock_keep_needed);
PG_FUNCTION_INFO_V1(stock_is_kept);

/*
 * Was what the last step has moved rolled back?
 */
static bool
forget_is_undone(void)
{
	TransactionId xid = XidFromFullTransactionId(search.moved_by);

	if (!TransactionIdIsValid(xid) ||
		TransactionIdIsCurrentTransactionId(xid))
		return false;
	if (!TransactionIdDidCommit(xid))
		return true;
	search.moved_by = InvalidFullTransactionId;
	return false;
}

/*
 * Is there a search for this table that still counts?
 */
static bool
forget_goes_on(int64 segment)
{
	return search.begun && search.segment == segment && !forget_is_undone();
}

/*
 * Begins a search.  Returns false if the table is locked.
 */
static bool
forget_begin(int slot, int64 segment)
{
	Oid			table = catalog_get()->rings[RING_HISTORY].tables[slot];

	search.begun = false;
	if (search.segment != segment)
		search.number = 0;
	if (!ConditionalLockRelationOid(table, AccessExclusiveLock))
		return false;
	search.reopened =
		pg_atomic_read_u64(&shared_my_database()->stock_reopened);
	UnlockRelationOid(table, AccessExclusiveLock);
	search.segment = segment;
	search.number++;
	search.complete = false;
	search.at_holds = false;
	search.opened_id = 0;
	if (search.reservation != NULL)
		pfree(search.reservation);
	search.reservation = NULL;
	search.moved_by = InvalidFullTransactionId;
	search.begun = true;
	return true;
}

/*
 * Remembers where the next step begins, as the query has found it.
 */
static void
forget_keep_position(void)
{
	text	   *before = search.reservation;
	bool		no_id;
	bool		no_name;
	Datum		id = query_datum(0, 1, &no_id);
	Datum		name = query_datum(0, 2, &no_name);

	if (!no_name)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		search.reservation = DatumGetTextPCopy(name);
		MemoryContextSwitchTo(old);
		if (before != NULL)
			pfree(before);
	}
	search.complete = search.at_holds && no_name;
	search.at_holds |= no_id;
	if (!no_id)
		search.opened_id = DatumGetInt64(id);
}

/*
 * One step.  Returns whether it has moved rows.
 */
static bool
forget_search(int slot, int max_rows)
{
	static SavedQuery step = {
		.sql = "SELECT last_id, last, moved FROM idempotency_internal.stock_keep_some($1, $2, $3, $4)",
		.types = {INT2OID, INT8OID, TEXTOID, INT4OID}
	};
	Datum		values[] = {
		Int16GetDatum(slot), Int64GetDatum(search.opened_id),
		PointerGetDatum(search.reservation),
		Int32GetDatum(search.at_holds ? FORGET_HOLDS_SHARE * max_rows :
					  max_rows)
	};
	char		nulls[] = "    ";
	bool		isnull;
	bool		moved;

	if (search.at_holds)
		nulls[1] = 'n';
	if (search.reservation == NULL)
		nulls[2] = 'n';
	SPI_connect();
	query_run(&step, values, nulls, false);
	forget_keep_position();
	moved = DatumGetInt64(query_datum(0, 3, &isnull)) > 0;
	SPI_finish();
	if (moved)
	{
		search.moved_by = GetTopFullTransactionId();
		names_note_moved();
	}
	return moved;
}

static bool
forget_search_unguarded(int slot, int max_rows)
{
	volatile bool moved = false;

	guard_let_pass(true);
	PG_TRY();
	{
		moved = forget_search(slot, max_rows);
	}
	PG_FINALLY();
	{
		guard_let_pass(false);
	}
	PG_END_TRY();
	return moved;
}

/*
 * SQL: stock_keep_needed(old_slot, segment, max_rows), one step.  Returns true
 * if the search is complete, and this step has moved nothing; null if it cannot
 * begin now.
 */
Datum
stock_keep_needed(PG_FUNCTION_ARGS)
{
	int			slot = PG_GETARG_INT16(0);
	int64		segment = PG_GETARG_INT64(1);
	int			max_rows = PG_GETARG_INT32(2);
	bool		moved = false;

	settings_prevent_write("stock_keep_needed()");
	shared_require("stock");
	if (slot < 0 || slot >= CATALOG_RING_SIZE || max_rows <= 0)
		elog(ERROR, "slot or max_rows is out of range");
	if (!forget_goes_on(segment) && !forget_begin(slot, segment))
		PG_RETURN_NULL();
	if (!search.at_holds)
		moved |= forget_search_unguarded(slot, max_rows);
	if (search.at_holds && !search.complete)
		moved |= forget_search_unguarded(slot, max_rows);
	PG_RETURN_BOOL(search.complete && !moved);
}

/*
 * SQL: stock_is_kept(segment): has a search moved all that is needed of this
 * table, which the caller has locked alone?  Null: others open reservations all
 * the time, so the caller has to look at all of them.
 */
Datum
stock_is_kept(PG_FUNCTION_ARGS)
{
	int64		segment = PG_GETARG_INT64(0);
	uint64		reopened;

	shared_require("stock");
	if (!forget_goes_on(segment) || !search.complete)
		PG_RETURN_BOOL(false);
	reopened = pg_atomic_read_u64(&shared_my_database()->stock_reopened);
	if (reopened == search.reopened)
		PG_RETURN_BOOL(true);
	search.begun = false;
	if (search.number >= FORGET_SEARCHES_MAX)
		PG_RETURN_NULL();
	PG_RETURN_BOOL(false);
}
