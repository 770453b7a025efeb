/*
 * settings.h
 *		The idempotency.* settings; settings.c has their units and limits.
 */
#ifndef BASE_SETTINGS_H
#define BASE_SETTINGS_H

#include "datatype/timestamp.h"
#include "utils/guc.h"

/* A relay keeps several copies of a payload, each of less than 1 GB. */
#define SETTINGS_OUTBOX_PAYLOAD_MAX_MB 256

/*
 * Limits of the settings, and of the parameters that override them.  A longer
 * time is usually a mistake: a number of milliseconds or nanoseconds, which
 * PostgreSQL reads as seconds.
 */
#define SETTINGS_TTL_MAX_S (3653 * SECS_PER_DAY)
#define SETTINGS_LEASE_MAX_S (366 * SECS_PER_DAY)
#define SETTINGS_RESERVATION_TTL_MAX_S (366 * SECS_PER_DAY)

/* Topics that begin with this are for events of the extension itself. */
#define SETTINGS_TOPIC_RESERVED "outbox."

extern int	settings_ttl_s;
extern int	settings_lease_s;
extern int	settings_sweep_interval_ms;
extern int	settings_outbox_payload_max_mb;
extern int	settings_relays;
extern int	settings_reservation_ttl_s;
extern int	settings_reservation_ttl_max_s;
extern int	settings_stock_items;
extern int	settings_stock_names_memory_kb;
extern int	settings_stock_compact_after;
extern int	settings_stock_history_s;
extern int	settings_stock_wait_ttl_s;
extern int	settings_stock_wait_ttl_max_s;
extern int	settings_stock_queue_max;
extern bool settings_stock_events;
extern bool settings_outbox_events;
extern bool settings_writes;
extern char *settings_databases;
extern char *settings_webhook_allowed_networks;
extern char *settings_webhook_credentials_directory;
extern bool settings_webhook_require_https;

/*
 * Defines all settings; called once by _PG_init.  check_networks is the check
 * hook of idempotency.webhook_allowed_networks.
 */
extern void settings_define(GucStringCheckHook check_networks);

/*
 * Raises an error unless a function that writes may be called: not during
 * recovery, in a read-only transaction, or if idempotency.writes is off.
 */
extern void settings_prevent_write(const char *function);

/* Does idempotency.webhook_allowed_ports allow this port?  0: any port. */
extern bool settings_port_allowed(int port);

/* Does idempotency.databases include this database? */
extern bool settings_database_wanted(const char *name);

#endif							/* BASE_SETTINGS_H */
