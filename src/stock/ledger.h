/*
 * ledger.h
 *		Rows of the log.  Within the stock module.
 */
#ifndef STOCK_LEDGER_H
#define STOCK_LEDGER_H

#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "base/catalog.h"
#include "stock/lines.h"

/* The columns of stock_log and of its history, in order. */
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
	LOG_ATTS
};

/* What is written of each of the lines that change together. */
typedef struct LedgerEntry
{
	StockChange change;
	const text *reservation;	/* NULL: none */
	const text *actor;			/* NULL: nobody */
	const text *note;
} LedgerEntry;

/* How a line of a reservation went on. */
typedef struct LedgerLine
{
	StockLine	line;
	StockChange last;
	int64		id;				/* of that row */
} LedgerLine;

typedef struct LedgerLines
{
	int			count;
	LedgerLine *line;			/* in the order of their numbers */
	int			order;			/* how many there were at first; 0: not known */
	int64		reopened;		/* last row that opened a line again; 0: none */
} LedgerLines;

/* Appends a row for each line. */
extern void ledger_write(const LedgerEntry *entry, const StockLines *lines);

/* What the rows of an item add up to, and how many there are. */
typedef struct LedgerSum
{
	int64		available;
	int64		reserved;
	int			rows;
} LedgerSum;

extern LedgerSum ledger_sum(const text *sku, Snapshot snapshot);

/* Was a line of a reservation ever settled, be it by an open transaction? */
extern bool ledger_is_settled(const text *reservation);

/* How the lines of a reservation that were settled went on; palloc'd. */
extern LedgerLines ledger_read(const text *reservation);

#endif							/* STOCK_LEDGER_H */
