/*
 * resolve.h
 *		Looks up the hosts of HTTP requests, each once for all its requests.
 *
 * All functions but resolve_is_known may raise an error if memory is short.
 */
#ifndef RELAY_RESOLVE_H
#define RELAY_RESOLVE_H

#include <curl/curl.h>

#include "lib/ilist.h"

/* How long libcurl has to keep addresses; they are looked up sooner. */
#define RESOLVE_KEPT_S 300L

typedef struct ResolveHost ResolveHost;

/* Starts, for the requests of a multi handle, and ends all look-ups. */
extern void resolve_start(CURLM *multi);
extern void resolve_stop(void);

/* Returns the host of a URL, or NULL if there is nothing to look up. */
extern ResolveHost *resolve_find(const char *url, int64 now_ms);

/* Can libcurl connect to it now, without a look-up? */
extern bool resolve_is_known(const ResolveHost *host, int64 now_ms);

/* A request, of which this is a node, waits for the host. */
extern void resolve_wait(ResolveHost *host, dlist_node *node);

/*
 * A look-up has ended: the multi handle has reported an easy handle whose
 * private pointer is this host.  Returns NULL if the host is known now, or why
 * not.  The caller takes all nodes from its list.
 */
extern const char *resolve_ended(ResolveHost *host, CURLcode code,
								 int64 now_ms);
extern dlist_head *resolve_waiting(ResolveHost *host);

#endif							/* RELAY_RESOLVE_H */
