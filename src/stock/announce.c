/*
 * announce.c
 *		Enqueues events about stock, in the transaction that makes the change.
 *
 * SQL functions build the payloads.  They are called without a check of
 * privileges, since callers have none on them: the privilege to make the change
 * is enough.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/settings.h"
#include "stock/announce.h"

static const char *const announce_topics[STOCK_CHANGES] = {
	[STOCK_RESERVE] = "stock.reserved",
	[STOCK_CANCEL] = "stock.cancelled",
	[STOCK_EXPIRE] = "stock.expired",
	[STOCK_CONFIRM] = "stock.confirmed",
	[STOCK_REINSTATE] = "stock.reinstated"
};

static void
announce_lines(const char *topic, const text *reservation,
			   const StockLines *lines)
{
	Datum	   *skus;
	Datum	   *quantities;

	if (!settings_stock_events || lines->count == 0)
		return;
	skus = palloc(lines->count * sizeof(Datum));
	quantities = palloc(lines->count * sizeof(Datum));
	for (int i = 0; i < lines->count; i++)
	{
		skus[i] = PointerGetDatum(lines->line[i].sku);
		quantities[i] = Int64GetDatum(lines->line[i].quantity);
	}
	OidFunctionCall4(catalog_get()->stock_announce,
					 CStringGetTextDatum(topic),
					 PointerGetDatum(reservation),
					 PointerGetDatum(construct_array(skus, lines->count,
													 TEXTOID,
													 -1, false, TYPALIGN_INT)),
					 PointerGetDatum(construct_array(quantities, lines->count,
													 INT8OID, sizeof(int64),
													 FLOAT8PASSBYVAL,
													 TYPALIGN_DOUBLE)));
}

void
announce_change(StockChange change, const text *reservation,
				const StockLines *lines)
{
	Assert(announce_topics[change] != NULL);
	announce_lines(announce_topics[change], reservation, lines);
}

void
announce_amended(const text *reservation, const StockLines *lines)
{
	announce_lines("stock.changed", reservation, lines);
}

void
announce_available(const text *sku, int64 available)
{
	if (settings_stock_events)
		OidFunctionCall2(catalog_get()->stock_announce_available,
						 PointerGetDatum(sku), Int64GetDatum(available));
}

void
announce_served(const text *reservation, const StockLine *line,
				TimestampTz expires_at)
{
	OidFunctionCall4(catalog_get()->stock_announce_served,
					 PointerGetDatum(line->sku), Int64GetDatum(line->quantity),
					 PointerGetDatum(reservation),
					 TimestampTzGetDatum(expires_at));
}
