/*
 * ring.h
 *		A ring of tables, so that old rows go by truncating a table.
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
 * Keeps the map from changing and returns it.  Nobody may wait for a
 * transaction that has written a row until ring_unlock.
 */
extern RingMap ring_lock(RingId id);
extern void ring_unlock(RingId id);

#endif							/* BASE_RING_H */
