/*
 * url.h
 *		Checks and compares the URLs of webhooks.
 */
#ifndef RELAY_URL_H
#define RELAY_URL_H

/* Longest URL that url_check() accepts. */
#define URL_BYTES_MAX 2048

/* Returns NULL if url is acceptable, else a sentence that says why not. */
extern const char *url_check(const char *url);

/*
 * Returns NULL if the settings allow requests to this URL now, else which one
 * does not.
 */
extern const char *url_refused(const char *url);

/* Do both have the same scheme, host with its zone, and port? */
extern bool url_same_origin(const char *one, const char *other);

/*
 * Returns host, colon and port of a URL in lower case, palloc'd, without the
 * port if it is 443 and the scheme is https; NULL if it is not a URL.  The zone
 * of an IPv6 address follows it after a percent sign.
 */
extern char *url_receiver(const char *url);

/* Is the scheme of a URL https? */
extern bool url_is_https(const char *url);

/*
 * Returns host, colon and port of a URL, palloc'd; NULL if the host is an
 * address, or the URL not valid.
 */
extern char *url_host_to_look_up(const char *url);

#endif							/* RELAY_URL_H */
