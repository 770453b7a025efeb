/*
 * history.c
 *		Records attempts of subscriptions that keep their deliveries.
 *
 * A successful delivery leaves no row otherwise.  Rows are appended to a ring
 * of tables, many with one statement, and are never updated or deleted: the
 * sweeper truncates a table (segments.sql).
 *
 * The map of the ring is locked until the rows are inserted, so that a table
 * gets no more rows once it is closed.  The lock of the table keeps it from
 * being truncated before the transaction has ended.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/query.h"
#include "base/ring.h"
#include "outbox/history.h"

#define HISTORY_COLUMNS 7

/* $2 to $8: arrays of the columns position to answer. */
#define INSERT_ATTEMPTS(slot, source) \
	{ \
		.sql = "INSERT INTO idempotency_internal.outbox_history_" slot \
		" (subscription, position, attempt, at, duration_ms, status, error," \
		"  answer, topic, key, type, created_at)" \
		" SELECT $1, a.position, a.attempt, a.at, a.duration_ms, a.status," \
		"  a.error, a.answer, e.topic, e.key, e.type, e.created_at" \
		" FROM unnest($2, $3, $4, $5, $6, $7, $8)" \
		"  AS a(position, attempt, at, duration_ms, status, error, answer)" \
		" LEFT JOIN LATERAL (SELECT * FROM " source " OFFSET 0) e ON true", \
		.types = { \
			INT8OID, INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID, \
			INT4ARRAYOID, INT4ARRAYOID, TEXTARRAYOID, TEXTARRAYOID \
		} \
	}

#define FROM_LOG \
	"idempotency_internal.outbox_event l WHERE l.position = a.position"
#define FROM_DEFERRED \
	"idempotency_internal.outbox_delivery d" \
	" WHERE d.subscription = $1 AND d.position = a.position"

static SavedQuery insert_new[RING_SIZE] = {
	INSERT_ATTEMPTS("0", FROM_LOG),
	INSERT_ATTEMPTS("1", FROM_LOG),
	INSERT_ATTEMPTS("2", FROM_LOG)
};

static SavedQuery insert_deferred[RING_SIZE] = {
	INSERT_ATTEMPTS("0", FROM_DEFERRED),
	INSERT_ATTEMPTS("1", FROM_DEFERRED),
	INSERT_ATTEMPTS("2", FROM_DEFERRED)
};

/* A column of the rows, as an array that is being built. */
typedef struct HistoryColumn
{
	Oid			type;
	Datum	   *values;
	bool	   *nulls;
} HistoryColumn;

static void
history_set(HistoryColumn *column, int row, Datum value, bool isnull)
{
	column->values[row] = value;
	column->nulls[row] = isnull;
}

static void
history_set_text(HistoryColumn *column, int row, const char *text)
{
	history_set(column, row, text ? CStringGetTextDatum(text) : (Datum) 0,
				text == NULL);
}

/*
 * An attempt that does not count has the number of the one that it is made
 * instead of.
 */
static void
history_set_row(HistoryColumn columns[HISTORY_COLUMNS], int row,
				const OutboxAttempt *attempt)
{
	const OutboxResult *result = attempt->result;
	int			number = result->attempts + (result->uncounted ? 1 : 0);

	history_set(&columns[0], row, Int64GetDatum(attempt->position), false);
	history_set(&columns[1], row, Int32GetDatum(number), false);
	history_set(&columns[2], row, TimestampTzGetDatum(result->at), false);
	history_set(&columns[3], row, Int32GetDatum(result->duration_ms), false);
	history_set(&columns[4], row, Int32GetDatum(result->status),
				result->status == 0);
	history_set_text(&columns[5], row, result->error);
	history_set_text(&columns[6], row, result->answer);
}

static Datum
history_array(const HistoryColumn *column, int count)
{
	int			lower = 1;
	bool		by_value = column->type != TEXTOID;
	int			length = -1;
	char		align = TYPALIGN_INT;

	if (column->type == INT4OID)
		length = sizeof(int32);
	else if (by_value)
	{
		length = sizeof(int64);
		align = TYPALIGN_DOUBLE;
		by_value = FLOAT8PASSBYVAL;
	}
	return PointerGetDatum(construct_md_array(column->values, column->nulls, 1,
											  &count, &lower, column->type,
											  length, by_value, align));
}

/*
 * Returns the query for the current table of the ring, whose map is locked.
 */
static SavedQuery *
history_query(const RingMap *map, bool new_events)
{
	const CatalogRing *ring = &catalog_get()->rings[RING_ATTEMPTS];
	int			slot = 0;

	while (slot < RING_SIZE - 1 && ring->tables[slot] != map->tables[0])
		slot++;
	return new_events ? &insert_new[slot] : &insert_deferred[slot];
}

void
outbox_keep_attempts(int64 subscription, const OutboxAttempt *attempts,
					 int count, bool new_events)
{
	static const Oid types[HISTORY_COLUMNS] = {
		INT8OID, INT4OID, TIMESTAMPTZOID, INT4OID, INT4OID, TEXTOID, TEXTOID
	};
	HistoryColumn columns[HISTORY_COLUMNS];
	Datum		values[HISTORY_COLUMNS + 1];
	RingMap		map;

	if (count == 0)
		return;
	for (int i = 0; i < HISTORY_COLUMNS; i++)
	{
		columns[i].type = types[i];
		columns[i].values = palloc(count * sizeof(Datum));
		columns[i].nulls = palloc(count * sizeof(bool));
	}
	for (int i = 0; i < count; i++)
		history_set_row(columns, i, &attempts[i]);
	values[0] = Int64GetDatum(subscription);
	for (int i = 0; i < HISTORY_COLUMNS; i++)
		values[i + 1] = history_array(&columns[i], count);
	map = ring_lock(RING_ATTEMPTS);
	query_run_patiently(history_query(&map, new_events), values, NULL);
	ring_unlock(RING_ATTEMPTS);
}
