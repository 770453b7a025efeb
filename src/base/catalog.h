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

/* The tables of a ring (ring.h), and the one that says which of them are live. */
#define CATALOG_RING_SIZE 3

typedef enum RingId
{
	RING_KEYS,					/* idem_key */
	RING_LOG,					/* outbox_log */
	RINGS
} RingId;

typedef struct CatalogRing
{
	Oid			state;
	Oid			tables[CATALOG_RING_SIZE];
} CatalogRing;

typedef struct Catalog
{
	Oid			extension;
	Oid			schema;
	char		schema_name[NAMEDATALEN * 2 + 3];	/* quoted if need be */
	Oid			idem_token_seq;
	CatalogRing rings[RINGS];
	Oid			idem_outcome[IDEM_OUTCOMES];
	Oid			idem_answer;
	Oid			outbox_position_seq;
} Catalog;

/*
 * The OIDs, looked up once per session and again after DDL.  Raises an error
 * if this database does not have the extension.  Take what is needed before
 * anything that could process an invalidation.
 */
extern const Catalog *catalog_get(void);

/* As catalog_get, but NULL if this database does not have the extension. */
extern const Catalog *catalog_find(void);

#endif							/* BASE_CATALOG_H */
