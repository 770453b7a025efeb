/*
 * announce.h
 *		Enqueues events about stock, if idempotency.stock_events is on, and in
 *		any case about reservations that have waited.  For the stock module
 *		only.
 */
#ifndef STOCK_ANNOUNCE_H
#define STOCK_ANNOUNCE_H

#include "base/catalog.h"
#include "stock/lines.h"

/* Enqueues an event about a change of lines of a reservation. */
extern void announce_change(StockChange change, const text *reservation,
							const StockLines *lines);

/* Enqueues an event about the lines that a reservation has now. */
extern void announce_amended(const text *reservation, const StockLines *lines);

/* Enqueues an event about an item that was sold out and is available again. */
extern void announce_available(const text *sku, int64 available);

/*
 * Enqueues an event about a reservation that has waited and is reserved now,
 * whatever the setting is: its customer waits to be told.
 */
extern void announce_served(const text *reservation, const StockLine *line,
							TimestampTz expires_at);

#endif							/* STOCK_ANNOUNCE_H */
