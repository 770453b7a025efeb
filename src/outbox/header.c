/*
 * header.c
 *		Which HTTP headers events and subscriptions may add to a request.
 *
 * Headers that could not be delivered, or could be used to forge a request, are
 * refused while the caller can still react.
 */
#include "postgres.h"

#include "fmgr.h"
#include "base/compat.h"
#include "base/errors.h"
#include "outbox/header.h"

#define HEADERS_MAX 32
#define HEADER_NAME_MAX 127
#define HEADER_VALUE_MAX 1024

/* What RFC 9110 allows in the name of a header besides letters and digits. */
#define HEADER_NAME_PUNCTUATION "!#$%&'*+-.^_`|~"

PG_FUNCTION_INFO_V1(outbox_check_headers);

/*
 * Headers that describe the body or the connection, which the relay sets, and
 * headers by which a receiver recognises an event.
 */
static const char *const header_reserved_names[] = {
	"connection", "expect", "host", "idempotency-key", "keep-alive",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"
};
static const char *const header_reserved_prefixes[] = {
	"ce-", "content-", "webhook-"
};

/* Is the name reserved for the relay, in any case of letters? */
static bool
header_name_reserved(const char *name)
{
	for (int i = 0; i < (int) lengthof(header_reserved_names); i++)
	{
		if (pg_strcasecmp(name, header_reserved_names[i]) == 0)
			return true;
	}
	for (int i = 0; i < (int) lengthof(header_reserved_prefixes); i++)
	{
		const char *prefix = header_reserved_prefixes[i];

		if (pg_strncasecmp(name, prefix, strlen(prefix)) == 0)
			return true;
	}
	return false;
}

/* Is the name a token as RFC 9110 defines it? */
static bool
header_name_valid(const char *name)
{
	for (const char *c = name; *c != '\0'; c++)
	{
		if (!(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') &&
			!(*c >= '0' && *c <= '9') &&
			strchr(HEADER_NAME_PUNCTUATION, *c) == NULL)
			return false;
	}
	return name[0] != '\0';
}

/* Does the text consist of printable ASCII characters? */
static bool
header_value_valid(const char *value)
{
	for (const char *c = value; *c != '\0'; c++)
	{
		if (*c < ' ' || *c > '~')
			return false;
	}
	return true;
}

/* Raises an error unless a header may have this name. */
static void
header_check_name(const char *name)
{
	if (strlen(name) > HEADER_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("header name is too long"),
				 errdetail("It has %zu bytes; the limit is %d.",
						   strlen(name), HEADER_NAME_MAX)));
	if (!header_name_valid(name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid header name \"%s\"", name),
				 errdetail("A header's name is a token as RFC 9110 has it: letters, digits, hyphens and the like.")));
	if (header_name_reserved(name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("header \"%s\" is reserved", name),
				 errdetail("Headers that describe the connection, the body or the event are set by the relay.")));
}

/* Raises an error unless the header of this name may have this value. */
static void
header_check_value(const char *name, const JsonbValue *value)
{
	char	   *string;

	if (value->type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value of header \"%s\" must be a string", name)));
	if (value->val.string.len > HEADER_VALUE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value of header \"%s\" is too long", name),
				 errdetail("It has %d bytes; the limit is %d.",
						   value->val.string.len, HEADER_VALUE_MAX)));

	string = pnstrdup(value->val.string.val, value->val.string.len);
	if (!header_value_valid(string))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value of header \"%s\"", name),
				 errdetail("A header's value consists of printable ASCII characters.")));
}

void
header_check(Jsonb *headers)
{
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	value;
	char	   *name = NULL;

	if (!JB_ROOT_IS_OBJECT(headers))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("headers must be a JSON object of names and strings")));
	if (JB_ROOT_COUNT(headers) > HEADERS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too many headers"),
				 errdetail("There are %d; the limit is %d.",
						   (int) JB_ROOT_COUNT(headers), HEADERS_MAX)));

	iterator = JsonbIteratorInit(&headers->root);
	while ((token = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			name = pnstrdup(value.val.string.val, value.val.string.len);
			header_check_name(name);
		}
		else if (token == WJB_VALUE)
			header_check_value(name, &value);
	}
}

/*
 * SQL: outbox_check_headers(headers), raises an error as header_check does.
 */
Datum
outbox_check_headers(PG_FUNCTION_ARGS)
{
	errors_hide_frames();
	if (!PG_ARGISNULL(0))
		header_check(PG_GETARG_JSONB_P(0));
	PG_RETURN_VOID();
}
