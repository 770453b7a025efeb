/*
 * resolve.c
 *		Looks up the hosts of HTTP requests, each once for all its requests.
 *
 * libcurl looks up a name in a thread, with a pair of sockets and one of the
 * resolver.  If a name server does not answer, the thread cannot be ended: it
 * stays until its time is over, long after the request.  With a thread for each
 * request, a thousand names that hang would use up the descriptors of the
 * relay.
 *
 * So requests wait here until the addresses of their host are known, and get
 * these with their URL.  A host is looked up by an easy handle of its own,
 * which has no timeout and opens no socket, so we are told its addresses, and
 * when its thread has ended.  It has a cache of its own, which it does not look
 * into.
 *
 * After RESOLVE_FRESH_MS the next request causes another look-up.  It does not
 * wait for that: if many hosts begin to hang, those that work do not stop.  The
 * number of look-ups is limited, however many hosts hang, and hosts take turns.
 * Some are left for hosts that were found the last time.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "relay/resolve.h"
#include "relay/url.h"

/* A host and a port, with room for the longest name that DNS can have. */
#define RESOLVE_NAME_BYTES 272
/* The longest list of addresses. */
#define RESOLVE_LIST_BYTES 512
/* How long addresses are used without another look-up. */
#define RESOLVE_FRESH_MS 60000
/* Look-ups at a time, and those of hosts that were not found the last time. */
#define RESOLVE_MAX 640
#define RESOLVE_DOUBTFUL_MAX 512
/* Hosts that are remembered at least. */
#define RESOLVE_HOSTS_MIN 1024

struct ResolveHost
{
	char		name[RESOLVE_NAME_BYTES];	/* with its port; the key */
	char		addresses[RESOLVE_LIST_BYTES];	/* empty: not known */
	int64		found_ms;		/* when they were found */
	bool		found;			/* the last time */
	bool		queued;			/* it is to be looked up */
	dlist_node	node;			/* then, in a queue */
	CURL	   *easy;			/* while it is looked up */
	struct curl_slist *forget;	/* what the cache has to forget then */
	char		list[RESOLVE_LIST_BYTES];	/* addresses that it has got */
	char		error[CURL_ERROR_SIZE];
	dlist_head	waiting;		/* requests */
};

typedef struct ResolveState
{
	CURLM	   *multi;
	CURLSH	   *cache;
	HTAB	   *hosts;
	long		hosts_max;		/* before those of no use are removed */
	int			running;		/* look-ups */
	dlist_head	found;			/* hosts to be looked up that were found the
								 * last time, */
	dlist_head	doubtful;		/* and others */
} ResolveState;

static ResolveState resolve;

static void
resolve_fail(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory")));
}

/*
 * A callback of libcurl, which must not raise an error: libcurl would connect
 * to an address.  It is told that this is not possible, and tries the next one.
 */
static curl_socket_t
resolve_on_address(void *context, pg_attribute_unused() curlsocktype purpose,
				   struct curl_sockaddr *address)
{
	ResolveHost *host = context;
	const struct sockaddr *to = &address->addr;
	bool		ip6 = to->sa_family == AF_INET6;
	char text[	INET6_ADDRSTRLEN];
	size_t		length = strlen(host->list);
	const void *bytes;

	if (ip6)
		bytes = &((const struct sockaddr_in6 *) to)->sin6_addr;
	else
		bytes = &((const struct sockaddr_in *) to)->sin_addr;
	if (inet_ntop(to->sa_family, bytes, text, sizeof(text)) != NULL &&
		length + strlen(text) + strlen(",[]") < RESOLVE_LIST_BYTES)
		snprintf(host->list + length, RESOLVE_LIST_BYTES - length,
				 ip6 ? "%s[%s]" : "%s%s", length > 0 ? "," : "", text);
	return CURL_SOCKET_BAD;
}

void
resolve_start(CURLM *multi)
{
	resolve.multi = multi;
	resolve.cache = curl_share_init();
	if (resolve.cache == NULL ||
		curl_share_setopt(resolve.cache, CURLSHOPT_SHARE,
						  CURL_LOCK_DATA_DNS) != CURLSHE_OK)
		resolve_fail();
	resolve.running = 0;
	dlist_init(&resolve.found);
	dlist_init(&resolve.doubtful);
}

static void
resolve_create_hosts(void)
{
	HASHCTL		control = {
		.keysize = RESOLVE_NAME_BYTES,
		.entrysize = sizeof(ResolveHost),
		.hcxt = TopMemoryContext
	};

	resolve.hosts = hash_create("idempotency hosts", RESOLVE_HOSTS_MIN,
								&control,
								HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	resolve.hosts_max = RESOLVE_HOSTS_MIN;
}

static void
resolve_end(ResolveHost *host)
{
	Assert(resolve.running > 0);
	(void) curl_multi_remove_handle(resolve.multi, host->easy);
	curl_easy_cleanup(host->easy);
	curl_slist_free_all(host->forget);
	host->easy = NULL;
	host->forget = NULL;
	resolve.running--;
}

void
resolve_stop(void)
{
	HASH_SEQ_STATUS scan;
	ResolveHost *host;

	if (resolve.hosts != NULL)
	{
		hash_seq_init(&scan, resolve.hosts);
		while ((host = hash_seq_search(&scan)) != NULL)
		{
			if (host->easy != NULL)
				resolve_end(host);
		}
		hash_destroy(resolve.hosts);
	}
	resolve.hosts = NULL;
	(void) curl_share_cleanup(resolve.cache);
}

static bool
resolve_is_known(const ResolveHost *host, int64 now_ms)
{
	return host->addresses[0] != '\0' &&
		now_ms < host->found_ms + RESOLVE_KEPT_S * 1000;
}

/* Removes hosts that nobody needs, now and then. */
static void
resolve_forget_hosts(int64 now_ms)
{
	HASH_SEQ_STATUS scan;
	ResolveHost *host;

	if (hash_get_num_entries(resolve.hosts) < resolve.hosts_max)
		return;
	hash_seq_init(&scan, resolve.hosts);
	while ((host = hash_seq_search(&scan)) != NULL)
	{
		if (host->easy == NULL && !host->queued &&
			dlist_is_empty(&host->waiting) && !resolve_is_known(host, now_ms))
			(void) hash_search(resolve.hosts, host->name, HASH_REMOVE, NULL);
	}
	resolve.hosts_max = Max(2 * hash_get_num_entries(resolve.hosts),
							RESOLVE_HOSTS_MIN);
}

ResolveHost *
resolve_find(const char *url, int64 now_ms)
{
	char	   *name = url_host_to_look_up(url);
	ResolveHost *host;
	bool		found;

	if (name == NULL || strlen(name) >= RESOLVE_NAME_BYTES)
		return NULL;
	if (resolve.hosts == NULL)
		resolve_create_hosts();
	resolve_forget_hosts(now_ms);
	host = hash_search(resolve.hosts, name, HASH_ENTER, &found);
	pfree(name);
	if (!found)
	{
		memset((char *) host + RESOLVE_NAME_BYTES, 0,
			   sizeof(ResolveHost) - RESOLVE_NAME_BYTES);
		dlist_init(&host->waiting);
	}
	return host;
}

#define resolve_set(easy, option, value) \
	(curl_easy_setopt(easy, option, value) == CURLE_OK)

/* Sets up the look-up of a host.  Returns false if memory is short. */
static bool
resolve_set_up(ResolveHost *host)
{
	CURL	   *easy = host->easy = curl_easy_init();
	char text[	RESOLVE_NAME_BYTES + 16];

	host->list[0] = '\0';
	host->error[0] = '\0';
	snprintf(text, sizeof(text), "-%s", host->name);
	host->forget = curl_slist_append(NULL, text);
	snprintf(text, sizeof(text), "http://%s/", host->name);
	return easy != NULL && host->forget != NULL &&
		resolve_set(easy, CURLOPT_URL, text) &&
		resolve_set(easy, CURLOPT_SHARE, resolve.cache) &&
		resolve_set(easy, CURLOPT_RESOLVE, host->forget) &&
		resolve_set(easy, CURLOPT_PRIVATE, host) &&
		resolve_set(easy, CURLOPT_ERRORBUFFER, host->error) &&
		resolve_set(easy, CURLOPT_PROXY, "") &&
		resolve_set(easy, CURLOPT_OPENSOCKETFUNCTION, resolve_on_address) &&
		resolve_set(easy, CURLOPT_OPENSOCKETDATA, host) &&
		resolve_set(easy, CURLOPT_FRESH_CONNECT, 1L) &&
		resolve_set(easy, CURLOPT_CONNECTTIMEOUT_MS, (long) INT_MAX) &&
		resolve_set(easy, CURLOPT_NOSIGNAL, 1L) &&
		resolve_set(easy, CURLOPT_QUICK_EXIT, 1L) &&
		curl_multi_add_handle(resolve.multi, easy) == CURLM_OK;
}

static void
resolve_begin(ResolveHost *host)
{
	Assert(host->queued && host->easy == NULL);
	dlist_delete(&host->node);
	host->queued = false;
	resolve.running++;
	if (resolve_set_up(host))
		return;
	resolve_end(host);
	resolve_fail();
}

/* Looks up as many hosts as may be, first those that were found before. */
static void
resolve_go_on(void)
{
	while (!dlist_is_empty(&resolve.found) && resolve.running < RESOLVE_MAX)
		resolve_begin(dlist_head_element(ResolveHost, node, &resolve.found));
	while (!dlist_is_empty(&resolve.doubtful) &&
		   resolve.running < RESOLVE_DOUBTFUL_MAX)
		resolve_begin(dlist_head_element(ResolveHost, node,
										 &resolve.doubtful));
}

/* Looks up a host as soon as that may be. */
static void
resolve_look_up(ResolveHost *host)
{
	if (host->easy != NULL || host->queued)
		return;
	host->queued = true;
	dlist_push_tail(host->found ? &resolve.found : &resolve.doubtful,
					&host->node);
	resolve_go_on();
}

struct curl_slist *
resolve_addresses(ResolveHost *host, int64 now_ms)
{
	char text[	RESOLVE_NAME_BYTES + RESOLVE_LIST_BYTES + 8];
	struct curl_slist *list;

	if (!resolve_is_known(host, now_ms))
		return NULL;
	if (now_ms >= host->found_ms + RESOLVE_FRESH_MS)
		resolve_look_up(host);
	snprintf(text, sizeof(text), "+%s:%s", host->name, host->addresses);
	list = curl_slist_append(NULL, text);
	if (list == NULL)
		resolve_fail();
	return list;
}

void
resolve_wait(ResolveHost *host, dlist_node *node)
{
	dlist_push_tail(&host->waiting, node);
	resolve_look_up(host);
}

const char *
resolve_ended(ResolveHost *host, CURLcode code, int64 now_ms)
{
	resolve_end(host);
	host->found = host->list[0] != '\0';
	strlcpy(host->addresses, host->list, RESOLVE_LIST_BYTES);
	host->found_ms = now_ms;
	resolve_go_on();
	if (host->found)
		return NULL;
	return host->error[0] != '\0' ? host->error : curl_easy_strerror(code);
}

dlist_head *
resolve_waiting(ResolveHost *host)
{
	return &host->waiting;
}
