/*
 * filter.h
 *		Filters of subscriptions: jsonpath predicates on payloads.
 */
#ifndef OUTBOX_FILTER_H
#define OUTBOX_FILTER_H

#include "utils/jsonb.h"
#include "utils/jsonpath.h"

/* Events that topics let pass, but filters do not. */
typedef struct FilterCounts
{
	int64		filtered;
	int64		errors;			/* of these, by a result that is not false */
	int64		cpu_us;			/* CPU time, also of events that pass */
} FilterCounts;

/*
 * Does a filter let an event pass?  Counts it otherwise.  Must be called in a
 * transaction.
 */
extern bool filter_passes(JsonPath *filter, Jsonb *payload,
						  FilterCounts *counts);

#endif							/* OUTBOX_FILTER_H */
