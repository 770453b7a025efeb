/*
 * stats.h
 *		Claim statistics.  For the claim module only.
 */
#ifndef CLAIM_STATS_H
#define CLAIM_STATS_H

#include "base/catalog.h"

/* Counts an answer to a claim. */
extern void stats_count_claim(IdemOutcome outcome, bool taken_over);

#endif							/* CLAIM_STATS_H */
