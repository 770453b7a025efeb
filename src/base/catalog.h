/*
 * catalog.h
 *		Where our own relations are.
 */
#ifndef BASE_CATALOG_H
#define BASE_CATALOG_H

/* In the order in which idem_outcome declares its labels. */
typedef enum IdemOutcome
{
	IDEM_CLAIMED,
	IDEM_IN_PROGRESS,
	IDEM_COMPLETED,
	IDEM_FAILED,
	IDEM_MISMATCH,
	IDEM_OUTCOMES
} IdemOutcome;

/* In the order in which stock_outcome declares its labels. */
typedef enum StockOutcome
{
	STOCK_RESERVED,
	STOCK_INSUFFICIENT,
	STOCK_UNKNOWN_SKU,
	STOCK_OUTCOMES
} StockOutcome;

/* In the order in which stock_settlement declares its labels. */
typedef enum StockSettlement
{
	STOCK_DONE,
	STOCK_EXPIRED,
	STOCK_ALREADY_CONFIRMED,
	STOCK_ALREADY_CANCELLED,
	STOCK_ALREADY_RESERVED,
	STOCK_FALLS_SHORT,
	STOCK_UNKNOWN,
	STOCK_SETTLEMENTS
} StockSettlement;

/* In the order in which stock_change declares its labels. */
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
	STOCK_CHANGES
} StockChange;

/* The schema of what is not for users. */
#define CATALOG_INTERNAL_SCHEMA "idempotency_internal"

/* The tables of a ring (ring.h), and the one that says which are live. */
#define CATALOG_RING_SIZE 3

typedef enum RingId
{
	RING_KEYS,					/* idem_key */
	RING_LOG,					/* outbox_log */
	RING_HISTORY,				/* stock_history */
	RINGS
} RingId;

typedef struct CatalogRing
{
	Oid			state;
	Oid			tables[CATALOG_RING_SIZE];
} CatalogRing;

/*
 * Of tables that triggers watch over, whatever the session_replication_role:
 * one where these are not as they were made (ENABLE ALWAYS), and how they are
 * there.
 */
typedef struct CatalogTriggers
{
	Oid			table;			/* InvalidOid: all are as they were made */
	char		state;			/* TRIGGER_DISABLED, if that is so of any */
	const char *missing;		/* name of one that is not there, or NULL */
} CatalogTriggers;

typedef struct Catalog
{
	Oid			extension;
	Oid			schema;			/* of what is public */
	Oid			internal;		/* the schema of the rest */
	Oid			owner;			/* of the extension */
	Oid			idem_token_seq;
	CatalogRing rings[RINGS];
	Oid			idem_outcome[IDEM_OUTCOMES];
	Oid			idem_answer;
	CatalogTriggers key_triggers;
	Oid			outbox_position_seq;
	Oid			stock_log;
	Oid			stock_log_id_seq;
	Oid			stock_hold;
	Oid			stock_item;
	CatalogTriggers stock_triggers;
	Oid			stock_outcome[STOCK_OUTCOMES];
	Oid			stock_settlement[STOCK_SETTLEMENTS];
	Oid			stock_change[STOCK_CHANGES];
	Oid			stock_reservation;
	Oid			stock_announce; /* functions */
	Oid			stock_announce_available;
} Catalog;

/*
 * The OIDs, looked up once per session and again after DDL.  Raises an error
 * if this database does not have the extension.  Take what is needed before
 * anything that could process an invalidation.
 */
extern const Catalog *catalog_get(void);

/* The schema that the extension is in, whatever state that is in, or none. */
extern Oid	catalog_schema(void);

/* As catalog_get, but NULL if this database does not have the extension. */
extern const Catalog *catalog_find(void);

#endif							/* BASE_CATALOG_H */
