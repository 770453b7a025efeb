/*
 * answer_fuzz.c
 *		Any answer of an endpoint becomes one response, within its limits and of
 *		printable characters.  If this fails, an endpoint can crash the relay,
 *		block it, or write unwanted text into logs.
 *
 * The endpoint answers twice, since one answer may affect the next.
 *
 * Input: how often the body is repeated, the answer's status and headers, body.
 */
#include "postgres.h"

#include "loopback.h"

#define TIMEOUT_MS 20000
#define ANSWER_MAX (160 * 1024)

static void
check_text(const char *text, size_t max)
{
	size_t		length = strnlen(text, max + 1);

	fuzz_check(length <= max);
	for (size_t i = 0; i < length; i++)
		fuzz_check(text[i] >= ' ' && text[i] <= '~');
}

/* The head, and the body repeated count times. */
static FuzzField
make_answer(int count, FuzzField head, FuzzField body)
{
	FuzzField	answer = {palloc(head.length + ANSWER_MAX), head.length};

	memcpy(answer.text, head.text, head.length);
	for (int i = 0; i < count && body.length > 0 &&
		 answer.length + body.length < ANSWER_MAX; i++)
	{
		memcpy(answer.text + answer.length, body.text, body.length);
		answer.length += body.length;
	}
	return answer;
}

static void
check_answer(const HttpRequest *request, FuzzField answer)
{
	FuzzField	received;
	HttpResponse response = loopback_post(request, answer, &received);

	fuzz_check(response.tag == request->tag);
	fuzz_check(response.status == 0 || (response.status >= 100 && response.status <= 999));
	fuzz_check((response.status == 0) == (response.error[0] != '\0'));
	fuzz_check(response.retry_after_s >= 0);
	fuzz_check(response.duration_ms >= 0);
	check_text(response.error, HTTP_ERROR_MAX);
	check_text(response.excerpt, HTTP_EXCERPT_MAX);
	fuzz_check(!http_next_response(&response));
}

void
fuzz_one(void)
{
	static const char *const headers[] = {"Content-Type: application/json", NULL};
	int			count = atoi(fuzz_field().text);
	FuzzField	head = fuzz_field();
	FuzzField	answer = make_answer(count, head, fuzz_rest());
	HttpRequest request = {
		.url = loopback_url(),.headers = headers,.body = "{}",.body_length = 2,
		.timeout_ms = TIMEOUT_MS,.tag = &answer
	};

	for (int i = 0; i < 2; i++)
		check_answer(&request, answer);
}
