/*
 * catalog.h
 *		The OIDs of the extension's own objects.
 */
#ifndef BASE_CATALOG_H
#define BASE_CATALOG_H

/* In the order of the enum idem_outcome. */
typedef enum IdemOutcome
{
	IDEM_CLAIMED,
	IDEM_IN_PROGRESS,
	IDEM_COMPLETED,
	IDEM_FAILED,
	IDEM_MISMATCH,
	IDEM_OUTCOMES
} IdemOutcome;

/* In the order of the enum stock_outcome. */
typedef enum StockOutcome
{
	STOCK_RESERVED,
	STOCK_INSUFFICIENT,
	STOCK_UNKNOWN_SKU,
	STOCK_WAITING,
	STOCK_OUTCOMES
} StockOutcome;

/* In the order of the enum stock_settlement. */
typedef enum StockSettlement
{
	STOCK_DONE,
	STOCK_EXPIRED,
	STOCK_ALREADY_CONFIRMED,
	STOCK_ALREADY_CANCELLED,
	STOCK_ALREADY_RESERVED,
	STOCK_FALLS_SHORT,
	STOCK_UNKNOWN,
	STOCK_WAITS,
	STOCK_SETTLEMENTS
} StockSettlement;

/* In the order of the enum stock_change. */
typedef enum StockChange
{
	STOCK_RECEIVE,
	STOCK_ADJUST,
	STOCK_RESERVE,
	STOCK_CANCEL,
	STOCK_EXPIRE,
	STOCK_CONFIRM,
	STOCK_REINSTATE,
	STOCK_TRANSFER,
	STOCK_BACKORDER,
	STOCK_CHANGES
} StockChange;

/* The schema of everything that is not public. */
#define CATALOG_INTERNAL_SCHEMA "idempotency_internal"

/* The number of tables in a ring (ring.h). */
#define CATALOG_RING_SIZE 3

/* The number of tables of stock that external DML may write to. */
#define CATALOG_GUARDED (4 + CATALOG_RING_SIZE)

typedef enum RingId
{
	RING_KEYS,					/* idem_key */
	RING_LOG,					/* outbox_log */
	RING_HISTORY,				/* stock_history */
	RING_ATTEMPTS,				/* outbox_history */
	RINGS
} RingId;

/* A ring's state table, which says which tables are live, and its tables. */
typedef struct CatalogRing
{
	Oid			state;
	Oid			tables[CATALOG_RING_SIZE];
} CatalogRing;

/*
 * Whether the triggers of a group of tables are as we created them: present
 * and ENABLE ALWAYS, so that they fire in every session_replication_role.
 */
typedef struct CatalogTriggers
{
	Oid			table;			/* one with a wrong trigger, or InvalidOid */
	char		state;			/* TRIGGER_DISABLED if any is disabled */
	const char *missing;		/* name of a missing trigger, or NULL */
} CatalogTriggers;

typedef struct Catalog
{
	Oid			extension;
	Oid			schema;			/* of public objects */
	Oid			internal;		/* of all other objects */
	Oid			owner;			/* of the extension */
	Oid			restoring;		/* a function; 1.0.0 does not have it */
	Oid			idem_token_seq;
	CatalogRing rings[RINGS];
	Oid			idem_outcome[IDEM_OUTCOMES];
	Oid			idem_answer;
	Oid			idem_fence;
	CatalogTriggers key_triggers;
	Oid			outbox_position_seq;
	Oid			outbox_cancelled;
	Oid			outbox_cancel;	/* a function */
	Oid			outbox_registered_topic;
	Oid			stock_log;
	Oid			stock_log_id_seq;
	Oid			stock_hold;
	Oid			stock_item;
	Oid			stock_queue;
	Oid			stock_in_doubt;
	Oid			guarded[CATALOG_GUARDED];	/* by stock_guard; the last are
											 * history */
	CatalogTriggers stock_triggers;
	Oid			stock_outcome[STOCK_OUTCOMES];
	Oid			stock_settlement[STOCK_SETTLEMENTS];
	Oid			stock_change[STOCK_CHANGES];
	Oid			stock_reservation;
	Oid			stock_announce; /* functions */
	Oid			stock_announce_available;
	Oid			stock_announce_served;
} Catalog;

/*
 * Returns the OIDs, which are looked up once per session and again after DDL.
 * Raises an error if this database does not have the extension.  Any
 * invalidation message may change the result: copy the fields you need before
 * you open or lock a relation.
 */
extern const Catalog *catalog_get(void);

/*
 * Finds an internal function.  InvalidOid: there is none, perhaps since the
 * objects are of an older version.
 */
extern Oid	catalog_internal_function(const char *name, const Oid *types,
									  int count);

/*
 * The schema of the extension's public objects, or InvalidOid if the extension
 * is not installed.  Works even if objects of the extension are missing.
 */
extern Oid	catalog_schema(void);

/* As catalog_get, but NULL if this database does not have the extension. */
extern const Catalog *catalog_find(void);

#endif							/* BASE_CATALOG_H */
