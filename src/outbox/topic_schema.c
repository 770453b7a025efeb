/*
 * topic_schema.c
 *		Checks payloads against the JSON schemas of registered topics.
 *
 * outbox_topic registers topics in the table outbox_registered_topic.  The
 * check is left to the extension pg_jsonschema.  Its functions are found by
 * their membership in that extension, never by name through search_path, and
 * are called without a check of privileges: callers need none on them.
 *
 * Most topics have no schema, and enqueuing to them must cost nothing more.  So
 * a session caches the names of those that have one.  Each change of the table
 * invalidates its relation cache entry (by a trigger; TRUNCATE does it by
 * itself), and that drops the names.  The schema is read again for each event.
 *
 * Names and schema are read with the latest snapshot: what is committed now is
 * in force, whatever the isolation level is.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/invalidation.h"
#include "base/relation.h"
#include "base/trigger.h"
#include "outbox/topic_schema.h"

#define VALIDATOR_EXTENSION "pg_jsonschema"
#define TOPIC_SCHEMA_NAME_SIZE 256	/* the longest topic and a zero byte */
#define TOPIC_SCHEMA_NAMES_START 64 /* a hash table grows when needed */
#define TOPIC_SCHEMA_REASONS_MAX 3	/* shown of an event that is refused */
#define TOPIC_SCHEMA_REASON_MAX 200 /* bytes of each of them */

/* The columns of outbox_registered_topic, counted from 0. */
enum
{
	TOPIC_ATT_TOPIC,
	TOPIC_ATT_SCHEMA,
	TOPIC_ATT_DESCRIPTION,
	TOPIC_ATT_CREATED_AT,
	TOPIC_ATT_CHANGED_AT,
	TOPIC_ATTS
};

/* Functions of pg_jsonschema; InvalidOid: this version lacks it. */
typedef struct Validator
{
	Oid			matches;		/* (schema json, instance jsonb) -> bool */
	Oid			is_valid;		/* (schema json) -> bool */
	Oid			errors;			/* (schema json, instance json) -> text[] */
} Validator;

static HTAB *names = NULL;		/* topics with a schema; NULL: none */
static MemoryContext names_context = NULL;
static Oid	names_table = InvalidOid;
static bool names_valid = false;
static bool names_disturbed = false;	/* invalidated while loading */

static Validator validator;
static bool validator_valid = false;
static bool validator_disturbed = false;	/* invalidated while loading */

static bool callbacks_registered = false;

PG_FUNCTION_INFO_V1(outbox_topic_changed);
PG_FUNCTION_INFO_V1(outbox_check_schema);

static void
topic_schema_table_changed(Oid relation)
{
	if (OidIsValid(relation) && relation != names_table)
		return;
	names_valid = false;
	names_disturbed = true;
}

/* The functions of an extension change when it is created or dropped. */
static void
topic_schema_function_changed(Datum arg, int cache, uint32 hash)
{
	validator_valid = false;
	validator_disturbed = true;
}

static void
topic_schema_register_callbacks(void)
{
	if (callbacks_registered)
		return;
	invalidation_watch_relations(topic_schema_table_changed);
	CacheRegisterSyscacheCallback(PROCOID, topic_schema_function_changed,
								  (Datum) 0);
	callbacks_registered = true;
}

/*
 * SQL: outbox_topic_changed(), the trigger of outbox_registered_topic.
 */
Datum
outbox_topic_changed(PG_FUNCTION_ARGS)
{
	/* TRIGGER_EVENT_AFTER is 0. */
	static const TriggerEvent kinds[] = {
		TRIGGER_EVENT_ROW | TRIGGER_EVENT_INSERT,
		TRIGGER_EVENT_ROW | TRIGGER_EVENT_UPDATE,
		TRIGGER_EVENT_ROW | TRIGGER_EVENT_DELETE
	};
	Oid			table = catalog_get()->outbox_registered_topic;
	TriggerData *trigger = trigger_called(fcinfo, kinds, lengthof(kinds),
										  &table, 1);

	CacheInvalidateRelcache(trigger->tg_relation);
	return PointerGetDatum(NULL);
}

/* ---- which topics have a schema ---- */

/*
 * Returns false if the name is too long to be in the table.
 */
static bool
topic_schema_name(const text *topic, char *name)
{
	Size		length = VARSIZE_ANY_EXHDR(topic);

	if (length >= TOPIC_SCHEMA_NAME_SIZE)
		return false;
	memcpy(name, VARDATA_ANY(topic), length);
	name[length] = '\0';
	return true;
}

static HTAB *
topic_schema_make_names(void)
{
	HASHCTL		info = {0};

	info.keysize = TOPIC_SCHEMA_NAME_SIZE;
	info.entrysize = TOPIC_SCHEMA_NAME_SIZE;
	info.hcxt = names_context;
	return hash_create("topics with a schema", TOPIC_SCHEMA_NAMES_START, &info,
					   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

static void
topic_schema_add_name(TupleTableSlot *slot)
{
	char		name[TOPIC_SCHEMA_NAME_SIZE];
	bool		no_topic;
	bool		no_schema;
	Datum		topic = slot_getattr(slot, TOPIC_ATT_TOPIC + 1, &no_topic);

	(void) slot_getattr(slot, TOPIC_ATT_SCHEMA + 1, &no_schema);
	if (no_topic || no_schema ||
		!topic_schema_name(DatumGetTextPP(topic), name))
		return;
	if (names == NULL)
		names = topic_schema_make_names();
	(void) hash_search(names, name, HASH_ENTER, NULL);
}

/*
 * An invalidation that is received after the lock, and so perhaps after the
 * snapshot, makes the next call load again.
 */
static void
topic_schema_load_names(void)
{
	Relation	table;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;

	topic_schema_register_callbacks();
	if (names_context == NULL)
		names_context = AllocSetContextCreate(CacheMemoryContext,
											  "topics with a schema",
											  ALLOCSET_SMALL_SIZES);
	names = NULL;
	MemoryContextReset(names_context);
	names_table = catalog_get()->outbox_registered_topic;
	table = table_open(names_table, AccessShareLock);
	names_disturbed = false;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = relation_slot(table, TOPIC_ATTS);
	scan = compat_table_beginscan(table, snapshot);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		topic_schema_add_name(slot);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(table, AccessShareLock);
	names_valid = !names_disturbed;
}

/*
 * In a transaction that holds all locks already, nothing else would receive
 * the invalidation of a topic that was registered meanwhile.
 */
static bool
topic_schema_exists(const text *topic)
{
	char		name[TOPIC_SCHEMA_NAME_SIZE];

	AcceptInvalidationMessages();
	if (!names_valid)
		topic_schema_load_names();
	return names != NULL && topic_schema_name(topic, name) &&
		hash_search(names, name, HASH_FIND, NULL) != NULL;
}

/*
 * Returns the schema of a topic, of type json, or 0 if it has none (any more).
 */
static Datum
topic_schema_read(const text *topic)
{
	Relation	table = table_open(names_table, AccessShareLock);
	Relation	index = relation_open_index(table, TOPIC_ATT_TOPIC + 1, 1, 0,
											AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = relation_slot(table, TOPIC_ATTS);
	Datum		result = (Datum) 0;
	bool		isnull = true;
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(topic));
	if (relation_probe(table, index, &key, 1, snapshot, slot))
	{
		Datum		schema = slot_getattr(slot, TOPIC_ATT_SCHEMA + 1, &isnull);

		if (!isnull)
			result = DirectFunctionCall1(jsonb_out, schema);
	}
	if (!isnull)
		result = CStringGetTextDatum(DatumGetCString(result));
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	index_close(index, AccessShareLock);
	table_close(table, AccessShareLock);
	return result;
}

/* ---- the extension that checks ---- */

/*
 * Takes note of a function if it is one that we call.
 */
static void
validator_add(Validator *found, Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc proc;
	const char *name;
	const Oid  *types;

	if (!HeapTupleIsValid(tuple))
		return;
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	name = NameStr(proc->proname);
	types = proc->proargtypes.values;
	if (proc->proretset || proc->pronargs < 1 || types[0] != JSONOID)
		 /* none of them */ ;
	else if (strcmp(name, "jsonb_matches_schema") == 0 &&
			 proc->pronargs == 2 && types[1] == JSONBOID &&
			 proc->prorettype == BOOLOID)
		found->matches = function;
	else if (strcmp(name, "jsonschema_is_valid") == 0 &&
			 proc->pronargs == 1 && proc->prorettype == BOOLOID)
		found->is_valid = function;
	else if (strcmp(name, "jsonschema_validation_errors") == 0 &&
			 proc->pronargs == 2 && types[1] == JSONOID &&
			 proc->prorettype == TEXTARRAYOID)
		found->errors = function;
	ReleaseSysCache(tuple);
}

static void
validator_load_functions(Validator *found, Oid extension)
{
	Relation	depend = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(ExtensionRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(extension));
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL,
							  lengthof(keys), keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend member = (Form_pg_depend) GETSTRUCT(tuple);

		if (member->deptype == DEPENDENCY_EXTENSION &&
			member->classid == ProcedureRelationId)
			validator_add(found, member->objid);
	}
	systable_endscan(scan);
	table_close(depend, AccessShareLock);
}

/*
 * Returns NULL if the extension is not installed here, or lacks the function
 * without which nothing can be checked.
 */
static const Validator *
validator_find(void)
{
	if (!validator_valid)
	{
		Validator	found = {0};
		Oid			extension;

		topic_schema_register_callbacks();
		validator_disturbed = false;
		extension = get_extension_oid(VALIDATOR_EXTENSION, true);
		if (OidIsValid(extension))
			validator_load_functions(&found, extension);
		validator = found;
		validator_valid = !validator_disturbed;
	}
	return OidIsValid(validator.matches) ? &validator : NULL;
}

static bool
validator_matches(const Validator *check, Datum schema, Datum instance)
{
	return DatumGetBool(OidFunctionCall2Coll(check->matches,
											 DEFAULT_COLLATION_OID,
											 schema, instance));
}

/*
 * Returns the first reasons of a mismatch, or NULL if this version of the
 * extension tells none.
 */
static char *
validator_reasons(const Validator *check, Datum schema, Jsonb *payload)
{
	Datum		instance;
	Datum		errors;
	ArrayIterator iterator;
	StringInfoData reasons;
	Datum		reason;
	bool		isnull;

	if (!OidIsValid(check->errors))
		return NULL;
	instance = CStringGetTextDatum(JsonbToCString(NULL, &payload->root,
												  VARSIZE(payload)));
	errors = OidFunctionCall2Coll(check->errors, DEFAULT_COLLATION_OID, schema,
								  instance);
	initStringInfo(&reasons);
	iterator = array_create_iterator(DatumGetArrayTypeP(errors), 0, NULL);
	for (int i = 0; i < TOPIC_SCHEMA_REASONS_MAX &&
		 array_iterate(iterator, &reason, &isnull);)
	{
		char	   *line;

		if (isnull)
			continue;
		line = TextDatumGetCString(reason);
		line[pg_mbcliplen(line, strlen(line), TOPIC_SCHEMA_REASON_MAX)] = '\0';
		appendStringInfo(&reasons, "%s%s", i++ > 0 ? "\n" : "", line);
	}
	array_free_iterator(iterator);
	return reasons.len > 0 ? reasons.data : NULL;
}

/* ---- the checks ---- */

/*
 * SQL: outbox_check_schema(schema), raises an error unless payloads can be
 * checked against this schema.  A schema whose references cannot be resolved is
 * valid, but cannot be used; the extension says so when it tries.
 */
Datum
outbox_check_schema(PG_FUNCTION_ARGS)
{
	Datum		string = DirectFunctionCall1(jsonb_out, PG_GETARG_DATUM(0));
	Datum		schema = CStringGetTextDatum(DatumGetCString(string));
	Datum		instance = DirectFunctionCall1(jsonb_in,
											   CStringGetDatum("null"));
	const Validator *check = validator_find();

	errors_hide_frames();
	if (check == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a schema needs extension " VALIDATOR_EXTENSION),
				 errdetail("The extension is not installed in this database, or does not have the function jsonb_matches_schema(json, jsonb)."),
				 errhint("Run CREATE EXTENSION " VALIDATOR_EXTENSION ", or register the topic without a schema.")));
	if (OidIsValid(check->is_valid) &&
		!DatumGetBool(OidFunctionCall1Coll(check->is_valid,
										   DEFAULT_COLLATION_OID, schema)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("schema is not a valid JSON Schema")));
	(void) validator_matches(check, schema, instance);
	PG_RETURN_VOID();
}

/*
 * The reasons may quote the payload, so they are sent to the client only.
 */
static void
topic_schema_raise(const Validator *check, const text *topic, Datum schema,
				   Jsonb *payload)
{
	char	   *reasons = validator_reasons(check, schema, payload);

	ereport(ERROR,
			(errcode(ERRCODE_CHECK_VIOLATION),
			 errmsg("payload does not match the schema of topic \"%s\"",
					text_to_cstring(topic)),
			 reasons == NULL ? 0 : errdetail("%s", reasons),
			 errdetail_log("The reason is shown to the client only."),
			 errhint("The view outbox_topics shows the schema.")));
}

void
topic_schema_check(FunctionCallInfo fcinfo)
{
	const text *topic;
	const Validator *check;
	Datum		schema;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return;
	topic = PG_GETARG_TEXT_PP(0);
	if (!topic_schema_exists(topic))
		return;
	schema = topic_schema_read(topic);
	if (schema == (Datum) 0)
		return;
	check = validator_find();
	if (check == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not check the schema of topic \"%s\"",
						text_to_cstring(topic)),
				 errdetail("Extension " VALIDATOR_EXTENSION " is not installed in this database, or does not have the function jsonb_matches_schema(json, jsonb)."),
				 errhint("Run CREATE EXTENSION " VALIDATOR_EXTENSION ", or register the topic again without a schema.")));
	if (!validator_matches(check, schema, PG_GETARG_DATUM(1)))
		topic_schema_raise(check, topic, schema, PG_GETARG_JSONB_P(1));
}
