/*
 * row.h
 *		Values of rows of the tables of stock.  Within the stock module.
 */
#ifndef STOCK_ROW_H
#define STOCK_ROW_H

#include "datatype/timestamp.h"
#include "executor/tuptable.h"

/* Columns are counted from 0.  Each raises an error if the value cannot be. */

/* Any value but null. */
extern Datum row_value(TupleTableSlot *row, int column);

/* A name: not empty and not too long; palloc'd. */
extern text *row_name(TupleTableSlot *row, int column);

/* A quantity: positive, or if it may be negative, any but 0. */
extern int64 row_quantity(TupleTableSlot *row, int column,
						  bool may_be_negative);

/* The number of a line in its reservation. */
extern int	row_line(TupleTableSlot *row, int column);

/*
 * How many lines the reservation had that has a line of this number; 0: that
 * was not written down.
 */
extern int	row_order(TupleTableSlot *row, int column, int line);

/* Says that the value cannot be: "is null", say. */
extern void row_raise(TupleTableSlot *row, int column, const char *problem);

/* Says that the rows of an item add up to more than a bigint. */
extern void row_raise_range(const text *sku);

#endif							/* STOCK_ROW_H */
