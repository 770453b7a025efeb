/*
 * members.h
 *		Which objects of this database belong to the extension.
 */
#ifndef BASE_MEMBERS_H
#define BASE_MEMBERS_H

/*
 * The extension of this database, or InvalidOid.  Looked up once per session,
 * and again when its internal schema, or without the extension any schema, was
 * created, changed or dropped.
 */
extern Oid	members_extension(void);

/*
 * Does this object of a catalog ("class") belong to the extension?  That is
 * also true of the schema of its public objects, and of the relation that has
 * the columns of one of its composite types.  Reads no catalog if the database
 * does not have the extension, or if this session has asked before.
 */
extern bool members_include(Oid class, Oid object);

/* Makes all sessions look again when the transaction has committed. */
extern void members_announce_change(void);

#endif							/* BASE_MEMBERS_H */
