/*
 * announce.h
 *		Events of stock in the outbox, if they are switched on.  Within the
 *		stock module.
 */
#ifndef STOCK_ANNOUNCE_H
#define STOCK_ANNOUNCE_H

#include "base/catalog.h"
#include "stock/lines.h"

/* What happened to lines of a reservation. */
extern void announce_change(StockChange change, const text *reservation,
							const StockLines *lines);

/* An item of which nothing was available has come back. */
extern void announce_available(const text *sku, int64 available);

#endif							/* STOCK_ANNOUNCE_H */
