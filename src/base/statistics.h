/*
 * statistics.h
 *		The counters of a database in shared memory, for SQL.
 */
#ifndef BASE_STATISTICS_H
#define BASE_STATISTICS_H

#include "fmgr.h"

#include "base/shared.h"

/*
 * Makes the row of a function: since when counters count, and the counters from
 * first to last.  All columns are null if nothing is counted.
 */
extern Datum statistics_row(FunctionCallInfo fcinfo, SharedCounter first,
							SharedCounter last);

#endif							/* BASE_STATISTICS_H */
