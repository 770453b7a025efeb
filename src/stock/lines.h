/*
 * lines.h
 *		What callers name: items, lines of an order, reservations.  Within the
 *		stock module.
 */
#ifndef STOCK_LINES_H
#define STOCK_LINES_H

#include "datatype/timestamp.h"
#include "fmgr.h"

typedef struct StockLine
{
	int			number;			/* within its reservation, from 0 */
	int			entry;			/* stock_xact_touch sets it; 0: it has not yet */
	text	   *sku;
	int64		quantity;
} StockLine;

typedef struct StockLines
{
	int			count;
	StockLine  *line;
	int			order;			/* how many the reservation had at first; 0: not known */
} StockLines;

/* A name: there, not empty, not too long, and fit for an event. */
extern text *lines_name_arg(FunctionCallInfo fcinfo, int arg, const char *name);

/* An actor; null: the user of the session. */
extern text *lines_actor_arg(FunctionCallInfo fcinfo, int arg);

/* A note: may be null or empty, but is not too long. */
extern text *lines_note_arg(FunctionCallInfo fcinfo, int arg);

/* A sku with a quantity, which is positive. */
extern StockLines lines_single_arg(FunctionCallInfo fcinfo, int sku_arg,
								   const char *sku_name,
								   int quantity_arg);

/*
 * A jsonb, {"sku": quantity, ...} or [{"sku": ..., "quantity": ...}, ...]: each sku
 * once with the sum of its quantities, in order.
 */
extern StockLines lines_arg(FunctionCallInfo fcinfo, int arg);

/* A text[] of skus; count 0: it is null, which means all. */
extern StockLines lines_skus_arg(FunctionCallInfo fcinfo, int arg);

/* The line of a sku, or NULL. */
extern const StockLine *lines_find(const StockLines *lines, const text *sku);

/* When a reservation made, or extended, at a time expires. */
extern TimestampTz lines_expiry(FunctionCallInfo fcinfo, int ttl_arg,
								TimestampTz from);

#endif							/* STOCK_LINES_H */
