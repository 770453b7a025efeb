/*
 * retire.h
 *		Has all in an old segment of keys expired?  For the claim module only.
 */
#ifndef CLAIM_RETIRE_H
#define CLAIM_RETIRE_H

#include "postgres_ext.h"

/* Pages of a segment that a step of the sweeper reads at most. */
#define RETIRE_PAGES 256

/*
 * Has this session begun to find out whether a segment can be retired, with
 * its finished keys or without them?
 */
extern bool retire_has_begun(int slot, Oid table, bool evict);

#endif							/* CLAIM_RETIRE_H */
