/*
 * catalog.c
 *		Finds the extension's own objects by OID, never through search_path.
 *
 * Tables, sequences and internal functions are in the schema
 * idempotency_internal; types are in the schema of CREATE EXTENSION.
 *
 * The OIDs are cached for the session.  An invalidation of one of our relations
 * or of any schema drops the cache: that covers DROP EXTENSION, a restore and a
 * renamed schema.  Our relations are created and dropped together, so it is
 * enough to watch a few of them.  Tables with our triggers are watched too,
 * since pg_restore --disable-triggers changes the state of these triggers.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/catalog.h"
#include "base/invalidation.h"

static Catalog cached;
static bool cached_valid = false;
static bool loading_disturbed = false;	/* invalidated while loading */
static bool callbacks_registered = false;

/*
 * Does this table have triggers of ours?
 */
static bool
catalog_is_watched(Oid relation)
{
	for (int i = 0; i < CATALOG_RING_SIZE; i++)
	{
		if (relation == cached.rings[RING_KEYS].tables[i])
			return true;
	}
	for (int i = 0; i < CATALOG_GUARDED; i++)
	{
		if (relation == cached.guarded[i])
			return true;
	}
	return false;
}

static void
catalog_relation_changed(Oid relation)
{
	loading_disturbed = true;
	if (!OidIsValid(relation) ||
		relation == cached.idem_token_seq ||
		relation == cached.rings[RING_LOG].state ||
		relation == cached.outbox_position_seq ||
		catalog_is_watched(relation))
		cached_valid = false;
}

static void
catalog_schema_changed(Datum arg, int cache, uint32 hash)
{
	loading_disturbed = true;
	cached_valid = false;
}

static void
catalog_register_callbacks(void)
{
	if (callbacks_registered)
		return;
	invalidation_watch_relations(catalog_relation_changed);
	CacheRegisterSyscacheCallback(NAMESPACEOID, catalog_schema_changed,
								  (Datum) 0);
	callbacks_registered = true;
}

/*
 * Sets the extension's schema and owner.
 */
static void
catalog_load_extension(Catalog *catalog, Oid extension)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(rel, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	catalog->extension = extension;
	if (HeapTupleIsValid(tuple))
	{
		catalog->schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
		catalog->owner = ((Form_pg_extension) GETSTRUCT(tuple))->extowner;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

static Oid
catalog_relation(Oid schema, const char *name)
{
	Oid			relation = get_relname_relid(name, schema);

	if (!OidIsValid(relation))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension idempotency is missing", name)));
	return relation;
}

/*
 * The tables of a ring are named after their content, with a number appended.
 */
static void
catalog_load_ring(CatalogRing *ring, Oid schema, const char *state,
				  const char *table)
{
	ring->state = catalog_relation(schema, state);
	for (int i = 0; i < CATALOG_RING_SIZE; i++)
		ring->tables[i] = catalog_relation(schema, psprintf("%s_%d", table, i));
}

/*
 * Returns '\0' if the trigger does not exist.
 */
static char
catalog_trigger_state(Oid table, const char *name)
{
	Relation	rel = RelationIdGetRelation(table);
	char		state = '\0';
	int			count;

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("a table of extension idempotency is missing")));
	count = rel->trigdesc != NULL ? rel->trigdesc->numtriggers : 0;
	for (int i = 0; i < count; i++)
	{
		if (strcmp(rel->trigdesc->triggers[i].tgname, name) == 0)
			state = rel->trigdesc->triggers[i].tgenabled;
	}
	RelationClose(rel);
	return state;
}

/*
 * Records a trigger that is not ENABLE ALWAYS.  A missing trigger counts as
 * disabled and takes precedence over a disabled one, which takes precedence
 * over one that is enabled in another way.
 */
static void
catalog_load_trigger(CatalogTriggers *triggers, Oid table, const char *name)
{
	char		state = catalog_trigger_state(table, name);

	if (triggers->missing != NULL || state == TRIGGER_FIRES_ALWAYS ||
		(OidIsValid(triggers->table) && state != TRIGGER_DISABLED &&
		 state != '\0'))
		return;
	triggers->table = table;
	triggers->state = state == '\0' ? TRIGGER_DISABLED : state;
	triggers->missing = state == '\0' ? name : NULL;
}

static Oid
catalog_type(Oid schema, const char *name)
{
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
						   CStringGetDatum(name), ObjectIdGetDatum(schema));
}

static Oid
catalog_find_function(Oid schema, const char *name, const Oid *types,
					  int count)
{
	oidvector  *arguments = buildoidvector(types, count);
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										   CStringGetDatum(name),
										   PointerGetDatum(arguments),
										   ObjectIdGetDatum(schema));

	pfree(arguments);
	return function;
}

Oid
catalog_internal_function(const char *name, const Oid *types, int count)
{
	return catalog_find_function(catalog_get()->internal, name, types, count);
}

static Oid
catalog_function(Oid schema, const char *name, const Oid *types, int count)
{
	Oid			function = catalog_find_function(schema, name, types, count);

	if (!OidIsValid(function))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" of extension idempotency is missing", name)));
	return function;
}

/*
 * Looks up the OIDs of an enum's labels.
 */
static void
catalog_load_enum(Oid schema, const char *name, const char *const *labels,
				  int count, Oid *oids)
{
	Oid			type = catalog_type(schema, name);

	for (int i = 0; i < count; i++)
		oids[i] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
								  ObjectIdGetDatum(type),
								  CStringGetDatum(labels[i]));
}

static void
catalog_load_claim(Catalog *catalog)
{
	static const char *const outcomes[IDEM_OUTCOMES] = {
		[IDEM_CLAIMED] = "claimed",
		[IDEM_IN_PROGRESS] = "in_progress",
		[IDEM_COMPLETED] = "completed",
		[IDEM_FAILED] = "failed",
		[IDEM_MISMATCH] = "mismatch",
	};

	catalog->idem_token_seq = catalog_relation(catalog->internal, "idem_token_seq");
	catalog_load_ring(&catalog->rings[RING_KEYS], catalog->internal,
					  "idem_ring", "idem_key");
	catalog_load_enum(catalog->schema, "idem_outcome", outcomes, IDEM_OUTCOMES,
					  catalog->idem_outcome);
	catalog->idem_fence = catalog_relation(catalog->internal, "idem_fence");
	catalog->idem_answer = catalog_type(catalog->schema, "idem_answer");
}

static void
catalog_load_outbox(Catalog *catalog)
{
	static const Oid position = INT8OID;

	catalog_load_ring(&catalog->rings[RING_LOG], catalog->internal,
					  "outbox_ring", "outbox_log");
	catalog_load_ring(&catalog->rings[RING_ATTEMPTS], catalog->internal,
					  "outbox_history_ring", "outbox_history");
	catalog->outbox_position_seq = catalog_relation(catalog->internal,
													"outbox_position_seq");
	catalog->outbox_cancelled = catalog_relation(catalog->internal,
												 "outbox_cancelled");
	catalog->outbox_cancel = catalog_function(catalog->schema, "outbox_cancel",
											  &position, 1);
	catalog->outbox_registered_topic =
		catalog_relation(catalog->internal, "outbox_registered_topic");
}

static void
catalog_load_stock_enums(Catalog *catalog)
{
	static const char *const outcomes[STOCK_OUTCOMES] = {
		[STOCK_RESERVED] = "reserved",
		[STOCK_INSUFFICIENT] = "insufficient",
		[STOCK_UNKNOWN_SKU] = "unknown_sku",
		[STOCK_WAITING] = "waiting",
	};
	static const char *const settlements[STOCK_SETTLEMENTS] = {
		[STOCK_DONE] = "done",
		[STOCK_EXPIRED] = "expired",
		[STOCK_ALREADY_CONFIRMED] = "already_confirmed",
		[STOCK_ALREADY_CANCELLED] = "already_cancelled",
		[STOCK_ALREADY_RESERVED] = "already_reserved",
		[STOCK_FALLS_SHORT] = "insufficient",
		[STOCK_UNKNOWN] = "unknown",
		[STOCK_WAITS] = "waiting",
	};
	static const char *const changes[STOCK_CHANGES] = {
		[STOCK_RECEIVE] = "receive",
		[STOCK_ADJUST] = "adjust",
		[STOCK_RESERVE] = "reserve",
		[STOCK_CANCEL] = "cancel",
		[STOCK_EXPIRE] = "expire",
		[STOCK_CONFIRM] = "confirm",
		[STOCK_REINSTATE] = "reinstate",
		[STOCK_TRANSFER] = "transfer",
		[STOCK_BACKORDER] = "backorder",
	};

	catalog_load_enum(catalog->schema, "stock_outcome", outcomes,
					  STOCK_OUTCOMES, catalog->stock_outcome);
	catalog_load_enum(catalog->schema, "stock_settlement", settlements,
					  STOCK_SETTLEMENTS, catalog->stock_settlement);
	catalog_load_enum(catalog->schema, "stock_change", changes,
					  STOCK_CHANGES, catalog->stock_change);
}

static void
catalog_load_stock_functions(Catalog *catalog)
{
	static const Oid announce[] = {
		TEXTOID, TEXTOID, TEXTARRAYOID, INT8ARRAYOID
	};
	static const Oid available[] = {TEXTOID, INT8OID};
	static const Oid served[] = {TEXTOID, INT8OID, TEXTOID, TIMESTAMPTZOID};

	catalog->stock_announce = catalog_function(catalog->internal, "stock_announce",
											   announce, lengthof(announce));
	catalog->stock_announce_available =
		catalog_function(catalog->internal, "stock_announce_available",
						 available, lengthof(available));
	catalog->stock_announce_served =
		catalog_function(catalog->internal, "stock_announce_served",
						 served, lengthof(served));
}

static void
catalog_load_stock(Catalog *catalog)
{
	catalog->stock_log = catalog_relation(catalog->internal, "stock_log");
	catalog->stock_log_id_seq = catalog_relation(catalog->internal,
												 "stock_log_id_seq");
	catalog->stock_hold = catalog_relation(catalog->internal, "stock_hold");
	catalog->stock_item = catalog_relation(catalog->internal, "stock_item");
	catalog->stock_queue = catalog_relation(catalog->internal, "stock_queue");
	catalog->stock_in_doubt = catalog_relation(catalog->internal,
											   "stock_in_doubt");
	catalog_load_ring(&catalog->rings[RING_HISTORY], catalog->internal,
					  "stock_ring", "stock_history");
	catalog_load_stock_enums(catalog);
	catalog->stock_reservation = catalog_type(catalog->schema, "stock_reservation");
	catalog_load_stock_functions(catalog);
}

static void
catalog_load_triggers(Catalog *catalog)
{
	const CatalogRing *history = &catalog->rings[RING_HISTORY];

	catalog->guarded[0] = catalog->stock_log;
	catalog->guarded[1] = catalog->stock_hold;
	catalog->guarded[2] = catalog->stock_item;
	catalog->guarded[3] = catalog->stock_queue;
	memcpy(&catalog->guarded[4], history->tables, sizeof(history->tables));
	for (int i = 0; i < CATALOG_RING_SIZE; i++)
		catalog_load_trigger(&catalog->key_triggers,
							 catalog->rings[RING_KEYS].tables[i],
							 "idem_key_redirect");
	for (int i = 0; i < CATALOG_GUARDED; i++)
	{
		catalog_load_trigger(&catalog->stock_triggers, catalog->guarded[i],
							 "stock_guard");
		if (i < CATALOG_GUARDED - CATALOG_RING_SIZE)	/* no history */
			catalog_load_trigger(&catalog->stock_triggers,
								 catalog->guarded[i], "stock_guard_truncate");
	}
}

/*
 * Before version 1.0.0 all objects were in the schema of the extension.  So a
 * schema of this name need not belong to the extension.
 */
static void
catalog_load_internal(Catalog *catalog)
{
	catalog->internal = get_namespace_oid(CATALOG_INTERNAL_SCHEMA, true);
	if (!OidIsValid(catalog->internal) ||
		getExtensionOfObject(NamespaceRelationId,
							 catalog->internal) != catalog->extension)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("schema \"%s\" of extension idempotency is missing",
						CATALOG_INTERNAL_SCHEMA),
				 errhint("If the extension is older than version 1.0.0 in this database, run ALTER EXTENSION idempotency UPDATE.")));
}

static void
catalog_load(Catalog *catalog, Oid extension)
{
	catalog_load_extension(catalog, extension);
	if (!OidIsValid(catalog->schema))
		elog(ERROR, "extension idempotency is being dropped");
	catalog_load_internal(catalog);
	catalog->restoring = catalog_find_function(catalog->internal,
											   "idempotency_restoring", NULL, 0);
	catalog_load_claim(catalog);
	catalog_load_outbox(catalog);
	catalog_load_stock(catalog);
	catalog_load_triggers(catalog);
}

const Catalog *
catalog_find(void)
{
	if (!cached_valid)
	{
		Oid			extension = get_extension_oid("idempotency", true);
		Catalog		fresh = {0};

		if (!OidIsValid(extension))
			return NULL;
		catalog_register_callbacks();
		loading_disturbed = false;
		catalog_load(&fresh, extension);
		cached = fresh;
		cached_valid = !loading_disturbed;
	}
	return &cached;
}

Oid
catalog_schema(void)
{
	Oid			extension = get_extension_oid("idempotency", true);
	Catalog		catalog = {0};

	if (OidIsValid(extension))
		catalog_load_extension(&catalog, extension);
	return catalog.schema;
}

const Catalog *
catalog_get(void)
{
	const Catalog *catalog = catalog_find();

	if (catalog == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension idempotency is not installed in this database"),
				 errhint("Run CREATE EXTENSION idempotency.")));
	return catalog;
}
