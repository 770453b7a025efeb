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
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/relation.h"
#include "base/settings.h"
#include "base/trigger.h"
#include "claim/claim.h"
#include "claim/retire.h"

/* How idem_key_redirect is called. */
#define MIGRATE_REDIRECT \
	(TRIGGER_EVENT_BEFORE | TRIGGER_EVENT_ROW | TRIGGER_EVENT_INSERT)

PG_FUNCTION_INFO_V1(idem_migrate);
PG_FUNCTION_INFO_V1(idem_migrate_part);
PG_FUNCTION_INFO_V1(idem_key_redirect);

/*
 * Where the last call in this session stopped, for each segment.  This only
 * saves reading the same pages again: rows that were skipped are found when the
 * scan starts over.
 */
typedef struct Migrated
{
	Oid			table;
	BlockNumber to;
} Migrated;

static Migrated migrated[RING_SIZE];

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
 * Moves at most max_keys rows of a table, from at most so many of its pages.
 * Sets *at_end if that were the last ones.
 */
static int64
migrate_rows(Relation table, Migrated *progress, BlockNumber pages,
			 int max_keys, bool only_in_progress, bool *at_end)
{
	TupleTableSlot *row = table_slot_create(table, NULL);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	BlockNumber blocks = RelationGetNumberOfBlocks(table);
	BlockNumber first = progress->to < blocks ? progress->to : 0;
	bool		last = blocks - first <= pages;
	ItemPointerData from;
	ItemPointerData to;
	TableScanDesc scan;
	int64		moved = 0;

	ItemPointerSet(&from, first, FirstOffsetNumber);
	ItemPointerSet(&to, last ? MaxBlockNumber : first + pages - 1,
				   MaxOffsetNumber);
	scan = compat_table_beginscan_tidrange(table, latest, &from, &to);
	progress->to = 0;
	while (moved < max_keys &&
		   table_scan_getnextslot_tidrange(scan, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		if (!migrate_wants(row, only_in_progress))
			continue;
		progress->to = ItemPointerGetBlockNumber(&row->tts_tid);
		moved += migrate_row(RelationGetRelid(table), row);
	}
	*at_end = last && moved < max_keys;
	if (moved < max_keys)
		progress->to = last ? 0 : first + pages;
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

static int
migrate_slot(Oid table)
{
	const Oid  *tables = catalog_get()->rings[RING_KEYS].tables;
	int			slot = 0;

	while (slot < RING_SIZE - 1 && tables[slot] != table)
		slot++;
	return slot;
}

/*
 * Reads at most so many pages of a segment, and none if all keys that have to
 * be moved were moved: whether it can be retired is being found out.
 */
static Datum
migrate(FunctionCallInfo fcinfo, BlockNumber pages)
{
	bool		at_end = true;
	Migrated   *progress;
	Oid			from;
	Relation	table;
	int64		moved = 0;
	int			slot;

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
	slot = migrate_slot(from);
	relation_hold(from, RowExclusiveLock);
	table = table_open(from, NoLock);
	progress = &migrated[slot];
	if (progress->table != from)
		progress->to = 0;
	progress->table = from;
	if (!retire_has_begun(slot, from, PG_GETARG_BOOL(2)))
		moved = migrate_rows(table, progress, pages, PG_GETARG_INT32(0),
							 PG_GETARG_BOOL(2), &at_end);
	table_close(table, NoLock);
	if (moved == 0 && !at_end)
		PG_RETURN_NULL();
	PG_RETURN_INT64(moved);
}

/*
 * SQL: idem_migrate(max_keys integer, slot smallint, only_in_progress boolean).
 */
Datum
idem_migrate_part(PG_FUNCTION_ARGS)
{
	return migrate(fcinfo, RETIRE_PAGES);
}

/*
 * The same, of version 1.0.0: it reads the whole segment.
 */
Datum
idem_migrate(PG_FUNCTION_ARGS)
{
	return migrate(fcinfo, MaxBlockNumber);
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
