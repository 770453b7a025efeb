/*
 * settings.c
 *		Defines every idempotency.* setting; no other file does.
 *
 * Durations that a call can override (ttl, lease, reservation_ttl) can be set
 * by any user.  Settings of the workers and the network can only be set in the
 * configuration file and take effect on reload.
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/errors.h"
#include "base/settings.h"
#include "base/shared.h"

#define SETTINGS_TOPIC_MAX 255	/* bytes; the limit of outbox_enqueue */
#define SETTINGS_BLANKS " \t\r\n"

int			settings_ttl_s = 24 * 60 * 60;
int			settings_lease_s = 40;
int			settings_sweep_interval_ms = 1000;
char	   *settings_databases = NULL;
char	   *settings_webhook_allowed_networks = NULL;
char	   *settings_webhook_credentials_directory = NULL;
bool		settings_webhook_require_https = false;

int			settings_outbox_payload_max_mb = 16;
int			settings_relays = 1;

int			settings_reservation_ttl_s = 15 * 60;
int			settings_reservation_ttl_max_s = 31 * 24 * 60 * 60;
int			settings_stock_items = 16384;
int			settings_stock_names_memory_kb = 16 * 1024;
int			settings_stock_compact_after = 1000;
int			settings_stock_history_s = 7 * 24 * 60 * 60;
int			settings_stock_wait_ttl_s = 24 * 60 * 60;
int			settings_stock_wait_ttl_max_s = 31 * 24 * 60 * 60;
int			settings_stock_queue_max = 10000;
bool		settings_stock_events = false;
bool		settings_outbox_events = false;
bool		settings_writes = true;

PG_FUNCTION_INFO_V1(idempotency_prevent_write);

/* SQL functions read these by current_setting. */
static char *stock_archive_topic = NULL;
static int	keys_max_size_mb = -1;
static int	outbox_retention_s = 24 * 60 * 60;
static int	outbox_keep_size_mb = -1;
static int	outbox_dead_retention_s = 30 * 24 * 60 * 60;
static int	audit_retention_s = 366 * 24 * 60 * 60;
static char *webhook_allowed_ports = NULL;

/*
 * When the server starts, a refused value would be replaced by the default,
 * which is all databases.  A clone that must not send events should not start
 * then.
 */
static bool
settings_check_databases(char **newval, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*newval);
	List	   *names;
	bool		ok = SplitIdentifierString(copy, ',', &names);

	if (!ok && process_shared_preload_libraries_in_progress)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						"idempotency.databases", *newval),
				 errdetail("The list of database names has a syntax error.")));
	if (!ok)
		GUC_check_errdetail("The list of database names has a syntax error.");
	list_free(names);
	pfree(copy);
	return ok;
}

static bool
settings_check_topic(char **newval, void **extra, GucSource source)
{
	if (strlen(*newval) > SETTINGS_TOPIC_MAX)
	{
		GUC_check_errdetail("A topic has at most %d bytes.", SETTINGS_TOPIC_MAX);
		return false;
	}
	if (strncmp(*newval, SETTINGS_TOPIC_RESERVED,
				strlen(SETTINGS_TOPIC_RESERVED)) == 0)
	{
		GUC_check_errdetail("Topics that begin with \"%s\" are reserved.",
							SETTINGS_TOPIC_RESERVED);
		return false;
	}
	return true;
}

/* A relative name would depend on the directory of the process. */
static bool
settings_check_directory(char **newval, void **extra, GucSource source)
{
	if ((*newval)[0] == '\0' || is_absolute_path(*newval))
		return true;
	GUC_check_errdetail("The name of the directory must be absolute.");
	return false;
}

/*
 * Reads the next port of a list, and moves *list behind it.  Returns 0 at its
 * end, and -1 if there is something else.
 */
static int
settings_next_port(const char **list)
{
	const char *from = *list + strspn(*list, SETTINGS_BLANKS);
	size_t		digits = strspn(from, "0123456789");
	const char *behind = from + digits + strspn(from + digits, SETTINGS_BLANKS);
	long		port = digits <= 5 ? strtol(from, NULL, 10) : 0;

	*list = *behind == ',' ? behind + 1 : behind;
	if (digits == 0 && *behind == '\0')
		return 0;
	if ((*behind != ',' && *behind != '\0') || port < 1 || port > 65535)
		return -1;
	return (int) port;
}

static bool
settings_check_ports(char **newval, void **extra, GucSource source)
{
	const char *list = *newval;
	int			port;

	while ((port = settings_next_port(&list)) > 0)
		;
	if (port < 0)
		GUC_check_errdetail("A port is a number from 1 to 65535.");
	return port == 0;
}

bool
settings_port_allowed(int port)
{
	const char *list = webhook_allowed_ports;
	bool		any = true;
	int			listed;

	while ((listed = settings_next_port(&list)) > 0)
	{
		if (listed == port)
			return true;
		any = false;
	}
	return any;
}

static void
settings_define_durations(void)
{
	DefineCustomIntVariable("idempotency.ttl",
							"How long a finished key is remembered.",
							NULL, &settings_ttl_s,
							24 * 60 * 60, 1, SETTINGS_TTL_MAX_S,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.lease",
							"What idem_renew extends a lease by when it is not told.",
							NULL, &settings_lease_s,
							40, 1, SETTINGS_LEASE_MAX_S,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.reservation_ttl",
							"How long a reservation of stock waits to be confirmed.",
							NULL, &settings_reservation_ttl_s,
							15 * 60, 1, SETTINGS_RESERVATION_TTL_MAX_S,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.reservation_ttl_max",
							"The longest that a reservation of stock may wait to be confirmed.",
							NULL, &settings_reservation_ttl_max_s,
							31 * 24 * 60 * 60, 1,
							SETTINGS_RESERVATION_TTL_MAX_S,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.sweep_interval",
							"How often the sweeper looks for what has expired.",
							NULL, &settings_sweep_interval_ms,
							1000, 10, 60 * 60 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}

static void
settings_define_outbox(void)
{
	DefineCustomIntVariable("idempotency.relays",
							"How many relays a database has.",
							"They share out the partitions of its subscriptions.",
							&settings_relays,
							1, 1, SHARED_RELAYS_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.outbox_retention",
							"How long events stay in the log at least, to be read again.",
							NULL, &outbox_retention_s,
							24 * 60 * 60, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.keys_max_size",
							"The most that the keys may take before the oldest that are finished are forgotten.",
							"-1 means no limit.", &keys_max_size_mb,
							-1, -1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.outbox_keep_size",
							"The most that the log may take before subscriptions lose what they have not read.",
							"-1 means no limit.", &outbox_keep_size_mb,
							-1, -1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.outbox_dead_retention",
							"How long dead letters are kept.",
							"-1 means for good.", &outbox_dead_retention_s,
							30 * 24 * 60 * 60, -1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.outbox_payload_max",
							"The largest payload of an event, as jsonb and as text.",
							NULL, &settings_outbox_payload_max_mb,
							16, 1, SETTINGS_OUTBOX_PAYLOAD_MAX_MB,
							PGC_SUSET, GUC_UNIT_MB, NULL, NULL, NULL);
}

/*
 * idempotency.stock_items and stock_names_memory set the size of shared memory,
 * so they cannot change after the start.  Without preloading there is no shared
 * memory, and they have no effect.
 */
static void
settings_define_stock(void)
{
	DefineCustomIntVariable("idempotency.stock_items",
							"How many items of stock can have a counter in shared memory at the same time.",
							"Each takes about 400 bytes of shared memory.",
							&settings_stock_items,
							16384, 16, 10 * 1000 * 1000,
							process_shared_preload_libraries_in_progress ?
							PGC_POSTMASTER : PGC_SIGHUP,
							0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.stock_names_memory",
							"How much shared memory the filter takes that knows which names of reservations are new.",
							"It needs 2 bytes for each name that is remembered.",
							&settings_stock_names_memory_kb,
							16 * 1024, 8, 2 * 1024 * 1024,
							process_shared_preload_libraries_in_progress ?
							PGC_POSTMASTER : PGC_SIGHUP,
							GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.stock_compact_after",
							"How many rows an item's log may have before they are added up in its root record.",
							NULL, &settings_stock_compact_after,
							1000, 1, INT_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.stock_history",
							"How long compacted rows are kept, and with them the names of closed reservations.",
							NULL, &settings_stock_history_s,
							7 * 24 * 60 * 60, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.stock_archive_topic",
							   "Topic of the outbox that compacted rows go to.",
							   "An empty one means none.",
							   &stock_archive_topic,
							   "", PGC_SIGHUP, 0,
							   settings_check_topic, NULL, NULL);
	DefineCustomIntVariable("idempotency.stock_wait_ttl",
							"How long a reservation of stock waits in the queue of its item.",
							NULL, &settings_stock_wait_ttl_s,
							24 * 60 * 60, 1, SETTINGS_RESERVATION_TTL_MAX_S,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.stock_wait_ttl_max",
							"The longest that a reservation of stock may wait in the queue of its item.",
							NULL, &settings_stock_wait_ttl_max_s,
							31 * 24 * 60 * 60, 1,
							SETTINGS_RESERVATION_TTL_MAX_S,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.stock_queue_max",
							"How many reservations may wait in the queue of an item.",
							NULL, &settings_stock_queue_max,
							10000, 0, 1000 * 1000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idempotency.stock_events",
							 "Announces changes of stock in the outbox.",
							 NULL, &settings_stock_events,
							 false, PGC_SUSET, 0, NULL, NULL, NULL);
}

static void
settings_define_events(void)
{
	DefineCustomBoolVariable("idempotency.outbox_events",
							 "Announces dead letters, and subscriptions that fail or are disabled, in the outbox.",
							 NULL, &settings_outbox_events,
							 false, PGC_SUSET, 0, NULL, NULL, NULL);
}

/*
 * SQL: idempotency_prevent_write(function), settings_prevent_write for SQL
 * functions.
 */
Datum
idempotency_prevent_write(PG_FUNCTION_ARGS)
{
	errors_hide_frames();
	settings_prevent_write(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

void
settings_prevent_write(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	if (!settings_writes)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot execute %s while idempotency.writes is off", function),
				 errhint("Call it on the node that has the data it belongs to.")));
}

void
settings_define(GucStringCheckHook check_networks)
{
	DefineCustomBoolVariable("idempotency.writes",
							 "Whether functions that write can be called.",
							 "Off on a node of a cluster that has no data of its own, such as a coordinator.",
							 &settings_writes,
							 true, PGC_SUSET, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.audit_retention",
							"How long administrative calls are remembered.",
							"-1 means for good.", &audit_retention_s,
							366 * 24 * 60 * 60, -1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	settings_define_durations();
	settings_define_outbox();
	settings_define_stock();
	settings_define_events();
	DefineCustomStringVariable("idempotency.databases",
							   "Databases that get workers.",
							   "An empty list means every database that has the extension.",
							   &settings_databases,
							   "", PGC_SIGHUP, GUC_LIST_INPUT,
							   settings_check_databases, NULL, NULL);
	DefineCustomStringVariable("idempotency.webhook_allowed_networks",
							   "Networks that webhooks may reach though they are private.",
							   "A list such as '10.0.0.0/8, 127.0.0.1'; public addresses are always allowed.",
							   &settings_webhook_allowed_networks,
							   "", PGC_SIGHUP, 0,
							   check_networks, NULL, NULL);
	DefineCustomBoolVariable("idempotency.webhook_require_https",
							 "Whether webhooks are sent by https only.",
							 NULL, &settings_webhook_require_https,
							 false, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.webhook_allowed_ports",
							   "Ports that webhooks may be sent to.",
							   "A list such as '443, 8443'; an empty one means any port.",
							   &webhook_allowed_ports,
							   "", PGC_SUSET, 0,
							   settings_check_ports, NULL, NULL);
	DefineCustomStringVariable("idempotency.webhook_credentials_directory",
							   "Directory with the tokens and client certificates for receivers of webhooks.",
							   "An empty name means that there are none.",
							   &settings_webhook_credentials_directory,
							   "", PGC_SIGHUP, 0,
							   settings_check_directory, NULL, NULL);
	MarkGUCPrefixReserved("idempotency");
}

bool
settings_database_wanted(const char *name)
{
	char	   *copy = pstrdup(settings_databases);
	List	   *names;
	ListCell   *cell;
	bool		wanted;

	if (!SplitIdentifierString(copy, ',', &names))
		elog(ERROR, "invalid list of databases in idempotency.databases");
	wanted = names == NIL;
	foreach(cell, names)
	{
		if (strcmp(lfirst(cell), name) == 0)
			wanted = true;
	}
	list_free(names);
	pfree(copy);
	return wanted;
}
