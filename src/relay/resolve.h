/*
 * resolve.h
 *		Looks up the hosts of HTTP requests, each once for all its requests.
 *
 * These functions may raise an error if memory is short.
 */
#ifndef RELAY_RESOLVE_H
#define RELAY_RESOLVE_H

#include <curl/curl.h>

#include "lib/ilist.h"

/* How long addresses are used at most, if looking them up takes so long. */
#define RESOLVE_KEPT_S 300

typedef struct ResolveHost ResolveHost;

/* Starts, for the requests of a multi handle, and ends all look-ups. */
extern void resolve_start(CURLM *multi);
extern void resolve_stop(void);

/* Returns the host of a URL, or NULL if there is nothing to look up. */
extern ResolveHost *resolve_find(const char *url, int64 now_ms);

/*
 * Returns the addresses of a host, as CURLOPT_RESOLVE wants them; NULL if they
 * are not known.  They are looked up again if they are old.
 */
extern struct curl_slist *resolve_addresses(ResolveHost *host, int64 now_ms);

/* A request, of which this is a node, waits for addresses. */
extern void resolve_wait(ResolveHost *host, dlist_node *node);

/*
 * A look-up has ended: the multi handle has reported an easy handle whose
 * private pointer is this host.  Returns NULL if it has addresses, or why not.
 * The caller takes all nodes from its list.
 */
extern const char *resolve_ended(ResolveHost *host, CURLcode code,
								 int64 now_ms);
extern dlist_head *resolve_waiting(ResolveHost *host);

#endif							/* RELAY_RESOLVE_H */
