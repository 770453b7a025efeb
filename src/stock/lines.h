/*
 * lines.h
 *		Arguments of the stock functions: items, lines of an order,
 *		reservations.  For the stock module only.
 */
#ifndef STOCK_LINES_H
#define STOCK_LINES_H

#include "datatype/timestamp.h"
#include "fmgr.h"

typedef struct StockLine
{
	int			number;			/* within its reservation, from 0 */
	int			entry;			/* set by stock_xact_touch; 0: not yet */
	text	   *sku;
	int64		quantity;
	bool		waits;			/* for its item; nothing is reserved */
	/* How the line was opened; 0: the log has a row for it, or will have. */
	int64		opened_id;
	TimestampTz opened_at;
	const text *opened_by;
} StockLine;

typedef struct StockLines
{
	int			count;
	StockLine  *line;
	int			order;			/* lines at the start; 0: not known */
} StockLines;

/* Reads a name: not null, not empty, not too long, convertible to UTF-8. */
extern text *lines_name_arg(FunctionCallInfo fcinfo, int arg, const char *name);

/* Reads an actor; null means the session user. */
extern text *lines_actor_arg(FunctionCallInfo fcinfo, int arg);

/* Reads a note, which may be null or empty but not too long. */
extern text *lines_note_arg(FunctionCallInfo fcinfo, int arg);

/* Reads a sku and a quantity, which must be positive. */
extern StockLines lines_single_arg(FunctionCallInfo fcinfo, int sku_arg,
								   const char *sku_name,
								   int quantity_arg);

/*
 * Reads a jsonb, {"sku": quantity, ...} or [{"sku": ..., "quantity": ...},
 * ...].  The result has each sku once, with the sum of its quantities, sorted.
 */
extern StockLines lines_arg(FunctionCallInfo fcinfo, int arg);

/* Reads a text[] of skus; count 0: it is null, which means all. */
extern StockLines lines_skus_arg(FunctionCallInfo fcinfo, int arg);

/* Are these the same skus with the same quantities, in the same order? */
extern bool lines_are_same(const StockLines *a, const StockLines *b);

/* Are they in the order of their skus?  For assertions. */
extern bool lines_are_sorted(const StockLines *lines);

/* Finds the line of a sku, or NULL; the lines are sorted. */
extern const StockLine *lines_find(const StockLines *lines, const text *sku);

/* The quantity of a sku; 0: it has no line. */
extern int64 lines_quantity(const StockLines *lines, const text *sku);

/* Returns when a reservation expires that is made or extended at "from". */
extern TimestampTz lines_expiry(FunctionCallInfo fcinfo, int ttl_arg,
								TimestampTz from);

/* Returns when a reservation stops waiting that begins to wait at "from". */
extern TimestampTz lines_wait_end(FunctionCallInfo fcinfo, int wait_ttl_arg,
								  TimestampTz from);

#endif							/* STOCK_LINES_H */
