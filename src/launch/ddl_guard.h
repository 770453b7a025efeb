/*
 * ddl_guard.h
 *		Refuses DDL on our objects that would let other roles run code in our
 *		workers, and triggers on our tables.
 */
#ifndef LAUNCH_DDL_GUARD_H
#define LAUNCH_DDL_GUARD_H

#include "access/htup.h"
#include "catalog/objectaccess.h"

/* Called when any object was created or altered, or is being dropped. */
extern void ddl_guard_check(ObjectAccessType access, Oid class, Oid object,
							int sub_object);

/*
 * Returns a row of a catalog as this command has just written it, or NULL.
 */
extern HeapTuple ddl_guard_new_row(Oid class, Oid index, AttrNumber oid_column,
								   Oid object);

#endif							/* LAUNCH_DDL_GUARD_H */
