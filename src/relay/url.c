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
 * Returns a part of a URL, palloc'd; empty if it is missing.
 */
static char *
url_part(CURLU *parts, CURLUPart which)
{
	char	   *part = NULL;
	char	   *copy;

	(void) curl_url_get(parts, which, &part, CURLU_DEFAULT_PORT);
	copy = pstrdup(part ? part : "");
	curl_free(part);
	return copy;
}

static char *
url_lower(char *part)
{
	for (char *c = part; *c != '\0'; c++)
		*c = pg_ascii_tolower((unsigned char) *c);
	return part;
}

/*
 * Returns scheme, host and port of a URL as libcurl sees them, one per line;
 * NULL if it is not a URL.  The host includes the zone of an IPv6 address,
 * which is the name of a network interface here: the same address in another
 * zone is another host.  Its case matters.
 */
static char *
url_origin(const char *url)
{
	CURLU	   *parts = curl_url();
	char	   *origin = NULL;

	if (parts == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	if (curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK)
	{
		const char *zone = url_part(parts, CURLUPART_ZONEID);

		origin = psprintf("%s\n%s%s%s\n%s\n",
						  url_lower(url_part(parts, CURLUPART_SCHEME)),
						  url_lower(url_part(parts, CURLUPART_HOST)),
						  zone[0] == '\0' ? "" : "%", zone,
						  url_part(parts, CURLUPART_PORT));
	}
	curl_url_cleanup(parts);
	return origin;
}

bool
url_is_https(const char *url)
{
	return pg_strncasecmp(url, "https:", 6) == 0;
}

const char *
url_refused(const char *url)
{
	char	   *origin;
	int			port;

	/* Mostly any scheme and port is allowed, and this is asked each time. */
	if (!settings_webhook_require_https && settings_port_allowed(0))
		return NULL;
	origin = url_origin(url);
	if (origin == NULL)
		return NULL;
	if (settings_webhook_require_https && !url_is_https(url))
		return "idempotency.webhook_require_https refuses http";
	port = (int) strtol(strchr(strchr(origin, '\n') + 1, '\n') + 1, NULL, 10);
	if (!settings_port_allowed(port))
		return psprintf("idempotency.webhook_allowed_ports refuses port %d", port);
	return NULL;
}

bool
url_same_origin(const char *one, const char *other)
{
	const char *origin = url_origin(one);
	const char *other_origin = url_origin(other);

	return origin != NULL && other_origin != NULL &&
		strcmp(origin, other_origin) == 0;
}

char *
url_receiver(const char *url)
{
	char	   *origin = url_origin(url);
	char	   *host;
	char	   *port;

	if (origin == NULL)
		return NULL;
	host = strchr(origin, '\n') + 1;
	port = strchr(host, '\n');
	if (strcmp(port, "\n443\n") == 0 && url_is_https(url))
		*port = '\0';
	else
	{
		*port = ':';
		port[strlen(port) - 1] = '\0';
	}
	return host;
}

char *
url_host_to_look_up(const char *url)
{
	char	   *origin = url_origin(url);
	char	   *host = origin ? strchr(origin, '\n') + 1 : NULL;
	char	   *port = host ? strchr(host, '\n') : NULL;

	/* libcurl writes IPv4 addresses in the usual form. */
	if (port == NULL || host[0] == '[' ||
		strspn(host, "0123456789.") == (size_t) (port - host))
		return NULL;
	*port = ':';
	host[strlen(host) - 1] = '\0';
	return pstrdup(host);
}
