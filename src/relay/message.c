/*
 * message.c
 *		The HTTP request that carries an event: Standard Webhooks 1.0, with its
 *		JSON body, or CloudEvents 1.0.2 in binary mode with the same signature.
 *
 * The webhook id is the same for every attempt and every subscription, so that
 * a receiver can detect duplicates; each attempt has its own signature.  A
 * failover that loses commits hands their positions out again, so the id
 * contains the event's time.  The id is also sent as Idempotency-Key of the
 * IETF draft, as a quoted string.
 */
#include "postgres.h"

#include <time.h>

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "utils/json.h"

#include "relay/message.h"
#include "relay/signature.h"

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

static List *
message_cloudevents_headers(const OutboxEvent *event, const char *id,
							const char *identity)
{
	char	   *source = psprintf("/idempotency/%s", identity);
	char	   *sequence = psprintf("%019lld", (long long) event->position);
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
	return psprintf("msg_%s_%lld_%llu", identity, (long long) event->position,
					(unsigned long long) event->created_us);
}

void
message_build(const OutboxSubscription *subscription, const OutboxEvent *event,
			  const char *identity, HttpRequest *request)
{
	const char *const secrets[] = {
		subscription->secret, subscription->old_secret, NULL
	};
	const char *body;
	size_t		body_length;
	char	   *id = message_id(event, identity);
	int64		now_s = (int64) time(NULL);
	char	   *signature;
	List	   *headers = NIL;

	body = subscription->cloudevents ? event->payload : message_body(event);
	body_length = strlen(body);
	signature = signature_header(secrets, id, now_s, body, body_length);
	if (signature == NULL)
	{
		request->wrong = "the subscription's secret cannot sign";
		return;
	}

	headers = lappend(headers, "Content-Type: application/json");
	headers = lappend(headers, psprintf("webhook-id: %s", id));
	headers = lappend(headers, psprintf("Idempotency-Key: \"%s\"", id));
	headers = lappend(headers, psprintf("webhook-timestamp: %lld", (long long) now_s));
	headers = lappend(headers, psprintf("webhook-signature: %s", signature));
	if (subscription->cloudevents)
		headers = list_concat(headers,
							  message_cloudevents_headers(event, id, identity));
	headers = list_concat(headers, message_extra_headers(subscription, event));
	request->url = subscription->url;
	request->headers = message_header_array(headers);
	request->body = body;
	request->body_length = body_length;
	request->timeout_ms = subscription->timeout_ms;
}
