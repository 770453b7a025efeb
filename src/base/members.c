/*
 * members.c
 *		Which objects of this database belong to the extension.
 *
 * Hooks run for everybody's statements, also in databases without the
 * extension, and must do nothing there.  So the answer is cached for the
 * session.  It depends on nothing but the dependencies of the extension:
 * catalog.c also needs all of its objects, by the names of this version.
 *
 * Nothing is sent to other sessions when an extension is created or changed.
 * But CREATE and DROP EXTENSION create and drop our internal schema, which is
 * sent to all, also at COMMIT PREPARED; and the upgrade scripts call
 * members_announce_change.  An object is locked before a hook asks for it, or
 * its name has just been looked up, and both take in what was sent.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/catalog.h"
#include "base/members.h"

typedef struct Member
{
	Oid			class;
	Oid			object;
} Member;

static bool registered = false;
static bool disturbed = false;	/* invalidated while looking up */
static bool known = false;		/* is extension right? */
static Oid	extension = InvalidOid;
static uint32 internal_hash = 0;	/* of its internal schema; 0: it has none */
static bool loaded = false;		/* are the members right? */
static Member *members = NULL;	/* sorted */
static int	member_count = 0;

/*
 * Without the extension, any schema may be that of a new one.
 */
static void
members_schema_changed(Datum arg, int cache, uint32 hash)
{
	disturbed = true;
	if (hash == 0 || internal_hash == 0 || hash == internal_hash)
		known = loaded = false;
}

static uint32
members_internal_hash(void)
{
	Oid			schema = get_namespace_oid(CATALOG_INTERNAL_SCHEMA, true);

	return OidIsValid(schema) ?
		GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(schema)) : 0;
}

Oid
members_extension(void)
{
	if (known)
		return extension;
	if (!registered)
		CacheRegisterSyscacheCallback(NAMESPACEOID, members_schema_changed,
									  (Datum) 0);
	registered = true;
	disturbed = loaded = false;
	extension = get_extension_oid("idempotency", true);
	internal_hash = OidIsValid(extension) ? members_internal_hash() : 0;
	known = !disturbed;
	return extension;
}

static int
members_compare(const void *a, const void *b)
{
	const Member *left = a;
	const Member *right = b;

	if (left->class != right->class)
		return left->class < right->class ? -1 : 1;
	if (left->object != right->object)
		return left->object < right->object ? -1 : 1;
	return 0;
}

static void
members_append(List **list, Oid class, Oid object)
{
	Member	   *member = palloc(sizeof(Member));

	member->class = class;
	member->object = object;
	*list = lappend(*list, member);
}

/*
 * Reads the members from pg_depend.
 */
static List *
members_read(Oid of)
{
	List	   *list = NIL;
	Relation	rel = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(ExtensionRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(of));
	scan = systable_beginscan(rel, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(row);

		if (form->deptype != DEPENDENCY_EXTENSION)
			continue;
		members_append(&list, form->classid, form->objid);
		if (form->classid == TypeRelationId)
			members_append(&list, RelationRelationId,
						   get_typ_typrelid(form->objid));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	members_append(&list, NamespaceRelationId, catalog_schema());
	return list;
}

/*
 * The list is replaced when the new one is complete.  While a script of an
 * extension runs there may be more objects soon, so the list is not kept.
 */
static void
members_load(void)
{
	List	   *list;
	Member	   *fresh;
	int			count = 0;
	ListCell   *cell;

	disturbed = false;
	list = members_read(extension);
	fresh = MemoryContextAlloc(CacheMemoryContext,
							   list_length(list) * sizeof(Member));
	foreach(cell, list)
		fresh[count++] = *(Member *) lfirst(cell);
	list_free_deep(list);
	qsort(fresh, count, sizeof(Member), members_compare);
	if (members != NULL)
		pfree(members);
	members = fresh;
	member_count = count;
	loaded = !disturbed && !creating_extension;
}

bool
members_include(Oid class, Oid object)
{
	Member		wanted = {.class = class, .object = object};

	if (!OidIsValid(members_extension()) || !OidIsValid(object))
		return false;
	if (!loaded)
		members_load();
	return bsearch(&wanted, members, member_count, sizeof(Member),
				   members_compare) != NULL;
}

/*
 * Caches are dropped as if the internal schema had been changed.
 */
void
members_announce_change(void)
{
	Relation	rel = table_open(NamespaceRelationId, AccessShareLock);
	HeapTuple	row = SearchSysCache1(NAMESPACENAME,
									  CStringGetDatum(CATALOG_INTERNAL_SCHEMA));

	if (HeapTupleIsValid(row))
	{
		CacheInvalidateHeapTuple(rel, row, NULL);
		ReleaseSysCache(row);
	}
	table_close(rel, AccessShareLock);
}
