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
 * same events are sent again in the same order.
 */
#include "postgres.h"

#include <time.h>

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "relay/credentials.h"
#include "relay/message.h"
#include "relay/signature.h"
#include "relay/url.h"

#define MESSAGE_SOURCE "/idempotency/"
#define MESSAGE_SEQUENCE_DIGITS 19

/* Parts of an event in the JSON format of CloudEvents. */
#define MESSAGE_SPECVERSION "{\"specversion\":\"1.0\",\"id\":\""
#define MESSAGE_SOURCE_NAME "\",\"source\":\"" MESSAGE_SOURCE
#define MESSAGE_TIME "\",\"time\":\""
#define MESSAGE_SEQUENCE "\",\"sequence\":\""
#define MESSAGE_TYPE "\",\"type\":"
#define MESSAGE_SUBJECT ",\"subject\":"
#define MESSAGE_PARTITIONKEY ",\"partitionkey\":"
#define MESSAGE_DATA ",\"datacontenttype\":\"application/json\",\"data\":"

/* The most digits of a number in an id. */
#define MESSAGE_DIGITS_MAX 20

/*
 * As psprintf() would, in a fraction of the time: there are several for each
 * event.
 */
static char *
message_concat(const char *before, const char *text, const char *after)
{
	char	   *all = palloc(strlen(before) + strlen(text) + strlen(after) + 1);

	stpcpy(stpcpy(stpcpy(all, before), text), after);
	return all;
}

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
	appendStringInfoString(&body, ",\"timestamp\":\"");
	appendStringInfoString(&body, event->created_at);
	appendStringInfoString(&body, "\",\"data\":");
	appendStringInfoString(&body, event->payload);
	appendStringInfoChar(&body, '}');
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

static void
message_append_sequence(StringInfo out, const OutboxEvent *event)
{
	char		digits[MAXINT8LEN + 1];

	for (int length = pg_lltoa(event->position, digits);
		 length < MESSAGE_SEQUENCE_DIGITS; length++)
		appendStringInfoChar(out, '0');
	appendStringInfoString(out, digits);
}

static char *
message_sequence(const OutboxEvent *event)
{
	StringInfoData sequence;

	initStringInfo(&sequence);
	message_append_sequence(&sequence, event);
	return sequence.data;
}

static List *
message_cloudevents_headers(const OutboxEvent *event, const char *id,
							const char *identity)
{
	char	   *source = message_concat(MESSAGE_SOURCE, identity, "");
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
 * Returns these headers, and those of the event and the subscription, in this
 * order of precedence.
 */
static List *
message_extra_headers(const OutboxSubscription *subscription,
					  const OutboxEvent *event, List *headers)
{
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

static void
message_append_id(StringInfo out, const OutboxEvent *event,
				  const char *identity)
{
	char		digits[MESSAGE_DIGITS_MAX + 1];

	appendStringInfoString(out, "msg_");
	appendStringInfoString(out, identity);
	appendStringInfoChar(out, '_');
	(void) pg_lltoa(event->position, digits);
	appendStringInfoString(out, digits);
	appendStringInfoChar(out, '_');
	appendBinaryStringInfo(out, digits,
						   pg_ulltoa_n(event->created_us, digits));
}

/*
 * Returns the id of a request: that of its event, or a hash of all their ids,
 * in the order of the body.  A receiver may refuse a repeated id with another
 * body.
 */
static char *
message_request_id(List *events, const char *identity)
{
	StringInfoData ids;
	ListCell   *cell;

	initStringInfo(&ids);
	if (list_length(events) == 1)
	{
		message_append_id(&ids, linitial(events), identity);
		return ids.data;
	}
	foreach(cell, events)
	{
		message_append_id(&ids, lfirst(cell), identity);
		appendStringInfoChar(&ids, ' ');
	}
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

static void
message_append_event(StringInfo json, const OutboxEvent *event,
					 const char *identity)
{
	appendStringInfoString(json, MESSAGE_SPECVERSION);
	message_append_id(json, event, identity);
	appendStringInfoString(json, MESSAGE_SOURCE_NAME);
	appendStringInfoString(json, identity);
	appendStringInfoString(json, MESSAGE_TIME);
	appendStringInfoString(json, event->created_at);
	appendStringInfoString(json, MESSAGE_SEQUENCE);
	message_append_sequence(json, event);
	appendStringInfoString(json, MESSAGE_TYPE);
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
	char		digits[MESSAGE_DIGITS_MAX + 1];
	Size		size = strlen("[" MESSAGE_SPECVERSION MESSAGE_SOURCE_NAME
							  MESSAGE_TIME MESSAGE_SEQUENCE MESSAGE_TYPE
							  MESSAGE_DATA "}]" "msg___") +
		2 * strlen(identity) + pg_lltoa(event->position, digits) +
		pg_ulltoa_n(event->created_us, digits) +
		strlen(event->created_at) + MESSAGE_SEQUENCE_DIGITS +
		message_json_size(event->type) + strlen(event->payload);

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
	char		digits[MAXINT8LEN + 1];

	(void) pg_lltoa(now_s, digits);
	return list_make5(message_concat("Content-Type: ", content_type, ""),
					  message_concat("webhook-id: ", id, ""),
					  message_concat("Idempotency-Key: \"", id, "\""),
					  message_concat("webhook-timestamp: ", digits, ""),
					  message_concat("webhook-signature: ", signature, ""));
}

/*
 * Sets the secrets and signing keys that sign, NULL-terminated.  Returns NULL,
 * or why one cannot be read.  An old one whose file is gone does not sign.
 */
static const char *
message_secrets(const OutboxSubscription *subscription,
				const char *const **secrets)
{
	const struct
	{
		const char *secret;
		bool		is_key;
		bool		is_old;
	}			all[] = {
		{subscription->secret, false, false},
		{subscription->old_secret, false, true},
		{subscription->signing_key, true, false},
		{subscription->old_signing_key, true, true}
	};
	List	   *found = NIL;
	const char **array;

	for (int i = 0; i < (int) lengthof(all); i++)
	{
		const char *secret = all[i].secret;
		const char *file = secret ? credentials_file(secret) : NULL;
		const char *wrong = NULL;
		List	   *lines = NIL;

		if (file != NULL)
			wrong = credentials_read_secrets(subscription->url, file,
											 all[i].is_key, &lines);
		else if (secret != NULL)
			lines = list_make1(unconstify(char *, secret));
		if (wrong == NULL)
			found = list_concat(found, lines);
		else if (!all[i].is_old)
			return wrong;
	}
	array = palloc0((list_length(found) + 1) * sizeof(char *));
	for (int i = 0; i < list_length(found); i++)
		array[i] = list_nth(found, i);
	*secrets = array;
	return NULL;
}

/*
 * Reads the files of a subscription.  The header of the file takes precedence
 * over one of an event, which anyone who enqueues could choose.
 */
static const char *
message_read_files(const OutboxSubscription *subscription,
				   List **headers, HttpRequest *request)
{
	const char *wrong;
	const char *value;

	if (subscription->client_certificate != NULL)
	{
		wrong = credentials_read_certificate(subscription->url,
											 subscription->client_certificate,
											 &request->certificate);
		if (wrong != NULL)
			return wrong;
	}
	if (subscription->authorization_file != NULL)
	{
		wrong = credentials_read_authorization(subscription->url,
											   subscription->authorization_file,
											   &value);
		if (wrong != NULL)
			return wrong;
		*headers = list_make1(message_concat("Authorization: ", value, ""));
	}
	return NULL;
}

void
message_build(const OutboxSubscription *subscription, List *events,
			  const char *identity, HttpRequest *request)
{
	const OutboxEvent *event = linitial(events);
	const char *content_type = "application/json";
	const char *body;
	const char *const *secrets = NULL;
	char	   *id = message_request_id(events, identity);
	int64		now_s = (int64) time(NULL);
	char	   *signature;
	List	   *headers;
	List	   *extra = NIL;

	request->wrong = url_refused(subscription->url);
	if (request->wrong == NULL)
		request->wrong = message_secrets(subscription, &secrets);
	if (request->wrong == NULL)
		request->wrong = message_read_files(subscription, &extra, request);
	if (request->wrong != NULL)
		return;
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
		request->wrong = "the subscription's secret or signing key cannot sign";
		return;
	}

	headers = message_headers(content_type, id, now_s, signature);
	if (subscription->cloudevents && subscription->batch == 1)
		headers = list_concat(headers,
							  message_cloudevents_headers(event, id, identity));
	headers = list_concat(headers, message_extra_headers(subscription, event,
														 extra));
	request->url = subscription->url;
	request->headers = message_header_array(headers);
	request->body = body;
	request->body_length = strlen(body);
	request->timeout_ms = subscription->timeout_ms;
}
