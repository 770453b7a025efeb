/*
 * url.c
 *		Checks and compares the URLs of webhooks, as libcurl reads them.
 */
#include "postgres.h"

#include <curl/curl.h>

#include "base/settings.h"
#include "relay/url.h"

/*
 * libcurl itself is lenient: it accepts one or three slashes, and backslashes.
 * Only the plain form is accepted here, so that everything that reads the URL,
 * people included, sees the same host as libcurl.  Whether the host's address
 * is allowed is checked when it is connected to.
 */
const char *
url_check(const char *url)
{
	CURLU	   *parts;
	CURLUcode	code;
	const char *rest;

	if (strlen(url) > URL_BYTES_MAX)
		return "It must not be longer than " CppAsString2(URL_BYTES_MAX) " bytes.";
	for (const char *c = url; *c != '\0'; c++)
	{
		if (*c <= ' ' || *c > '~' || *c == '\\')
			return "It must consist of printable ASCII characters, without spaces and backslashes; others have to be percent-encoded.";
	}

	if (pg_strncasecmp(url, "http://", 7) == 0)
		rest = url + 7;
	else if (pg_strncasecmp(url, "https://", 8) == 0)
		rest = url + 8;
	else
		return "It must begin with http:// or https://.";
	if (strchr("/?#:", *rest) != NULL)
		return "It must have a host.";
	if (strchr(rest, '#') != NULL)
		return "It must not have a fragment.";

	parts = curl_url();
	if (parts == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	code = curl_url_set(parts, CURLUPART_URL, url, CURLU_DISALLOW_USER);
	curl_url_cleanup(parts);

	if (code == CURLUE_USER_NOT_ALLOWED)
		return "It must not have a user name or password; a header can carry credentials.";
	if (code != CURLUE_OK)
		return "It must have a valid host and port.";
	return NULL;
}

/*
 * Returns scheme, host and port of a URL as libcurl sees them, one per line;
 * NULL if it is not a URL.
 */
static char *
url_origin(const char *url)
{
	static const CURLUPart wanted[] = {
		CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT
	};
	CURLU	   *parts = curl_url();
	char	   *origin = NULL;

	if (parts == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	if (curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK)
	{
		origin = "";
		for (int i = 0; i < (int) lengthof(wanted); i++)
		{
			char	   *part = NULL;

			(void) curl_url_get(parts, wanted[i], &part, CURLU_DEFAULT_PORT);
			origin = psprintf("%s%s\n", origin, part ? part : "");
			curl_free(part);
		}
	}
	curl_url_cleanup(parts);
	return origin;
}

const char *
url_refused(const char *url)
{
	char	   *origin = url_origin(url);
	const char *port;

	if (origin == NULL)
		return NULL;
	if (settings_webhook_require_https &&
		pg_strncasecmp(origin, "https\n", 6) != 0)
		return "idempotency.webhook_require_https refuses http";
	port = strchr(strchr(origin, '\n') + 1, '\n') + 1;
	if (!settings_port_allowed(atoi(port)))
		return psprintf("idempotency.webhook_allowed_ports refuses port %d",
						atoi(port));
	return NULL;
}

bool
url_same_origin(const char *one, const char *other)
{
	char	   *origin = url_origin(one);
	char	   *other_origin = url_origin(other);

	return origin != NULL && other_origin != NULL &&
		pg_strcasecmp(origin, other_origin) == 0;
}

char *
url_receiver(const char *url)
{
	char	   *origin = url_origin(url);
	char	   *host;
	char	   *port;

	if (origin == NULL || pg_strncasecmp(origin, "https\n", 6) != 0)
		return NULL;
	host = origin + strlen("https\n");
	port = strchr(host, '\n');
	for (char *c = host; *c != '\0'; c++)
		*c = pg_ascii_tolower((unsigned char) *c);
	if (strcmp(port, "\n443\n") == 0)
		*port = '\0';
	else
	{
		*port = ':';
		port[strlen(port) - 1] = '\0';
	}
	return host;
}
