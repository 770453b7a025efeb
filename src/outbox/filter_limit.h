/*
 * filter_limit.h
 *		The limits of an evaluation of a filter.
 */
#ifndef OUTBOX_FILTER_LIMIT_H
#define OUTBOX_FILTER_LIMIT_H

#include "utils/jsonpath.h"

/*
 * Calls evaluate(arg), which evaluates the filter and allocates in the memory
 * context, within the limits.  Beyond them, an error is raised; it is not
 * ERRCODE_QUERY_CANCELED, which is only raised if somebody else wants it.
 */
extern void filter_limit_call(MemoryContext context, JsonPath *filter,
							  void (*evaluate) (void *arg), void *arg);

/* The CPU time of this process. */
extern int64 filter_limit_cpu_us(void);

#endif							/* OUTBOX_FILTER_LIMIT_H */
