/*
 * retry_after_fuzz.c
 *		Retry-After is understood in seconds and in the three date formats of
 *		RFC 9110.  If this fails, an endpoint that asks for a pause does not get
 *		it, or is never tried again.
 *
 * Input: 8 bytes: form, seconds; any text.
 */
#include "postgres.h"

#include <time.h>

#include "loopback.h"

#define TIMEOUT_MS 20000
#define SECONDS_MAX (10 * 366 * 24 * 60 * 60)

/* Some versions of libcurl limit it, and take eight digits for a date. */
#define LIBCURL_CAP_S (6 * 60 * 60)
#define LIBCURL_DATE_MIN_S 10000000

/* The formats, for strftime(). */
static const char *const date_forms[] = {
	"%a, %d %b %Y %H:%M:%S GMT",
	"%A, %d-%b-%y %H:%M:%S GMT",
	"%a %b %e %H:%M:%S %Y"
};

static int
ask(const char *retry_after)
{
	static const char *const headers[] = {NULL};
	HttpRequest request = {
		.url = loopback_url(),.headers = headers,.body = "{}",.body_length = 2,
		.timeout_ms = TIMEOUT_MS
	};
	FuzzField	answer;
	FuzzField	received;
	HttpResponse response;

	answer.text = psprintf("HTTP/1.1 503 No\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n",
						   retry_after);
	answer.length = strlen(answer.text);
	response = loopback_post(&request, answer, &received);
	fuzz_check(response.status == 503 || strpbrk(retry_after, "\r\n") != NULL);
	fuzz_check(response.retry_after_s >= 0);
	return response.retry_after_s;
}

/* Is it this number of seconds, less at most the time that has passed? */
static void
check_seconds(int64 understood_s, int64 seconds, time_t passed_s)
{
	if (seconds > LIBCURL_CAP_S && understood_s == LIBCURL_CAP_S)
		return;
	if (seconds >= LIBCURL_DATE_MIN_S && understood_s == 0)
		return;
	fuzz_check(understood_s <= Max(seconds, 0));
	fuzz_check(understood_s >= Max(seconds - passed_s, 0));
}

void
fuzz_one(void)
{
	uint64		bits = (uint64) fuzz_number();
	int			form = (int) (bits % (lengthof(date_forms) + 1));
	int64		seconds = (int64) (bits / (lengthof(date_forms) + 1) % SECONDS_MAX);
	time_t		now = time(NULL);
	char		text[64];

	if (form == lengthof(date_forms))
		check_seconds(ask(psprintf("%lld", (long long) seconds)), seconds, 0);
	else
	{
		time_t		at = now + seconds - SECONDS_MAX / 2;
		int			understood_s;

		strftime(text, sizeof(text), date_forms[form], gmtime(&at));
		understood_s = ask(text);
		check_seconds(understood_s, at - now, time(NULL) - now);
	}
	(void) ask(fuzz_field().text);
}
