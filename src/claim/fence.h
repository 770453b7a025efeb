/*
 * fence.h
 *		Scopes that have moved to another database.  For the claim module only.
 */
#ifndef CLAIM_FENCE_H
#define CLAIM_FENCE_H

#include "claim/key.h"

/* Raises an error if the scope has a fence.  Called with the ring locked. */
extern void fence_check(const text *scope);

/* Raises an error unless the scope has a fence that other sessions see. */
extern void fence_require_committed(const text *scope);

#endif							/* CLAIM_FENCE_H */
