/*
 * row.h
 *		Values of rows of the stock tables.  For the stock module only.
 */
#ifndef STOCK_ROW_H
#define STOCK_ROW_H

#include "datatype/timestamp.h"
#include "executor/tuptable.h"

/* Columns count from 0.  Each function raises an error on an invalid value. */

/* Returns any value but null. */
extern Datum row_value(TupleTableSlot *row, int column);

/* Returns a name: not empty and not too long; palloc'd. */
extern text *row_name(TupleTableSlot *row, int column);

/* Returns a quantity: positive, or not 0 if it may be negative. */
extern int64 row_quantity(TupleTableSlot *row, int column,
						  bool may_be_negative);

/* Returns the number of a line in its reservation. */
extern int	row_line(TupleTableSlot *row, int column);

/*
 * Returns how many lines the reservation had at the start, which must be more
 * than the number of this line; 0: not recorded.
 */
extern int	row_order(TupleTableSlot *row, int column, int line);

/* Raises the error for an invalid value; problem: "is null", for example. */
extern void row_raise(TupleTableSlot *row, int column, const char *problem);

/* Raises the error for an item whose sums are out of range of bigint. */
extern void row_raise_range(const text *sku);

#endif							/* STOCK_ROW_H */
