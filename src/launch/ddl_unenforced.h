/*
 * ddl_unenforced.h
 *		Refuses what would not be enforced on tables that our C code writes to.
 */
#ifndef LAUNCH_DDL_UNENFORCED_H
#define LAUNCH_DDL_UNENFORCED_H

#include "catalog/objectaccess.h"
#include "nodes/parsenodes.h"

/* Called when any object was created or altered. */
extern void unenforced_check(ObjectAccessType access, Oid class, Oid object,
							 int sub_object);

/* Called before any ALTER TABLE, for what calls no hook on objects. */
extern void unenforced_before_alter(const AlterTableStmt *statement);

/* Called before any CREATE TABLE. */
extern void unenforced_before_create(const CreateStmt *statement);

#endif							/* LAUNCH_DDL_UNENFORCED_H */
