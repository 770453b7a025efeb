/*
 * catalog.c
 *		Finds our own relations by OID, in whatever schema they are, and never
 *		through search_path.
 *
 * What was found is kept for the session and dropped by any invalidation that
 * may concern it: DROP EXTENSION, a restore, a renamed schema.  Our relations
 * come and go together, so a few of them stand for all.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/catalog.h"

static Catalog cached;
static bool cached_valid = false;
static bool loading_disturbed = false;	/* an invalidation came in meanwhile */
static bool callbacks_registered = false;

static void
catalog_relation_changed(Datum arg, Oid relation)
{
	loading_disturbed = true;
	if (!OidIsValid(relation) ||
		relation == cached.idem_token_seq ||
		relation == cached.rings[RING_LOG].state ||
		relation == cached.outbox_position_seq)
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
	CacheRegisterRelcacheCallback(catalog_relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, catalog_schema_changed,
								  (Datum) 0);
	callbacks_registered = true;
}

/*
 * The schema that an extension's objects are in.
 */
static Oid
catalog_extension_schema(Oid extension)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			schema = InvalidOid;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(rel, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return schema;
}

static Oid
catalog_relation(Oid schema, const char *name)
{
	Oid			relation = get_relname_relid(name, schema);

	if (!OidIsValid(relation))
		elog(ERROR, "relation \"%s\" of extension idempotency is missing", name);
	return relation;
}

/*
 * The tables of a ring are called after what they hold, with a number.
 */
static void
catalog_load_ring(CatalogRing *ring, Oid schema, const char *state,
				  const char *table)
{
	ring->state = catalog_relation(schema, state);
	for (int i = 0; i < CATALOG_RING_SIZE; i++)
		ring->tables[i] = catalog_relation(schema, psprintf("%s_%d", table, i));
}

static Oid
catalog_type(Oid schema, const char *name)
{
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
						   CStringGetDatum(name), ObjectIdGetDatum(schema));
}

static void
catalog_load_outcomes(Catalog *catalog)
{
	static const char *const labels[IDEM_OUTCOMES] = {
		[IDEM_CLAIMED] = "claimed",
		[IDEM_IN_PROGRESS] = "in_progress",
		[IDEM_COMPLETED] = "completed",
		[IDEM_FAILED] = "failed",
		[IDEM_MISMATCH] = "mismatch",
	};
	Oid			type = catalog_type(catalog->schema, "idem_outcome");

	for (int i = 0; i < IDEM_OUTCOMES; i++)
		catalog->idem_outcome[i] =
			GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
							ObjectIdGetDatum(type),
							CStringGetDatum(labels[i]));
}

static void
catalog_load(Catalog *catalog, Oid extension)
{
	Oid			schema = catalog_extension_schema(extension);

	catalog->extension = extension;
	catalog->schema = schema;
	strlcpy(catalog->schema_name, quote_identifier(get_namespace_name(schema)),
			sizeof(catalog->schema_name));
	catalog->idem_token_seq = catalog_relation(schema, "idem_token_seq");
	catalog_load_ring(&catalog->rings[RING_KEYS], schema, "idem_ring", "idem_key");
	catalog_load_ring(&catalog->rings[RING_LOG], schema, "outbox_ring", "outbox_log");
	catalog->outbox_position_seq = catalog_relation(schema, "outbox_position_seq");
	catalog_load_outcomes(catalog);
	catalog->idem_answer = catalog_type(schema, "idem_answer");
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
