/*
 * migrate.c
 *		Moves keys into the current segment: those that outlive an old segment,
 *		and those that are inserted by INSERT or COPY.
 *
 * The sweeper calls idem_migrate in short transactions until all rows that are
 * left in an old segment have expired.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/settings.h"
#include "base/trigger.h"
#include "claim/claim.h"

/* How idem_key_redirect is called. */
#define MIGRATE_REDIRECT \
	(TRIGGER_EVENT_BEFORE | TRIGGER_EVENT_ROW | TRIGGER_EVENT_INSERT)

PG_FUNCTION_INFO_V1(idem_migrate);
PG_FUNCTION_INFO_V1(idem_key_redirect);

/*
 * Where the last call in this session stopped.  This only saves reading the
 * same pages again: rows that were skipped are found when the scan starts
 * over.
 */
static Oid	migrated_table = InvalidOid;
static BlockNumber migrated_to = 0;

/*
 * Moves one row, unless another transaction has locked it or the table is no
 * longer an old segment.
 */
static bool
migrate_row(Oid table, TupleTableSlot *row)
{
	bool		moved = false;
	KeyRing		keys;

	keys_open(&keys);
	for (int i = 1; i < keys.map.live; i++)
	{
		if (keys.map.tables[i] != table)
			continue;
		keys.found_in = i;
		keys.found_at = row->tts_tid;
		moved = keys_delete(&keys) == TM_Ok;
	}
	if (moved)
		keys_insert_moved(&keys, row);
	keys_close(&keys);
	return moved;
}

/*
 * Has a row to be moved, since the key is in use?
 */
static bool
migrate_wants(TupleTableSlot *row, bool only_in_progress)
{
	return key_expiry_of_row(row) > GetCurrentTimestamp() &&
		(!only_in_progress || key_row(row).state == KEY_IN_PROGRESS);
}

/*
 * Moves at most max_keys rows of a table.
 */
static int64
migrate_rows(Relation table, int max_keys, bool only_in_progress)
{
	TupleTableSlot *row = table_slot_create(table, NULL);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	ItemPointerData from;
	ItemPointerData to;
	TableScanDesc scan;
	int64		moved = 0;

	if (migrated_table != RelationGetRelid(table))
		migrated_to = 0;
	migrated_table = RelationGetRelid(table);
	ItemPointerSet(&from, migrated_to, FirstOffsetNumber);
	ItemPointerSet(&to, MaxBlockNumber, MaxOffsetNumber);
	scan = compat_table_beginscan_tidrange(table, latest, &from, &to);
	migrated_to = 0;
	while (moved < max_keys &&
		   table_scan_getnextslot_tidrange(scan, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		if (!migrate_wants(row, only_in_progress))
			continue;
		migrated_to = ItemPointerGetBlockNumber(&row->tts_tid);
		moved += migrate_row(RelationGetRelid(table), row);
	}
	if (moved < max_keys)
		migrated_to = 0;
	table_endscan(scan);
	UnregisterSnapshot(latest);
	ExecDropSingleTupleTableSlot(row);
	return moved;
}

/*
 * Returns the oldest segment's table; InvalidOid: there is only one segment.
 */
static Oid
migrate_oldest(void)
{
	KeyRing		keys;

	keys_open(&keys);
	keys_close(&keys);
	return keys.map.live > 1 ? keys.map.tables[keys.map.live - 1] : InvalidOid;
}

/*
 * SQL: idem_migrate(max_keys integer, slot smallint, only_in_progress boolean).
 */
Datum
idem_migrate(PG_FUNCTION_ARGS)
{
	Oid			from;
	Relation	table;
	int64		moved;

	settings_prevent_write("idem_migrate()");
	if (PG_ARGISNULL(0) || PG_GETARG_INT32(0) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_keys must be positive")));
	args_require(fcinfo, 2, "only_in_progress");
	/* Lock in the order of keys_open and of DROP EXTENSION. */
	relation_hold(catalog_get()->idem_token_seq, RowExclusiveLock);
	from = PG_ARGISNULL(1) ? migrate_oldest() : key_segment_arg(fcinfo, 1);
	if (!OidIsValid(from))
		PG_RETURN_INT64(0);
	relation_hold(from, RowExclusiveLock);
	table = table_open(from, NoLock);
	moved = migrate_rows(table, PG_GETARG_INT32(0), PG_GETARG_BOOL(2));
	table_close(table, NoLock);
	PG_RETURN_INT64(moved);
}

static void
migrate_key_exists(const KeyName *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("key \"%s\" is there already",
					text_to_cstring(name->key))));
}

/*
 * Deletes an expired row of the same key.  Raises an error if the key exists.
 */
static void
migrate_require_absent(KeyRing *keys, const KeyName *name)
{
	for (int i = 0; i < keys->map.live; i++)
	{
		SnapshotData dirty;

		InitDirtySnapshot(dirty);
		if (!keys_find_in(keys, i, name, &dirty))
			continue;
		if (!key_row_has_expired(keys->slot) ||
			keys_delete(keys) != TM_Ok)
			migrate_key_exists(name);
	}
}

/*
 * SQL: idem_key_redirect(), a BEFORE INSERT trigger for rows that are not
 * inserted by our functions, such as those of pg_restore's COPY.  It inserts
 * the row into the current segment, or drops it if it has expired; the table
 * that the statement names gets no row.
 */
Datum
idem_key_redirect(PG_FUNCTION_ARGS)
{
	static const TriggerEvent kind = MIGRATE_REDIRECT;
	const Oid  *tables = catalog_get()->rings[RING_KEYS].tables;
	TriggerData *trigger = trigger_called(fcinfo, &kind, 1, tables,
										  CATALOG_RING_SIZE);
	TupleTableSlot *row = trigger->tg_trigslot;
	KeyName		name;
	KeyRing		keys;

	relation_check_constraints(trigger->tg_relation, row);
	if (key_expiry_of_row(row) <= GetCurrentTimestamp())
		return PointerGetDatum(NULL);
	name = key_name_of_row(row);
	keys_open(&keys);
	migrate_require_absent(&keys, &name);
	if (!keys_insert_row(&keys, row))
		migrate_key_exists(&name);
	keys_close(&keys);
	return PointerGetDatum(NULL);
}
