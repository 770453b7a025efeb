/*
 * query.h
 *		Saved SPI queries on our own tables, for workers and other code that
 *		is not performance-critical.
 */
#ifndef BASE_QUERY_H
#define BASE_QUERY_H

#include "executor/spi.h"

#define QUERY_ARGS_MAX 16

/*
 * A query that is planned once per session.  It must qualify the name of each
 * of our objects with idempotency_internal.  Initialize sql and types only.
 */
typedef struct SavedQuery
{
	const char *sql;
	Oid			types[QUERY_ARGS_MAX];	/* up to the first InvalidOid */
	SPIPlanPtr	plan;
} SavedQuery;

/*
 * Runs a query; the caller has called SPI_connect.  nulls is as for
 * SPI_execute_plan; NULL means that no value is null.  With read_only the query
 * uses the active snapshot.  Returns the number of rows, which are in
 * SPI_tuptable.
 */
extern uint64 query_run(SavedQuery *query, Datum *values, const char *nulls,
						bool read_only);

/*
 * The same without lock_timeout, for a query that waits for no row, but perhaps
 * for a moment for a lock on a whole table.
 */
extern uint64 query_run_patiently(SavedQuery *query, Datum *values,
								  const char *nulls);

/*
 * Opens a cursor on a query and fetches its next rows, at most so many; 0:
 * there are none.  Close it with SPI_cursor_close.
 */
extern Portal query_open(SavedQuery *query, Datum *values, bool read_only);
extern uint64 query_fetch(Portal cursor, int most);

/* Makes an array of 8-byte elements, of type xid8 or bigint. */
extern Datum query_array8(Datum *elements, int count, Oid type);

/* Makes an array of bigint. */
extern Datum query_int64_array(const int64 *values, int count);

/*
 * Return a column of a row of SPI_tuptable; columns count from 1, rows from 0.
 * A null is 0 for query_int64 and NULL for query_text, which returns a copy in
 * the current memory context.  query_text_column is the same, and faster, for a
 * column of type text.
 */
extern int64 query_int64(uint64 row, int column);
extern char *query_text(uint64 row, int column);
extern char *query_text_column(uint64 row, int column);
extern Datum query_datum(uint64 row, int column, bool *isnull);

/*
 * Returns the elements of a column of type bigint[] or xid8[], and their
 * number; NULL if the array or one of its elements is null.
 */
extern int64 *query_int64_elements(uint64 row, int column, int *count);

#endif							/* BASE_QUERY_H */
