/*
 * invalidation.h
 *		What is cached in a session has to be read again.
 */
#ifndef BASE_INVALIDATION_H
#define BASE_INVALIDATION_H

/* A relation has changed; InvalidOid: any of them may have. */
typedef void (*RelationChanged) (Oid relation);

/* Has a function called for each change, from now on; once per session. */
extern void invalidation_watch_relations(RelationChanged changed);

#endif							/* BASE_INVALIDATION_H */
