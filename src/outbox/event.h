/*
 * event.h
 *		Events in the memory of a relay.
 */
#ifndef OUTBOX_EVENT_H
#define OUTBOX_EVENT_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"

/* An event of the log, shared by all that deliver it. */
typedef struct OutboxEvent
{
	dlist_node	node;			/* while nobody keeps it */
	int			keepers;
	Size		bytes;			/* of memory */
	int64		position;
	char	   *key;			/* NULL: none */
	/* What goes over the wire, in UTF-8. */
	char	   *wire_key;
	char	   *type;
	char	   *payload;		/* JSON */
	char	  **headers;		/* "Name: value", NULL-terminated */
	char	   *created_at;		/* ISO 8601, UTC */
	uint64		created_us;		/* the same in microseconds since 1970 */
	bool		scheduled;		/* deliver it when it is due, if ever */
	bool		cancelled;
	TimestampTz due_at;			/* created, or when it was to be delivered */
	TimestampTz expires_at;		/* when it is too late to send it; 0: never */
	const char *wrong;			/* why it cannot be sent, or NULL; if set,
								 * type, payload and created_at may be NULL */
} OutboxEvent;

/*
 * Is an event of the log, with alias e, scheduled?  It also is while it is due
 * and may have been cancelled before (cancel.c): then its delivery is deferred,
 * and looked at again.
 */
#define OUTBOX_IS_SCHEDULED \
	" CASE WHEN e.deliver_at IS NULL THEN false" \
	" WHEN e.deliver_at > clock_timestamp() THEN true" \
	" ELSE idempotency_internal.outbox_is_cancelled(e.position) IS DISTINCT FROM false END"

/*
 * Whether a deferred delivery, with alias e, that is due can be decided, and
 * whether it was cancelled.  One that was tried cannot have been.
 */
#define OUTBOX_AND_DECIDED \
	" AND (e.last_at IS NOT NULL OR" \
	" idempotency_internal.outbox_is_cancelled(e.position) IS NOT NULL)"
#define OUTBOX_IS_CANCELLED \
	" (e.last_at IS NULL AND" \
	" idempotency_internal.outbox_is_cancelled(e.position) IS TRUE)"

/*
 * Columns of an event for outbox_event_read, from alias e; the arguments are
 * expressions.
 */
#define OUTBOX_EVENT_COLUMNS(scheduled, cancelled) \
	" e.position, e.key, coalesce(e.type, e.topic), e.payload," \
	" CASE WHEN jsonb_typeof(e.headers) = 'object' THEN" \
	"  ARRAY(SELECT h.key || ': ' || h.value FROM jsonb_each_text(e.headers) h) END," \
	" e.created_at," scheduled "," OUTBOX_EVENT_WRONG "," cancelled \
	", e.expires_at, coalesce(e.deliver_at, e.created_at)"
/* Their number, and that of the payload. */
#define OUTBOX_EVENT_COLUMN_COUNT 11
#define OUTBOX_EVENT_PAYLOAD 4

/* Why an event with alias e cannot be sent, or null. */
#define OUTBOX_EVENT_WRONG \
	" CASE" \
	UNLESS("isfinite(e.created_at)", "created_at") \
	UNLESS("octet_length(e.topic) BETWEEN 1 AND 255", "topic") \
	UNLESS("e.key IS NULL OR octet_length(e.key) <= 255", "key") \
	UNLESS("e.type IS NULL OR octet_length(e.type) <= 255", "type") \
	UNLESS("e.payload IS NOT NULL", "payload") \
	UNLESS("e.headers IS NULL OR jsonb_typeof(e.headers) = 'object'", "headers") \
	" WHEN e.expires_at <= clock_timestamp() THEN '" OUTBOX_EXPIRED "'" \
	" END"

#define OUTBOX_EXPIRED "expired before it was sent"

/* A branch of a CASE that names a column whose value is not valid. */
#define UNLESS(condition, column) \
	" WHEN (" condition ") IS NOT TRUE THEN 'column \"" column "\" has no valid value'"

/*
 * Reads an event from a row of SPI_tuptable that begins with the columns above.
 * Nobody keeps it yet.
 */
extern OutboxEvent *outbox_event_read(uint64 row);

/* An event that is kept stays until it has been dropped as often. */
extern void outbox_event_keep(OutboxEvent *event);
extern void outbox_event_drop(OutboxEvent *event);

/* Frees all events that were read and never kept. */
extern void outbox_events_sweep(void);

/* Memory of all events. */
extern Size outbox_events_bytes(void);

/* Returns a column of type text[] as a NULL-terminated list. */
extern char **outbox_text_list(uint64 row, int column);

#endif							/* OUTBOX_EVENT_H */
