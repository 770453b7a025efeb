/*
 * message.c
 *		The HTTP request that carries an event: Standard Webhooks 1.0, with its
 *		JSON body, or CloudEvents 1.0.2 in binary mode with the same signature.
 *		Or several events: CloudEvents in batched mode, with its JSON format.
 *
 * The webhook id is the same for every attempt and every subscription, so that
 * a receiver can detect duplicates; each attempt has its own signature.  A
 * failover that loses commits hands their positions out again, so the id
 * contains the event's time.  The id is also sent as Idempotency-Key of the
 * IETF draft, as a quoted string.
 *
 * A request with several events has an id of its own, which is the same if the
 * same events are sent again.
 */
#include "postgres.h"

#include <time.h>

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "utils/json.h"

#include "relay/message.h"
#include "relay/signature.h"

/* Formats of an event's attributes. */
#define MESSAGE_ID "msg_%s_%lld_%llu"
#define MESSAGE_SOURCE "/idempotency/%s"
#define MESSAGE_SEQUENCE "%019lld"

/* Parts of an event in the JSON format of CloudEvents. */
#define MESSAGE_SUBJECT ",\"subject\":"
#define MESSAGE_PARTITIONKEY ",\"partitionkey\":"
#define MESSAGE_DATA ",\"datacontenttype\":\"application/json\",\"data\":"

/* Room for the start of an event. */
#define MESSAGE_START_MAX 512

/*
 * Returns the body for Standard Webhooks.
 */
static char *
message_body(const OutboxEvent *event)
{
	StringInfoData body;

	initStringInfo(&body);
	appendStringInfoString(&body, "{\"type\":");
	escape_json(&body, event->type);
	appendStringInfo(&body, ",\"timestamp\":\"%s\",\"data\":%s}",
					 event->created_at, event->payload);
	return body.data;
}

/*
 * Returns a header for a CloudEvents attribute.  Its value is percent-encoded
 * as the HTTP binding requires (section 3.1.3.2), which also excludes line
 * ends.
 */
static char *
message_attribute(const char *name, const char *value)
{
	StringInfoData header;

	initStringInfo(&header);
	appendStringInfo(&header, "ce-%s: ", name);
	for (const unsigned char *c = (const unsigned char *) value; *c; c++)
	{
		if (*c <= ' ' || *c >= 0x7f || *c == '"' || *c == '%')
			appendStringInfo(&header, "%%%02X", *c);
		else
			appendStringInfoChar(&header, *c);
	}
	return header.data;
}

static char *
message_source(const char *identity)
{
	return psprintf(MESSAGE_SOURCE, identity);
}

static char *
message_sequence(const OutboxEvent *event)
{
	return psprintf(MESSAGE_SEQUENCE, (long long) event->position);
}

static List *
message_cloudevents_headers(const OutboxEvent *event, const char *id,
							const char *identity)
{
	char	   *source = message_source(identity);
	char	   *sequence = message_sequence(event);
	List	   *headers = NIL;

	headers = lappend(headers, message_attribute("specversion", "1.0"));
	headers = lappend(headers, message_attribute("id", id));
	headers = lappend(headers, message_attribute("source", source));
	headers = lappend(headers, message_attribute("type", event->type));
	headers = lappend(headers, message_attribute("time", event->created_at));
	headers = lappend(headers, message_attribute("sequence", sequence));
	if (event->wire_key != NULL)
	{
		headers = lappend(headers, message_attribute("subject", event->wire_key));
		headers = lappend(headers, message_attribute("partitionkey", event->wire_key));
	}
	return headers;
}

static bool
message_same_name(const char *header, const char *other)
{
	size_t		length = strcspn(header, ":");

	return strcspn(other, ":") == length &&
		pg_strncasecmp(header, other, length) == 0;
}

/*
 * Appends a header, unless the list has one of that name.
 */
static List *
message_add_header(List *headers, const char *header)
{
	ListCell   *cell;

	foreach(cell, headers)
	{
		if (message_same_name(lfirst(cell), header))
			return headers;
	}
	return lappend(headers, (void *) header);
}

/*
 * Returns the headers of the event and the subscription; those of the event
 * take precedence.
 */
static List *
message_extra_headers(const OutboxSubscription *subscription,
					  const OutboxEvent *event)
{
	List	   *headers = NIL;

	for (char **header = event->headers; *header != NULL; header++)
		headers = message_add_header(headers, *header);
	for (char **header = subscription->headers; *header != NULL; header++)
		headers = message_add_header(headers, *header);
	return headers;
}

static const char *const *
message_header_array(List *headers)
{
	const char **array = palloc((list_length(headers) + 1) * sizeof(char *));

	for (int i = 0; i < list_length(headers); i++)
		array[i] = list_nth(headers, i);
	array[list_length(headers)] = NULL;
	return array;
}

static char *
message_id(const OutboxEvent *event, const char *identity)
{
	return psprintf(MESSAGE_ID, identity, (long long) event->position,
					(unsigned long long) event->created_us);
}

static int
message_compare_positions(const ListCell *one, const ListCell *other)
{
	const OutboxEvent *one_event = lfirst(one);
	const OutboxEvent *other_event = lfirst(other);

	return one_event->position < other_event->position ? -1 : 1;
}

/*
 * Returns the id of a request: that of its event, or a hash of all their ids,
 * in whatever order they are sent.
 */
static char *
message_request_id(List *events, const char *identity)
{
	StringInfoData ids;
	List	   *sorted;
	ListCell   *cell;

	if (list_length(events) == 1)
		return message_id(linitial(events), identity);
	sorted = list_copy(events);
	list_sort(sorted, message_compare_positions);
	initStringInfo(&ids);
	foreach(cell, sorted)
		appendStringInfo(&ids, "%s ", message_id(lfirst(cell), identity));
	return psprintf("msg_%s_%s", identity,
					signature_digest(identity, ids.data));
}

/*
 * Returns how long a string is in JSON at most.
 */
static Size
message_json_size(const char *value)
{
	Size		size = strlen("\"\"");

	for (const unsigned char *c = (const unsigned char *) value; *c; c++)
		size += *c < ' ' || *c == '"' || *c == '\\' ? strlen("\\u0000") : 1;
	return size;
}

/*
 * Writes the start of an event in the JSON format of CloudEvents, up to its
 * type.  Returns how long it is.
 */
static int
message_start(char start[MESSAGE_START_MAX], const OutboxEvent *event,
			  const char *identity)
{
	return snprintf(start, MESSAGE_START_MAX,
					"{\"specversion\":\"1.0\",\"id\":\"" MESSAGE_ID "\","
					"\"source\":\"" MESSAGE_SOURCE "\",\"time\":\"%s\","
					"\"sequence\":\"" MESSAGE_SEQUENCE "\",\"type\":",
					identity, (long long) event->position,
					(unsigned long long) event->created_us, identity,
					event->created_at, (long long) event->position);
}

static void
message_append_event(StringInfo json, const OutboxEvent *event,
					 const char *identity)
{
	char		start[MESSAGE_START_MAX];

	(void) message_start(start, event, identity);
	appendStringInfoString(json, start);
	escape_json(json, event->type);
	if (event->wire_key != NULL)
	{
		appendStringInfoString(json, MESSAGE_SUBJECT);
		escape_json(json, event->wire_key);
		appendStringInfoString(json, MESSAGE_PARTITIONKEY);
		escape_json(json, event->wire_key);
	}
	appendStringInfoString(json, MESSAGE_DATA);
	appendStringInfoString(json, event->payload);
	appendStringInfoChar(json, '}');
}

Size
message_batched_size(const OutboxEvent *event, const char *identity)
{
	char		start[MESSAGE_START_MAX];
	Size		size = strlen("[") + message_start(start, event, identity) +
	message_json_size(event->type) + strlen(MESSAGE_DATA) +
	strlen(event->payload) + strlen("}]");

	if (event->wire_key != NULL)
		size += strlen(MESSAGE_SUBJECT MESSAGE_PARTITIONKEY) +
			2 * message_json_size(event->wire_key);
	return size;
}

static char *
message_batched_body(List *events, const char *identity)
{
	StringInfoData body;
	ListCell   *cell;

	initStringInfo(&body);
	foreach(cell, events)
	{
		appendStringInfoChar(&body, body.len == 0 ? '[' : ',');
		message_append_event(&body, lfirst(cell), identity);
	}
	appendStringInfoChar(&body, ']');
	return body.data;
}

bool
message_same_headers(const OutboxEvent *event, const OutboxEvent *other)
{
	char	  **header = event->headers;
	char	  **other_header = other->headers;

	while (*header != NULL && *other_header != NULL &&
		   strcmp(*header, *other_header) == 0)
	{
		header++;
		other_header++;
	}
	return *header == NULL && *other_header == NULL;
}

/*
 * Returns the headers that do not depend on the format.
 */
static List *
message_headers(const char *content_type, const char *id, int64 now_s,
				const char *signature)
{
	List	   *headers = NIL;

	headers = lappend(headers, psprintf("Content-Type: %s", content_type));
	headers = lappend(headers, psprintf("webhook-id: %s", id));
	headers = lappend(headers, psprintf("Idempotency-Key: \"%s\"", id));
	headers = lappend(headers, psprintf("webhook-timestamp: %lld", (long long) now_s));
	headers = lappend(headers, psprintf("webhook-signature: %s", signature));
	return headers;
}

void
message_build(const OutboxSubscription *subscription, List *events,
			  const char *identity, HttpRequest *request)
{
	const char *const secrets[] = {
		subscription->secret, subscription->old_secret, NULL
	};
	const OutboxEvent *event = linitial(events);
	const char *content_type = "application/json";
	const char *body;
	char	   *id = message_request_id(events, identity);
	int64		now_s = (int64) time(NULL);
	char	   *signature;
	List	   *headers;

	if (subscription->batch > 1)
	{
		content_type = "application/cloudevents-batch+json";
		body = message_batched_body(events, identity);
	}
	else
		body = subscription->cloudevents ? event->payload : message_body(event);
	signature = signature_header(secrets, id, now_s, body, strlen(body));
	if (signature == NULL)
	{
		request->wrong = "the subscription's secret cannot sign";
		return;
	}

	headers = message_headers(content_type, id, now_s, signature);
	if (subscription->cloudevents && subscription->batch == 1)
		headers = list_concat(headers,
							  message_cloudevents_headers(event, id, identity));
	headers = list_concat(headers, message_extra_headers(subscription, event));
	request->url = subscription->url;
	request->headers = message_header_array(headers);
	request->body = body;
	request->body_length = strlen(body);
	request->timeout_ms = subscription->timeout_ms;
}
