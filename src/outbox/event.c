/*
 * event.c
 *		Events in the memory of a relay.
 *
 * An event is made once, with the text of its payload, however many
 * subscriptions it is delivered to.  It takes one piece of memory, which is
 * freed when the last one has dropped it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/query.h"
#include "base/settings.h"
#include "outbox/event.h"
#include "outbox/payload.h"

static MemoryContext events = NULL;
static Size events_bytes = 0;
static dlist_head unkept = DLIST_STATIC_INIT(unkept);

char	  **
outbox_text_list(uint64 row, int column)
{
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);
	Datum	   *elements = NULL;
	int			count = 0;
	char	  **list;

	if (!isnull)
		deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false,
						  TYPALIGN_INT, &elements, NULL, &count);
	list = palloc((count + 1) * sizeof(char *));
	for (int i = 0; i < count; i++)
		list[i] = TextDatumGetCString(elements[i]);
	list[count] = NULL;
	return list;
}

/*
 * Converts to UTF-8.  That needs a transaction, so it is done here and not when
 * the event is sent.
 */
static char *
event_utf8_text(uint64 row, int column)
{
	char	   *string = query_text_column(row, column);

	return string == NULL ? NULL :
		pg_server_to_any(string, strlen(string), PG_UTF8);
}

/*
 * Returns the text of a payload in UTF-8, or NULL if it is null or too large.
 */
static char *
event_payload(uint64 row, int column, bool *too_large)
{
	const Size	limit = (Size) SETTINGS_OUTBOX_PAYLOAD_MAX_MB * 1024 * 1024;
	bool		isnull;
	Datum		value = query_datum(row, column, &isnull);
	Jsonb	   *payload;
	char	   *string;

	*too_large = false;
	if (isnull)
		return NULL;
	payload = DatumGetJsonbP(value);
	*too_large = !payload_text_fits(payload, limit);
	if (*too_large)
		return NULL;
	string = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
	string = pg_server_to_any(string, strlen(string), PG_UTF8);
	*too_large = strlen(string) > limit;
	return *too_large ? NULL : string;
}

/*
 * Appends a number with leading zeros, and what comes before it.
 */
static char *
event_append_number(char *end, const char *before, int number, int digits)
{
	end = stpcpy(end, before);
	return pg_ultostr_zeropad(end, number, digits);
}

/*
 * Returns a time as to_char(..., 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') shows it in
 * UTC, or NULL if it is infinite.
 */
static char *
event_time_text(TimestampTz at)
{
	char	   *text = palloc(MAXDATELEN + 1);
	char	   *end = text;
	struct pg_tm tm;
	fsec_t		fraction;

	if (TIMESTAMP_NOT_FINITE(at) ||
		timestamp2tm(at, NULL, &tm, &fraction, NULL, NULL) != 0)
		return NULL;
	end = event_append_number(end, "", tm.tm_year > 0 ? tm.tm_year :
							  1 - tm.tm_year, 4);
	end = event_append_number(end, "-", tm.tm_mon, 2);
	end = event_append_number(end, "-", tm.tm_mday, 2);
	end = event_append_number(end, "T", tm.tm_hour, 2);
	end = event_append_number(end, ":", tm.tm_min, 2);
	end = event_append_number(end, ":", tm.tm_sec, 2);
	end = event_append_number(end, ".", fraction, 6);
	strcpy(end, "Z");
	return text;
}

static Size
event_text_size(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static Size
event_headers_size(char **headers)
{
	Size		size = sizeof(char *);

	for (; *headers != NULL; headers++)
		size += sizeof(char *) + event_text_size(*headers);
	return size;
}

/*
 * Copies a text to where *end points, and advances that.
 */
static char *
event_copy_text(const char *text, char **end)
{
	Size		size = event_text_size(text);
	char	   *copy = *end;

	if (text == NULL)
		return NULL;
	memcpy(copy, text, size);
	*end += size;
	return copy;
}

static char **
event_copy_headers(char **headers, char **end)
{
	char	  **copy = (char **) *end;
	int			count = 0;

	while (headers[count] != NULL)
		count++;
	*end += (count + 1) * sizeof(char *);
	for (int i = 0; i < count; i++)
		copy[i] = event_copy_text(headers[i], end);
	copy[count] = NULL;
	return copy;
}

/*
 * Copies an event and what it refers to into one piece of memory.
 */
static OutboxEvent *
event_pack(const OutboxEvent *event)
{
	Size		bytes = MAXALIGN(sizeof(OutboxEvent)) +
		event_headers_size(event->headers) +
		event_text_size(event->key) + event_text_size(event->wire_key) +
		event_text_size(event->type) + event_text_size(event->payload) +
		event_text_size(event->created_at) + event_text_size(event->wrong);
	OutboxEvent *copy;
	char	   *end;

	if (events == NULL)
		events = AllocSetContextCreate(TopMemoryContext, "idempotency events",
									   ALLOCSET_DEFAULT_SIZES);
	copy = MemoryContextAllocHuge(events, bytes);
	*copy = *event;
	copy->bytes = bytes;
	end = (char *) copy + MAXALIGN(sizeof(OutboxEvent));
	copy->headers = event_copy_headers(event->headers, &end);
	copy->key = event_copy_text(event->key, &end);
	copy->wire_key = event_copy_text(event->wire_key, &end);
	copy->type = event_copy_text(event->type, &end);
	copy->payload = event_copy_text(event->payload, &end);
	copy->created_at = event_copy_text(event->created_at, &end);
	copy->wrong = event_copy_text(event->wrong, &end);
	Assert(end == (char *) copy + bytes);
	dlist_push_tail(&unkept, &copy->node);
	events_bytes += bytes;
	return copy;
}

OutboxEvent *
outbox_event_read(uint64 row)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency event",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(scratch);
	OutboxEvent event = {0};
	OutboxEvent *packed;
	bool		too_large;
	bool		isnull;
	TimestampTz created_at;

	event.position = query_int64(row, 1);
	event.key = query_text_column(row, 2);
	event.wire_key = event_utf8_text(row, 2);
	event.type = event_utf8_text(row, 3);
	event.payload = event_payload(row, OUTBOX_EVENT_PAYLOAD,
								  &too_large);
	event.headers = outbox_text_list(row, 5);
	created_at = DatumGetTimestampTz(query_datum(row, 6, &isnull));
	event.created_at = isnull ? NULL : event_time_text(created_at);
	event.created_us = (uint64) created_at +
		(uint64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
	event.scheduled = DatumGetBool(query_datum(row, 7, &isnull));
	event.wrong = query_text_column(row, 8);
	event.cancelled = DatumGetBool(query_datum(row, 9, &isnull));
	event.expires_at = query_int64(row, 10);
	event.due_at = query_int64(row, 11);
	if (too_large)
		event.wrong = "the payload is too large";
	packed = event_pack(&event);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(scratch);
	return packed;
}

void
outbox_event_keep(OutboxEvent *event)
{
	Assert(event->keepers >= 0);
	if (event->keepers++ == 0)
		dlist_delete(&event->node);
}

static void
event_free(OutboxEvent *event)
{
	Assert(event->keepers == 0 && events_bytes >= event->bytes);
	events_bytes -= event->bytes;
	pfree(event);
}

void
outbox_event_drop(OutboxEvent *event)
{
	Assert(event->keepers > 0);
	if (--event->keepers == 0)
		event_free(event);
}

void
outbox_events_sweep(void)
{
	while (!dlist_is_empty(&unkept))
		event_free(dlist_container(OutboxEvent, node,
								   dlist_pop_head_node(&unkept)));
}

Size
outbox_events_bytes(void)
{
	return events_bytes;
}
