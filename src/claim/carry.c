/*
 * carry.c
 *		Moves keys into the current generation: those that outlive the oldest
 *		one, and those that come by INSERT or COPY.
 *
 * The sweeper calls idem_carry in small transactions, until nothing is left
 * in the oldest generation that has not expired.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/relation.h"
#include "claim/claim.h"

PG_FUNCTION_INFO_V1(idem_carry);
PG_FUNCTION_INFO_V1(idem_key_redirect);

/*
 * Where the last call in this session stopped.  It only saves looking at the
 * same pages again: what is left behind is found by the next round.
 */
static Oid	carried_table = InvalidOid;
static BlockNumber carried_to = 0;

/*
 * Moves one row, unless another transaction is about to.
 */
static bool
carry_row(KeyRing *keys, int generation, TupleTableSlot *row)
{
	keys->found_in = generation;
	keys->found_at = row->tts_tid;
	if (keys_delete(keys) != TM_Ok)
		return false;
	keys_insert_moved(keys, row);
	return true;
}

/*
 * Moves up to so many rows of the oldest generation.
 */
static int64
carry_rows(KeyRing *keys, int max_keys)
{
	int			oldest = keys->map.live - 1;
	Relation	table = keys_table(keys, oldest);
	TupleTableSlot *row = table_slot_create(table, NULL);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	ItemPointerData from;
	ItemPointerData to;
	TableScanDesc scan;
	int64		moved = 0;

	if (carried_table != RelationGetRelid(table))
		carried_to = 0;
	carried_table = RelationGetRelid(table);
	ItemPointerSet(&from, carried_to, FirstOffsetNumber);
	ItemPointerSet(&to, MaxBlockNumber, MaxOffsetNumber);
	scan = table_beginscan_tidrange(table, latest, &from, &to);
	carried_to = 0;
	while (moved < max_keys &&
		   table_scan_getnextslot_tidrange(scan, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		if (key_expiry_of_row(row) <= GetCurrentTimestamp())
			continue;
		carried_to = ItemPointerGetBlockNumber(&row->tts_tid);
		moved += carry_row(keys, oldest, row);
	}
	if (moved < max_keys)
		carried_to = 0;
	table_endscan(scan);
	UnregisterSnapshot(latest);
	ExecDropSingleTupleTableSlot(row);
	return moved;
}

/*
 * SQL: idem_carry(max_keys integer).
 */
Datum
idem_carry(PG_FUNCTION_ARGS)
{
	int			max_keys = PG_GETARG_INT32(0);
	int64		moved = 0;
	KeyRing		keys;

	claim_prevent_if_readonly("idem_carry()");
	if (max_keys <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_keys must be positive")));
	keys_open(&keys, RowExclusiveLock);
	if (keys.map.live > 1)
		moved = carry_rows(&keys, max_keys);
	keys_close(&keys);
	PG_RETURN_INT64(moved);
}

/*
 * What the executor would check, had it inserted the row itself.
 */
static void
carry_check_constraints(Relation table, TupleTableSlot *row)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *info = makeNode(ResultRelInfo);

	InitResultRelInfo(info, table, 0, NULL, 0);
	ExecConstraints(info, row, estate);
	FreeExecutorState(estate);
}

static void
carry_key_exists(const KeyName *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("key \"%s\" is there already",
					text_to_cstring(name->key))));
}

/*
 * Makes room for a row: an expired one of the same key goes.
 */
static void
carry_require_absent(KeyRing *keys, const KeyName *name)
{
	for (int i = 0; i < keys->map.live; i++)
	{
		SnapshotData dirty;

		InitDirtySnapshot(dirty);
		if (!keys_find_in(keys, i, name, &dirty))
			continue;
		if (key_expiry_of_row(keys->slot) > GetCurrentTimestamp() ||
			keys_delete(keys) != TM_Ok)
			carry_key_exists(name);
	}
}

/*
 * SQL: idem_key_redirect(), a trigger before each row that is inserted by other
 * means than our functions, such as pg_restore's COPY: whatever generation it
 * names, the row goes into the current one, unless it has expired.
 */
Datum
idem_key_redirect(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleTableSlot *row;
	KeyName		name;
	KeyRing		keys;

	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "not called as a trigger");
	row = trigger->tg_trigslot;
	carry_check_constraints(trigger->tg_relation, row);
	if (key_expiry_of_row(row) <= GetCurrentTimestamp())
		return PointerGetDatum(NULL);
	name = key_name_of_row(row);
	keys_open(&keys, RowExclusiveLock);
	carry_require_absent(&keys, &name);
	if (!keys_insert_row(&keys, row))
		carry_key_exists(&name);
	keys_close(&keys);
	return PointerGetDatum(NULL);
}
