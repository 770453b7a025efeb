/*
 * fence.c
 *		Fences: in a scope that has a fence, no key can be claimed or finished.
 *
 * A scope moves to another database in these steps, of which each can be
 * repeated: a fence in the new database, a fence in the old one, export; import
 * and the end of the new database's fence in one transaction.  So at any time
 * at most one of them answers, and it knows all keys of the scope.
 *
 * A fence is a row of idem_fence.  A claimer looks for it after it has locked
 * the ring.  It keeps that lock until it has locked the segment that it writes
 * to, and keeps the lock on that segment until its transaction has ended.  So
 * if idem_fence_wait, after the commit of a fence, waits for all that have
 * locked the ring and then for all that have locked a segment, no transaction
 * is left that claims a key without having seen the fence.  Claims of other
 * scopes go on meanwhile.  Model: test/models/fence.pml.
 *
 * Usually there are no fences.  Each session remembers that, until the commit
 * of a fence sends it an invalidation message.  That commit is visible a little
 * before its message is sent, and its transaction keeps the lock on idem_fence
 * until after that.  So idem_fence_wait first waits for those that have locked
 * idem_fence: then all who lock the ring later receive the message.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/invalidation.h"
#include "base/relation.h"
#include "base/trigger.h"
#include "claim/fence.h"

/* The columns of idem_fence, counted from 0. */
enum
{
	FENCE_ATT_SCOPE,
	FENCE_ATT_FENCED_AT,
	FENCE_ATTS
};

/* What this session knows. */
static Oid	fence_table = InvalidOid;	/* or not valid any more */
static bool fence_any = false;
static bool callback_registered = false;

PG_FUNCTION_INFO_V1(idem_fence_changed);
PG_FUNCTION_INFO_V1(idem_fence_check_scope);
PG_FUNCTION_INFO_V1(idem_fence_wait);

static void
fence_table_changed(Oid relation)
{
	if (!OidIsValid(relation) || relation == fence_table)
		fence_table = InvalidOid;
}

/*
 * SQL: idem_fence_changed(), the trigger of idem_fence.
 */
Datum
idem_fence_changed(PG_FUNCTION_ARGS)
{
	/* TRIGGER_EVENT_AFTER and that of a statement are 0. */
	static const TriggerEvent kinds[] = {
		TRIGGER_EVENT_INSERT,
		TRIGGER_EVENT_UPDATE,
		TRIGGER_EVENT_DELETE,
		TRIGGER_EVENT_TRUNCATE
	};
	Oid			table = catalog_get()->idem_fence;
	TriggerData *trigger = trigger_called(fcinfo, kinds, lengthof(kinds),
										  &table, 1);

	CacheInvalidateRelcache(trigger->tg_relation);
	return PointerGetDatum(NULL);
}

/*
 * Reads whether there are fences.
 */
static void
fence_load(Oid table)
{
	Relation	fences = table_open(table, AccessShareLock);
	TupleTableSlot *row = relation_slot(fences, FENCE_ATTS);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = compat_table_beginscan(fences, latest);

	if (!callback_registered)
		invalidation_watch_relations(fence_table_changed);
	callback_registered = true;
	fence_table = table;
	fence_any = true;			/* in case that the scan fails */
	fence_any = table_scan_getnextslot(scan, ForwardScanDirection, row);
	table_endscan(scan);
	UnregisterSnapshot(latest);
	ExecDropSingleTupleTableSlot(row);
	table_close(fences, AccessShareLock);
}

/*
 * Looks for the scope's fence, with the latest snapshot.  own: was it inserted
 * by this transaction?
 */
static bool
fence_find(const text *scope, bool *own)
{
	Relation	fences = table_open(catalog_get()->idem_fence, AccessShareLock);
	TupleTableSlot *row = relation_slot(fences, FENCE_ATTS);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	RelationScan scan;
	ScanKeyData key;
	bool		found;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(scope));
	relation_scan_begin(&scan, fences, FENCE_ATT_SCOPE + 1, 0, &key, 1, latest);
	found = relation_scan_next(&scan, row);
	*own = false;
	if (found)
	{
		bool		isnull;
		Datum		xmin = slot_getsysattr(row, MinTransactionIdAttributeNumber,
										   &isnull);

		*own = TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
	}
	relation_scan_end(&scan, RowExclusiveLock);
	UnregisterSnapshot(latest);
	ExecDropSingleTupleTableSlot(row);
	table_close(fences, AccessShareLock);
	return found;
}

void
fence_check(const text *scope)
{
	Oid			table = catalog_get()->idem_fence;
	bool		own;

	if (fence_table != table)
		fence_load(table);
	if (fence_any && fence_find(scope, &own))
		ereport(ERROR,
				(errcode(ERRCODE_SCOPE_MOVED),
				 errmsg("scope \"%s\" has moved to another database",
						text_to_cstring(scope)),
				 errhint("Send the request to the database that has the scope now. If it is on its way, try again.")));
}

/*
 * SQL: idem_fence_check_scope(scope), whether idem_fence can take it.
 */
Datum
idem_fence_check_scope(PG_FUNCTION_ARGS)
{
	errors_hide_frames();
	key_check_not_reserved(key_scope_arg(fcinfo, 0));
	PG_RETURN_VOID();
}

void
fence_require_committed(const text *scope)
{
	bool		own;

	if (!fence_find(scope, &own))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("scope \"%s\" has no fence", text_to_cstring(scope)),
				 errhint("Call idem_fence() first, and commit.")));
	if (own)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the fence of scope \"%s\" is not committed",
						text_to_cstring(scope)),
				 errhint("Commit after idem_fence(), and then export.")));
}

/*
 * Waits for all transactions that have locked a table to write to it.
 */
static void
fence_wait_for_writers(Oid table)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
	WaitForLockers(tag, ShareLock, false);
}

/*
 * What this transaction has written to a segment could be exported and then
 * rolled back.
 */
static void
fence_prevent_own_keys(Oid segment)
{
	Relation	table = table_open(segment, AccessShareLock);

	if (CheckRelationLockedByMe(table, RowExclusiveLock, true))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("idem_export() must not run in a transaction that has changed keys"),
				 errhint("Commit first.")));
	table_close(table, NoLock);
}

/*
 * SQL: idem_fence_wait(scopes text[]).  Raises an error unless all these scopes
 * have a fence; then waits for the transactions that may not have seen them.
 */
Datum
idem_fence_wait(PG_FUNCTION_ARGS)
{
	const CatalogRing ring = catalog_get()->rings[RING_KEYS];
	const Oid	fences = catalog_get()->idem_fence;
	Datum	   *elements;
	bool	   *nulls;
	int			count;

	errors_hide_frames();
	args_require(fcinfo, 0, "scope");
	/* There, transactions of the primary hold no locks to wait for. */
	PreventCommandDuringRecovery("idem_export()");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false,
					  TYPALIGN_INT, &elements, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			args_raise_null("scope");
		fence_require_committed(DatumGetTextPP(elements[i]));
	}
	for (int i = 0; i < CATALOG_RING_SIZE; i++)
		fence_prevent_own_keys(ring.tables[i]);
	fence_wait_for_writers(fences);
	fence_wait_for_writers(ring.state);
	for (int i = 0; i < CATALOG_RING_SIZE; i++)
		fence_wait_for_writers(ring.tables[i]);
	PG_RETURN_VOID();
}
