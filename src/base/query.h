/*
 * query.h
 *		Saved queries on our own tables, for workers and other cold paths.
 */
#ifndef BASE_QUERY_H
#define BASE_QUERY_H

#include "executor/spi.h"

#define QUERY_ARGS_MAX 12

/*
 * A query that is planned once per session.  It names objects of the schema
 * idempotency_internal only.  Initialize the first two fields only.
 */
typedef struct SavedQuery
{
	const char *sql;
	Oid			types[QUERY_ARGS_MAX];	/* up to the first InvalidOid */
	SPIPlanPtr	plan;
} SavedQuery;

/*
 * Runs a query inside SPI_connect; nulls as SPI_execute_plan has it, NULL for
 * none.  With read_only it sees the active snapshot and nothing newer.
 * Returns the number of rows, which are in SPI_tuptable.
 */
extern uint64 query_run(SavedQuery *query, Datum *values, const char *nulls,
						bool read_only);

/*
 * Opens a cursor on a query instead, and fetches its next row; false: there is
 * none.  SPI_cursor_close ends it.
 */
extern Portal query_open(SavedQuery *query, Datum *values, bool read_only);
extern bool query_fetch(Portal cursor);

/* An array of elements of eight bytes, of type xid8 or bigint. */
extern Datum query_array8(Datum *elements, int count, Oid type);

/*
 * A column, 1-based, of a row, 0-based; text is copied into the current memory
 * context, NULL for null.
 */
extern int64 query_int64(uint64 row, int column);
extern char *query_text(uint64 row, int column);
extern Datum query_datum(uint64 row, int column, bool *isnull);

#endif							/* BASE_QUERY_H */
