/*
 * url_fuzz.c
 *		A URL that is accepted is plain: libcurl finds the same host and port
 *		in it that are between "//" and the path, and nothing else.  If this
 *		fails, a URL reaches another host than people read, or headers of a
 *		subscription are sent to another host, or a port that is not allowed.
 *
 * Input: URL.
 */
#include "postgres.h"

#include <curl/curl.h>

#include "base/settings.h"
#include "relay/url.h"

#include "fuzz.h"

static int	port_asked;

/* The list of ports, in place of settings.c. */
bool
settings_port_allowed(int port)
{
	port_asked = port;
	return false;
}

/* A part of the URL as libcurl reads it; empty if it is missing. */
static char *
url_part(const char *url, CURLUPart part)
{
	CURLU	   *parts = curl_url();
	char	   *value = NULL;
	char	   *copy;

	fuzz_check(curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK);
	(void) curl_url_get(parts, part, &value, 0);
	copy = pstrdup(value == NULL ? "" : value);
	curl_free(value);
	curl_url_cleanup(parts);
	return copy;
}

void
fuzz_one(void)
{
	const char *url = fuzz_field().text;
	const char *reason = url_check(url);
	const char *host;
	char	   *plain;

	if (reason != NULL)
	{
		fuzz_check(strncmp(reason, "It must ", 8) == 0);
		return;
	}
	fuzz_check(strlen(url) <= URL_BYTES_MAX);
	for (const char *c = url; *c != '\0'; c++)
		fuzz_check(*c > ' ' && *c <= '~' && *c != '\\');

	host = strstr(url, "://") + 3;
	plain = psprintf("http://%.*s/", (int) strcspn(host, "/?"), host);
	fuzz_check(strpbrk(plain, "@#") == NULL);
	fuzz_check(url_part(url, CURLUPART_HOST)[0] != '\0');
	fuzz_check(strcmp(url_part(url, CURLUPART_HOST), url_part(plain, CURLUPART_HOST)) == 0);
	fuzz_check(strcmp(url_part(url, CURLUPART_PORT), url_part(plain, CURLUPART_PORT)) == 0);
	fuzz_check(url_same_origin(url, plain) == (url[4] == ':'));
	settings_webhook_require_https = true;
	fuzz_check(url_refused(url) != NULL);
	port_asked = -1;
	(void) url_refused(url);
	fuzz_check((port_asked == -1) == (url[4] == ':'));
	settings_webhook_require_https = false;
	fuzz_check(url_refused(url) != NULL);
	fuzz_check(port_asked == atoi(url_part(url, CURLUPART_PORT)[0] != '\0' ?
								  url_part(url, CURLUPART_PORT) :
								  url[4] == ':' ? "80" : "443"));
	fuzz_check(url_part(url, CURLUPART_USER)[0] == '\0');
	fuzz_check(url_part(url, CURLUPART_PASSWORD)[0] == '\0');
	fuzz_check(url_part(url, CURLUPART_FRAGMENT)[0] == '\0');
}
