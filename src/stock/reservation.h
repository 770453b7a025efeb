/*
 * reservation.h
 *		What functions that change a reservation share.  For the stock module
 *		only.
 */
#ifndef STOCK_RESERVATION_H
#define STOCK_RESERVATION_H

#include "fmgr.h"

#include "base/catalog.h"
#include "stock/change.h"

/* Reads the first argument, the name; "function" is for errors. */
extern text *reservation_begin(FunctionCallInfo fcinfo, const char *function);

/* How a reservation without open lines ended. */
extern StockSettlement reservation_answer_closed(const text *reservation,
												 const Holds *holds);

/*
 * Lets the open lines expire; the caller has found that they have lapsed.
 * Returns false if another transaction was faster.
 */
extern bool reservation_lapsed(const text *reservation, const Holds *holds);

/* The result of stock_reinstate and stock_change_many. */
extern Datum reservation_result(FunctionCallInfo fcinfo,
								StockSettlement answer, TimestampTz expires_at,
								const Shortages *shortages);

#endif							/* STOCK_RESERVATION_H */
