/*
 * stats.h
 *		What is counted of claims.  Within the claim module.
 */
#ifndef CLAIM_STATS_H
#define CLAIM_STATS_H

#include "base/catalog.h"

extern void stats_count_claim(IdemOutcome outcome, bool taken_over);

#endif							/* CLAIM_STATS_H */
