/*
 * request_fuzz.c
 *		If a URL and a header are accepted, they make one request with exactly
 *		this header and the whole body.  If this fails, a header can forge
 *		another header or another request, or an event is never delivered.
 *
 * Input: path, name and value of a header, body.
 */
#include "postgres.h"

#include "outbox/header.h"
#include "relay/url.h"

#include "loopback.h"

#define TIMEOUT_MS 20000

static const char *const fixed_names[] = {
	"accept", "content-length", "content-type", "host", "user-agent"
};
static FuzzField header_name;
static FuzzField header_value;
static int	jsonb_step;

/*----------
 * A replacement for jsonb: an object with one header.
 *----------
 */

JsonbIterator *
JsonbIteratorInit(JsonbContainer *container)
{
	jsonb_step = 0;
	return NULL;
}

static JsonbIteratorToken
jsonb_string(JsonbValue *value, FuzzField string, JsonbIteratorToken token)
{
	value->type = jbvString;
	value->val.string.val = string.text;
	value->val.string.len = (int) string.length;
	return token;
}

JsonbIteratorToken
JsonbIteratorNext(JsonbIterator **it, JsonbValue *val, bool skipNested)
{
	switch (jsonb_step++)
	{
		case 0:
			return WJB_BEGIN_OBJECT;
		case 1:
			return jsonb_string(val, header_name, WJB_KEY);
		case 2:
			return jsonb_string(val, header_value, WJB_VALUE);
		case 3:
			return WJB_END_OBJECT;
		default:
			return WJB_DONE;
	}
}

static bool
is_header_accepted(void)
{
	Jsonb	   *headers = palloc0(sizeof(Jsonb));

	headers->root.header = JB_FOBJECT | 1;
	return fuzz_passes(header_check(headers));
}

/*----------
 * The request that arrives.
 *----------
 */

static bool
has_control_character(const char *text)
{
	for (; *text != '\0'; text++)
	{
		if ((unsigned char) *text < ' ' || *text == 0x7f)
			return true;
	}
	return false;
}

/* Removes blanks on both sides of a text, in place. */
static char *
trim(char *text)
{
	size_t		length;

	text += strspn(text, " ");
	length = strlen(text);
	while (length > 0 && text[length - 1] == ' ')
		text[--length] = '\0';
	return text;
}

/* Is this line, one after the first, the header of the input? */
static bool
check_line(char *line, const HttpRequest *request)
{
	char	   *colon = strchr(line, ':');

	fuzz_check(!has_control_character(line));
	fuzz_check(colon != NULL && colon > line);
	*colon = '\0';
	if (pg_strcasecmp(line, "content-length") == 0)
		fuzz_check(strtoul(colon + 1, NULL, 10) == request->body_length);
	if (pg_strcasecmp(line, header_name.text) == 0)
	{
		fuzz_check(strcmp(trim(colon + 1), trim(pstrdup(header_value.text))) == 0);
		return true;
	}
	for (int i = 0; i < (int) lengthof(fixed_names); i++)
	{
		if (pg_strcasecmp(line, fixed_names[i]) == 0)
			return false;
	}
	fuzz_fail("a header that nobody asked for", __FILE__, __LINE__);
}

static void
check_request(FuzzField received, const HttpRequest *request)
{
	char	   *body = strstr(received.text, "\r\n\r\n");
	char	   *line = received.text;
	char	   *target;
	int			count = 0;

	fuzz_check(body != NULL);
	*body = '\0';
	body += 4;
	fuzz_check(received.text + received.length - body == (ptrdiff_t) request->body_length);
	fuzz_check(memcmp(body, request->body, request->body_length) == 0);

	target = line + strlen("POST ");
	line = strstr(line, "\r\n");
	fuzz_check(line != NULL);
	*line = '\0';
	fuzz_check(strncmp(received.text, "POST /", 6) == 0);
	fuzz_check(strcmp(target + strcspn(target, " "), " HTTP/1.1") == 0);
	while (line != NULL)
	{
		char	   *next = strstr(line + 2, "\r\n");

		if (next != NULL)
			*next = '\0';
		count += check_line(line + 2, request);
		line = next;
	}
	fuzz_check(count == 1);
}

void
fuzz_one(void)
{
	static char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
	const FuzzField answer = {ok, sizeof(ok) - 1};
	char	   *url = psprintf("%s/%s", loopback_url(), fuzz_field().text);
	const char *headers[] = {NULL, NULL};
	HttpRequest request = {.url = url,.headers = headers,.timeout_ms = TIMEOUT_MS};
	HttpResponse response;
	FuzzField	received;
	FuzzField	body;
	bool		is_accepted;

	header_name = fuzz_field();
	header_value = fuzz_field();
	body = fuzz_rest();
	request.body = body.text;
	request.body_length = body.length;
	headers[0] = psprintf("%s: %s", header_name.text, header_value.text);

	is_accepted = is_header_accepted();
	fuzz_check(!(is_accepted && has_control_character(headers[0])));
	if (url_check(url) != NULL ||
		!(is_accepted || has_control_character(headers[0])))
		return;
	response = loopback_post(&request, answer, &received);
	fuzz_check((response.status == 200) == is_accepted);
	if (is_accepted)
		check_request(received, &request);
	else
		fuzz_check(received.length == 0 && response.status == 0);
}
