/*
 * ledger.h
 *		Rows of the log.  For the stock module only.
 */
#ifndef STOCK_LEDGER_H
#define STOCK_LEDGER_H

#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "base/catalog.h"
#include "stock/lines.h"

/* The columns of stock_log and stock_history_*, counted from 0. */
enum
{
	LOG_ATT_ID,
	LOG_ATT_QUANTITY,
	LOG_ATT_AT,
	LOG_ATT_CHANGE,
	LOG_ATT_LINE,
	LOG_ATT_SKU,
	LOG_ATT_RESERVATION,
	LOG_ATT_ACTOR,
	LOG_ATT_NOTE,
	LOG_ATT_LINES,
	LOG_ATT_RESERVED_ID,
	LOG_ATT_RESERVED_AT,
	LOG_ATT_RESERVED_BY,
	LOG_ATTS
};

/* What the rows of lines that change together have in common. */
typedef struct LedgerEntry
{
	StockChange change;
	const text *reservation;	/* NULL: none */
	const text *actor;			/* NULL: none, as for an expiry */
	const text *note;
} LedgerEntry;

/* A line of a reservation and its last change. */
typedef struct LedgerLine
{
	StockLine	line;
	StockChange last;
	int64		id;				/* of the row with that change */
} LedgerLine;

typedef struct LedgerLines
{
	int			count;
	LedgerLine *line;			/* in the order of their numbers */
	int			order;			/* lines at the start; 0: not known */
	int64		reopened;		/* id of the last reinstatement; 0: none */
} LedgerLines;

/* Appends a row for each line. */
extern void ledger_write(const LedgerEntry *entry, const StockLines *lines);

/* The next id of a row, also for rows of stock_hold. */
extern int64 ledger_next_id(void);

/* What an item's rows add up to; the sums are numerics. */
typedef struct LedgerSum
{
	Datum		on_hand;
	Datum		leaving;		/* confirmed by this transaction */
	Datum		backorder;		/* a part of on_hand */
	int			rows;
} LedgerSum;

extern LedgerSum ledger_sum(const text *sku, Snapshot snapshot);

/* Where a walk over all items of the log continues. */
typedef struct LedgerPosition
{
	text	   *sku;			/* NULL: at the start */
	int64		id;				/* of its last row that was passed */
} LedgerPosition;

/* The first row of an item. */
typedef struct LedgerFirst
{
	int64		id;
	TimestampTz at;
} LedgerFirst;

/*
 * Moves a position past the next item that has rows, and returns the first of
 * these.  false: there are no more, and the position is at the start; or *looks
 * rows were passed, of which others may see those that we do not.
 */
extern bool ledger_next_item(LedgerPosition *position, int *looks,
							 LedgerFirst *first);

/* Was a line ever settled, also by an open transaction? */
extern bool ledger_is_settled(const text *reservation);

/*
 * Keeps the rows that ledger_read will return until this transaction ends: for
 * callers that open lines again.
 */
extern void ledger_keep(void);

/* Reads the last change of each line that was ever settled; palloc'd. */
extern LedgerLines ledger_read(const text *reservation);

#endif							/* STOCK_LEDGER_H */
