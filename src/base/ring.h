/*
 * ring.h
 *		A ring of tables whose rows expire by truncating a table.
 */
#ifndef BASE_RING_H
#define BASE_RING_H

#include "storage/lockdefs.h"

#include "base/catalog.h"

#define RING_SIZE CATALOG_RING_SIZE

/* The live tables of a ring, newest first: the first is the current one. */
typedef struct RingMap
{
	int			live;
	Oid			tables[RING_SIZE];
} RingMap;

/*
 * ring_lock returns the map and keeps it from changing until ring_unlock.
 * Callers must not wait for another transaction in between.
 */
extern RingMap ring_lock(RingId id);
extern void ring_unlock(RingId id);

#endif							/* BASE_RING_H */
