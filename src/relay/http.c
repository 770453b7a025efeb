/*
 * http.c
 *		Many HTTP requests in flight from one worker process.
 *
 * Only the relay's loop calls these functions.  This is the only file that
 * sends something with libcurl.
 *
 * libcurl's multi interface tells us by callbacks which sockets it waits for
 * and when its next timer is due.  The sockets go into one epoll descriptor
 * (sockets.c), which the relay nests in its own wait set beside its latch; the
 * timer limits how long the relay sleeps.  http_work() passes ready sockets to
 * libcurl.
 *
 * A request passes through a transfer, a slot of a fixed array:
 *
 *		idle --http_submit--> active --http_work--> done
 *		 ^                                           |
 *		 +------------ http_next_response -----------+
 *
 * libcurl keeps connections open between requests, so a request to a known
 * endpoint needs no new connection.  An easy handle serves for one request
 * only, since it keeps state: it counts how often libcurl has sent something
 * again, which is limited; and before 8.1.0, if the headers of an answer begin
 * with a continuation line, it continues a header of the preceding answer,
 * which was freed (curl's issue 11101).
 *
 * Requests are sent over HTTP/1.1 only, one at a time on a connection, so an
 * answer belongs to the request before it.  With HTTP/2 that was not so: if one
 * host and port has connections of both versions, or an answer over HTTP/1.1
 * merely says HTTP/2, libcurl lets requests share a connection on which they
 * cannot be told apart (curl's issue 4885).
 *
 * A request may arrive more than once, always with the same webhook-id; here it
 * is answered once.  libcurl sends it again if a connection that was used
 * before ends without a byte of an answer; then the request may have been
 * processed.
 *
 * Rules:
 *	- No callback raises an error, which would longjmp through libcurl.  So no
 *	  callback calls palloc() or ereport(); it records what happened in its
 *	  transfer.
 *	- libcurl looks up hosts in threads of its own (resolve.c), which inherit
 *	  our signal mask.  All signals are blocked while libcurl can start a
 *	  thread, since PostgreSQL's signal handlers must run in the main thread
 *	  only.
 *	- No address is connected to, and no connection is reused, unless
 *	  address_allowed() permits it.
 *	- An answer is limited in bytes and in time, whatever the endpoint does.
 *	- libcurl itself only limits the time for connecting, of which it gives each
 *	  address of a host a part.  The timeout of a request is enforced here,
 *	  after everything that has arrived was read: if this process was busy for
 *	  long, an answer that came meanwhile is no timeout.
 *	- No transaction, snapshot or lock is needed or held here.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "access/xact.h"
#include "lib/ilist.h"
#include "utils/memutils.h"

#include "relay/address.h"
#include "relay/http.h"
#include "relay/resolve.h"
#include "relay/sockets.h"

#if LIBCURL_VERSION_NUM < 0x075700
#error "libcurl 7.87 or later is required"
#endif

#define HTTP_USER_AGENT "idempotency/" EXTVERSION
#define HTTP_CONNECT_TIMEOUT_MS 10000

#define HTTP_STATUS_MIN 100
#define HTTP_STATUS_MAX 999
#define HTTP_STATUS_ERROR_MIN 400

/* Limits of an answer: all of its headers, and its body. */
#define HTTP_HEADER_BYTES_MAX (64 * 1024)
#define HTTP_BODY_BYTES_MAX (64 * 1024)

/* What libcurl may keep of a request's body besides our copy. */
#define HTTP_UPLOAD_BUFFER_BYTES (16 * 1024L)
/*
 * What libcurl reads at a time.  Each request has such a buffer, and answers
 * are short.
 */
#define HTTP_READ_BUFFER_BYTES 1024L

/*
 * How long an authority may be trusted that the file of trusted certificates
 * does not have any more: libcurl keeps connections for so long.
 */
#define HTTP_TRUST_MAX_S 30L

/* Connections that are kept, how long if unused, and how long in any case. */
#define HTTP_CONNECTIONS_MAX ((long) HTTP_IN_FLIGHT_MAX)
#define HTTP_CONNECTION_IDLE_MAX_S HTTP_TRUST_MAX_S
#define HTTP_CONNECTION_AGE_MAX_S HTTP_TRUST_MAX_S

/*
 * Descriptors that this process may need.  A request has a socket and, while a
 * name is resolved, a few more; the server's own files come in addition.
 */
#define HTTP_DESCRIPTORS_MAX (4 * HTTP_IN_FLIGHT_MAX)

/* Ready sockets that one http_work() handles: all of them. */
#define HTTP_EVENTS_MAX HTTP_IN_FLIGHT_MAX
/* After so many of them libcurl's timer is looked at. */
#define HTTP_EVENTS_SLICE 16
/* Requests whose time is over that one http_work() ends. */
#define HTTP_OVERDUE_SLICE 64

typedef struct HttpTransfer
{
	dlist_node	node;			/* in http.idle or http.done, unless active */
	bool		active;			/* libcurl has it, or it waits */
	bool		waiting;		/* for its host to be looked up, */
	dlist_node	waiting_node;	/* then, in a list of resolve.c */
	int64		submitted_ms;	/* by http_now_ms() */
	int			timeout_ms;		/* since submitted_ms */
	size_t		request_bytes;	/* of its body */
	bool		tls;
	bool		overdue;		/* its time was over once already */
	CURL	   *easy;			/* NULL while idle */
	struct curl_slist *headers; /* of the current request */
	struct curl_slist *addresses;	/* of its host, or NULL */
	size_t		header_bytes;	/* received so far */
	size_t		body_bytes;		/* received so far */
	size_t		excerpt_length;
	bool		connecting;		/* some address was allowed */
	bool		connected;		/* the request may have been sent */
	bool		flooded;		/* too many bytes came over its connection */
	char		refused[INET6_ADDRSTRLEN];	/* an address not allowed */
	char		curl_error[CURL_ERROR_SIZE];
	HttpResponse response;
} HttpTransfer;

typedef struct HttpState
{
	CURLM	   *multi;
	int64		timer_due_ms;	/* by http_now_ms(); -1: none */
	int			in_flight;
	const char *ca_file;		/* of trusted certificates; NULL: none known */
	bool		same_openssl;	/* as ours is libcurl's */
	HttpTransfer *transfers;	/* HTTP_IN_FLIGHT_MAX of them */
	dlist_head	idle;
	dlist_head	done;
	int64		deadline_ms;	/* no active one is overdue before */
	bool		flooded;		/* an active one is */
	AddressNetworks allowed;
} HttpState;

static void http_finish(HttpTransfer *transfer, CURLcode code);

static HttpState http = {
	.timer_due_ms = -1
};

/* Returns milliseconds of a clock that is never set back. */
static int64
http_now_ms(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Returns how long ago the request was submitted. */
static int64
http_elapsed_ms(const HttpTransfer *transfer)
{
	return http_now_ms() - transfer->submitted_ms;
}

/* Copies text; replaces everything that is not printable ASCII. */
static void
http_copy_printable(char *target, const char *source, size_t length)
{
	for (size_t i = 0; i < length; i++)
	{
		unsigned char c = (unsigned char) source[i];

		if (c >= ' ' && c <= '~')
			target[i] = c;
		else
			target[i] = c < ' ' ? ' ' : '?';
	}
	target[length] = '\0';
}

/* Sets the reason why there was no answer. */
static void
http_set_error(HttpResponse *response, const char *text)
{
	http_copy_printable(response->error, text,
						strnlen(text, HTTP_ERROR_MAX));
}

/*----------
 * Callbacks.  They run inside libcurl and must not raise errors.
 *----------
 */

/* Returns the transfer of an easy handle, or NULL if resolve.c has made it. */
static HttpTransfer *
http_transfer_of(CURL *easy)
{
	char	   *private = NULL;
	HttpTransfer *transfer;

	curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
	transfer = (HttpTransfer *) private;
	return transfer >= http.transfers &&
		transfer < http.transfers + HTTP_IN_FLIGHT_MAX ? transfer : NULL;
}

/* Records which socket libcurl waits for, and for which events. */
static int
http_on_socket(CURL *easy, curl_socket_t fd, int what,
			   pg_attribute_unused() void *context,
			   pg_attribute_unused() void *of_socket)
{
	uint32		events = 0;

	if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
		events |= EPOLLIN;
	if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
		events |= EPOLLOUT;
	return sockets_wait_for(fd, events, http_transfer_of(easy)) ? 0 : -1;
}

/* Records when libcurl has to be called even if no socket is ready. */
static int
http_on_timer(pg_attribute_unused() CURLM *multi, long wait_ms,
			  pg_attribute_unused() void *context)
{
	http.timer_due_ms = wait_ms < 0 ? -1 : http_now_ms() + wait_ms;
	return 0;
}

/* Opens a socket to an address, if connecting to it is allowed. */
static curl_socket_t
http_on_open_socket(void *context, pg_attribute_unused() curlsocktype purpose,
					struct curl_sockaddr *address)
{
	HttpTransfer *transfer = context;
	const struct sockaddr *to = &address->addr;
	int			fd;

	if (!address_allowed(to, &http.allowed))
	{
		const void *bytes;

		if (to->sa_family == AF_INET6)
			bytes = &((const struct sockaddr_in6 *) to)->sin6_addr;
		else
			bytes = &((const struct sockaddr_in *) to)->sin_addr;
		(void) inet_ntop(to->sa_family, bytes,
						 transfer->refused, sizeof(transfer->refused));
		return CURL_SOCKET_BAD;
	}

	transfer->connecting = true;
	fd = socket(address->family, address->socktype | SOCK_CLOEXEC,
				address->protocol);
	if (fd < 0)
		return CURL_SOCKET_BAD;
	if (!sockets_opened(fd, transfer->tls))
	{
		(void) close(fd);
		return CURL_SOCKET_BAD;
	}
	return fd;
}

/* Closes a socket, whose number can then be that of another connection. */
static int
http_on_close_socket(pg_attribute_unused() void *context, curl_socket_t fd)
{
	sockets_closed(fd);
	return close(fd);
}

/*
 * Checks a connection again before a request uses it: it may have been opened
 * for an earlier request, when another list of networks was set.
 */
static int
http_on_connected(void *context, char *address,
				  pg_attribute_unused() char *local_address,
				  pg_attribute_unused() int port,
				  pg_attribute_unused() int local_port)
{
	HttpTransfer *transfer = context;

	transfer->connected = address_text_allowed(address, &http.allowed);
	if (transfer->connected)
		return CURL_PREREQFUNC_OK;

	strlcpy(transfer->refused, address, sizeof(transfer->refused));
	transfer->connecting = false;
	return CURL_PREREQFUNC_ABORT;
}

/*
 * Ends an answer that is too long.  The rest of it would come over the
 * connection, so no other request may use that.
 */
static size_t
http_end_answer(HttpTransfer *transfer)
{
	(void) curl_easy_setopt(transfer->easy, CURLOPT_FORBID_REUSE, 1L);
	return CURL_WRITEFUNC_ERROR;
}

/* Counts the bytes of headers, and ends the answer if there are too many. */
static size_t
http_on_header(pg_attribute_unused() char *data, size_t size, size_t count,
			   void *context)
{
	HttpTransfer *transfer = context;

	transfer->header_bytes += size * count;
	if (transfer->header_bytes > HTTP_HEADER_BYTES_MAX)
		return http_end_answer(transfer);
	return size * count;
}

/* Keeps the start of the body, and ends the answer if it is too long. */
static size_t
http_on_body(char *data, size_t size, size_t count, void *context)
{
	HttpTransfer *transfer = context;
	size_t		room = HTTP_EXCERPT_MAX - transfer->excerpt_length;
	size_t		kept = Min(room, size * count);

	http_copy_printable(transfer->response.excerpt + transfer->excerpt_length,
						data, kept);
	transfer->excerpt_length += kept;

	transfer->body_bytes += size * count;
	if (transfer->body_bytes > HTTP_BODY_BYTES_MAX)
		return http_end_answer(transfer);
	return size * count;
}

/*
 * A read of a connection over TLS returns after each record.  Otherwise it
 * would not return while records come that have no data for libcurl, such as
 * tickets of sessions.
 */
static CURLcode
http_on_tls(pg_attribute_unused() CURL *easy, void *tls,
			pg_attribute_unused() void *context)
{
	SSL_CTX_clear_mode((SSL_CTX *) tls, SSL_MODE_AUTO_RETRY);
	return CURLE_OK;
}

/*----------
 * Starting and stopping.
 *----------
 */

/* Raises an error unless libcurl has accepted an option of an easy handle. */
static void
http_check_easy(CURLcode code)
{
	if (code == CURLE_OUT_OF_MEMORY)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	if (code != CURLE_OK)
		elog(ERROR, "could not set up an HTTP request: %s",
			 curl_easy_strerror(code));
}

/* Raises an error unless the multi handle reports success. */
static void
http_check_multi(CURLMcode code)
{
	if (code == CURLM_OUT_OF_MEMORY)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	if (code != CURLM_OK)
		elog(ERROR, "could not work on HTTP requests: %s",
			 curl_multi_strerror(code));
}

#define http_set(easy, option, value) \
	http_check_easy(curl_easy_setopt(easy, option, value))
#define http_set_multi(option, value) \
	http_check_multi(curl_multi_setopt(http.multi, option, value))

/*
 * Returns for how long libcurl may use the trusted certificates that it has
 * read: a copy that is older than the last change of their file is not used.
 */
static long
http_trust_s(void)
{
	struct stat file;
	struct timespec now;
	time_t		unchanged_s;

	if (http.ca_file == NULL || stat(http.ca_file, &file) != 0)
		return HTTP_TRUST_MAX_S;
	(void) clock_gettime(CLOCK_REALTIME, &now);
	unchanged_s = now.tv_sec - file.st_ctim.tv_sec -
		(now.tv_nsec < file.st_ctim.tv_nsec ? 1 : 0);
	return Min(Max(unchanged_s, 1), HTTP_TRUST_MAX_S);
}

/*
 * Sets how a server proves who it is.  libcurl keeps the file of trusted
 * certificates in memory, so that connections do not each read it, but only if
 * there is no directory of them beside it.
 */
static void
http_set_up_tls(CURL *easy)
{
	http_set(easy, CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
	http_set(easy, CURLOPT_SSL_VERIFYPEER, 1L);
	http_set(easy, CURLOPT_SSL_VERIFYHOST, 2L);
	if (http.ca_file != NULL)
	{
		http_set(easy, CURLOPT_CAINFO, http.ca_file);
		http_set(easy, CURLOPT_CAPATH, NULL);
	}
	http_set(easy, CURLOPT_CA_CACHE_TIMEOUT, http_trust_s());
	if (http.same_openssl)
		http_set(easy, CURLOPT_SSL_CTX_FUNCTION, http_on_tls);
	/* A session that is resumed does not look at the certificate again. */
	http_set(easy, CURLOPT_SSL_SESSIONID_CACHE, 0L);
}

/* Sets the options that are the same for all requests. */
static void
http_set_up_easy(HttpTransfer *transfer, CURL *easy)
{
	http_set(easy, CURLOPT_PRIVATE, transfer);
	http_set(easy, CURLOPT_ERRORBUFFER, transfer->curl_error);
	http_set(easy, CURLOPT_USERAGENT, HTTP_USER_AGENT);

	http_set(easy, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);

	/* Where a request may go.  With a proxy we would not see the address. */
	http_set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	http_set(easy, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
	http_set(easy, CURLOPT_FOLLOWLOCATION, 0L);
	http_set(easy, CURLOPT_PROXY, "");
	http_set(easy, CURLOPT_OPENSOCKETFUNCTION, http_on_open_socket);
	http_set(easy, CURLOPT_OPENSOCKETDATA, transfer);
	http_set(easy, CURLOPT_CLOSESOCKETFUNCTION, http_on_close_socket);
	http_set(easy, CURLOPT_PREREQFUNCTION, http_on_connected);
	http_set(easy, CURLOPT_PREREQDATA, transfer);

	http_set_up_tls(easy);

	/* Limits of size and time. */
	http_set(easy, CURLOPT_HEADERFUNCTION, http_on_header);
	http_set(easy, CURLOPT_HEADERDATA, transfer);
	http_set(easy, CURLOPT_WRITEFUNCTION, http_on_body);
	http_set(easy, CURLOPT_WRITEDATA, transfer);
	http_set(easy, CURLOPT_BUFFERSIZE, HTTP_READ_BUFFER_BYTES);
	http_set(easy, CURLOPT_UPLOAD_BUFFERSIZE, HTTP_UPLOAD_BUFFER_BYTES);
	http_set(easy, CURLOPT_MAXAGE_CONN, HTTP_CONNECTION_IDLE_MAX_S);
	http_set(easy, CURLOPT_MAXLIFETIME_CONN, HTTP_CONNECTION_AGE_MAX_S);

	/* No signals from libcurl, and no wait for its threads at the end. */
	http_set(easy, CURLOPT_NOSIGNAL, 1L);
	http_set(easy, CURLOPT_QUICK_EXIT, 1L);
}

/*
 * Raises the soft limit on descriptors, as far as the hard limit permits.  It
 * is often 1,024 because of select(), which is not used here.
 */
static void
http_raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
		limit.rlim_cur >= HTTP_DESCRIPTORS_MAX)
		return;
	limit.rlim_cur = Min(limit.rlim_max, HTTP_DESCRIPTORS_MAX);
	(void) setrlimit(RLIMIT_NOFILE, &limit);
}

/*
 * Does this environment variable make libcurl or its TLS library write the keys
 * of connections to a file, or use a proxy?
 */
static bool
http_variable_is_harmful(const char *variable, size_t name_length)
{
	static const char proxy[] = "_proxy";
	size_t		proxy_length = sizeof(proxy) - 1;

	if (strncmp(variable, "CURL_", strlen("CURL_")) == 0 ||
		strncmp(variable, "SSLKEYLOGFILE=", strlen("SSLKEYLOGFILE=")) == 0)
		return true;
	return name_length >= proxy_length &&
		pg_strncasecmp(variable + name_length - proxy_length, proxy,
					   proxy_length) == 0;
}

/*
 * The server may have been started from a shell that has such variables for
 * other programs.  Nothing else in this process reads them.
 */
static void
http_clear_environment(void)
{
	for (int i = 0; environ[i] != NULL;)
	{
		size_t		length = strcspn(environ[i], "=");
		char	   *name;

		if (!http_variable_is_harmful(environ[i], length))
		{
			i++;
			continue;
		}
		/* The rest of the list moves up. */
		name = pnstrdup(environ[i], length);
		if (unsetenv(name) != 0)
			elog(ERROR, "could not clear \"%s\" in the environment: %m", name);
		pfree(name);
	}
}

/*
 * Does libcurl use the library of TLS that we are linked to?
 */
static bool
http_has_same_openssl(void)
{
#ifdef OPENSSL_VERSION_STRING
	const char *tls = curl_version_info(CURLVERSION_NOW)->ssl_version;

	return tls != NULL &&
		strcmp(tls, psprintf("OpenSSL/%s",
							 OpenSSL_version(OPENSSL_VERSION_STRING))) == 0;
#else
	return false;
#endif
}

/*
 * The file of trusted certificates is the one that OpenSSL's programs use;
 * libcurl itself only knows the one that it was built with.
 */
void
http_start(void)
{
	Assert(http.multi == NULL);

	http.transfers = MemoryContextAllocZero(TopMemoryContext,
											HTTP_IN_FLIGHT_MAX *
											sizeof(HttpTransfer));
	dlist_init(&http.idle);
	dlist_init(&http.done);
	http.deadline_ms = PG_INT64_MAX;
	for (int i = 0; i < HTTP_IN_FLIGHT_MAX; i++)
		dlist_push_tail(&http.idle, &http.transfers[i].node);

	http_raise_descriptor_limit();
	http_clear_environment();
	http.ca_file = getenv("SSL_CERT_FILE");
	if (http.ca_file == NULL)
		http.ca_file = curl_version_info(CURLVERSION_NOW)->cainfo;
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		elog(ERROR, "could not initialize libcurl");
	http.same_openssl = http_has_same_openssl();
	http.multi = curl_multi_init();
	if (http.multi == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	sockets_start();
	resolve_start(http.multi);

	http_set_multi(CURLMOPT_SOCKETFUNCTION, http_on_socket);
	http_set_multi(CURLMOPT_TIMERFUNCTION, http_on_timer);
	http_set_multi(CURLMOPT_MAXCONNECTS, HTTP_CONNECTIONS_MAX);
	/* An answer that says HTTP/2 must not make others share its connection. */
	http_set_multi(CURLMOPT_PIPELINING, (long) CURLPIPE_NOTHING);
}

static void
http_free_lists(HttpTransfer *transfer)
{
	if (transfer->headers != NULL)
		pfree(transfer->headers);
	transfer->headers = NULL;
	curl_slist_free_all(transfer->addresses);
	transfer->addresses = NULL;
}

/*
 * curl_global_cleanup() is not called, because a thread that is still resolving
 * a name may outlive this function; it ends with the process.
 */
void
http_stop(void)
{
	if (http.multi == NULL)
		return;

	for (int i = 0; i < HTTP_IN_FLIGHT_MAX; i++)
	{
		HttpTransfer *transfer = &http.transfers[i];

		if (transfer->active)
			(void) curl_multi_remove_handle(http.multi, transfer->easy);
		curl_easy_cleanup(transfer->easy);
		http_free_lists(transfer);
	}
	resolve_stop();
	(void) curl_multi_cleanup(http.multi);
	sockets_stop();
	pfree(http.transfers);

	http.multi = NULL;
	http.transfers = NULL;
	http.timer_due_ms = -1;
	http.in_flight = 0;
}

/*
 * Connections that are open are checked against the new list before they are
 * used again.
 */
void
http_allow_networks(const char *list)
{
	char	   *bad;

	if (!address_networks_parse(list, &http.allowed, &bad))
		elog(ERROR, "\"%s\" is not a network", bad);
}

/*----------
 * Requests and answers.
 *----------
 */

int
http_wait_fd(void)
{
	return sockets_fd();
}

long
http_wait_ms(void)
{
	int64		due_ms = PG_INT64_MAX;

	if (http.timer_due_ms >= 0)
		due_ms = http.timer_due_ms;
	if (!dlist_is_empty(&http.done))
		return 0;
	due_ms = Min(due_ms, http.deadline_ms);
	if (due_ms == PG_INT64_MAX)
		return -1;
	return (long) Max(due_ms - http_now_ms(), 0);
}

int
http_in_flight(void)
{
	return http.in_flight;
}

/*
 * Returns a header as libcurl wants it, or NULL if it has a control character,
 * which could inject another header or another request.
 */
static const char *
http_header(const char *header)
{
	const char *colon = strchr(header, ':');

	for (const char *c = header; *c != '\0'; c++)
	{
		if ((unsigned char) *c < ' ' || *c == 0x7f)
			return NULL;
	}
	/* To libcurl "Name:" means to remove it, "Name;" an empty value. */
	if (colon != NULL && colon[1 + strspn(colon + 1, " ")] == '\0')
		return psprintf("%.*s;", (int) (colon - header), header);
	return header;
}

/* Copies headers into a list in one piece of memory, which libcurl reads. */
static struct curl_slist *
http_list_headers(const char **headers, int count)
{
	Size		size = count * sizeof(struct curl_slist);
	struct curl_slist *list;
	char	   *end;

	for (int i = 0; i < count; i++)
		size += strlen(headers[i]) + 1;
	list = MemoryContextAlloc(TopMemoryContext, size);
	end = (char *) &list[count];
	for (int i = 0; i < count; i++)
	{
		list[i].data = strcpy(end, headers[i]);
		list[i].next = i + 1 < count ? &list[i + 1] : NULL;
		end += strlen(end) + 1;
	}
	return list;
}

/* Sets the request's headers.  Returns false if one of them is not valid. */
static bool
http_set_headers(HttpTransfer *transfer, const char *const *headers)
{
	const char **wanted;
	int			count = 0;

	while (headers[count] != NULL)
		count++;
	wanted = palloc((count + 1) * sizeof(char *));
	/* With "Expect: 100-continue" a large body would wait for an answer. */
	wanted[count] = "Expect:";
	for (int i = 0; i < count; i++)
	{
		wanted[i] = http_header(headers[i]);
		if (wanted[i] == NULL)
			return false;
	}
	transfer->headers = http_list_headers(wanted, count + 1);
	return true;
}

/*
 * Sets the certificate of the client.  libcurl uses a connection only for
 * requests with the same certificate, which it compares byte by byte.  Without
 * a password, OpenSSL would ask the terminal for that of an encrypted key.
 */
static void
http_set_certificate(CURL *easy, const char *pem)
{
	struct curl_blob blob = {
		.data = (void *) pem, .len = strlen(pem), .flags = CURL_BLOB_COPY
	};

	http_set(easy, CURLOPT_SSLCERT_BLOB, &blob);
	http_set(easy, CURLOPT_SSLKEY_BLOB, &blob);
	http_set(easy, CURLOPT_KEYPASSWD, "");
}

/*
 * Sets up the transfer's easy handle for a request.  Returns why that is not
 * possible, or NULL.
 */
static const char *
http_prepare(HttpTransfer *transfer, const HttpRequest *request)
{
	CURL	   *easy = transfer->easy;

	Assert(request->timeout_ms > 0);
	if (!http_set_headers(transfer, request->headers))
		return "a header has a control character";

	transfer->tls = pg_strncasecmp(request->url, "https:",
								   strlen("https:")) == 0;
	http_set(easy, CURLOPT_URL, request->url);
	if (request->certificate != NULL)
		http_set_certificate(easy, request->certificate);
	http_set(easy, CURLOPT_HTTPHEADER, transfer->headers);
	http_set(easy, CURLOPT_POSTFIELDSIZE_LARGE,
			 (curl_off_t) request->body_length);
	http_set(easy, CURLOPT_COPYPOSTFIELDS, request->body);
	return NULL;
}

/* Returns when the transfer has to be ended. */
static int64
http_deadline_ms(const HttpTransfer *transfer)
{
	int			timeout_ms = transfer->timeout_ms;

	if (transfer->waiting)
		timeout_ms = Min(timeout_ms, HTTP_CONNECT_TIMEOUT_MS);
	return transfer->submitted_ms + timeout_ms;
}

static void
http_note_deadline(const HttpTransfer *transfer)
{
	http.deadline_ms = Min(http.deadline_ms, http_deadline_ms(transfer));
}

/* Passes the transfer to libcurl, with the addresses of its host, if any. */
static void
http_connect(HttpTransfer *transfer, struct curl_slist *addresses)
{
	int64		left_ms = transfer->timeout_ms - http_elapsed_ms(transfer);

	Assert(transfer->active);
	Assert(!transfer->addresses || transfer->addresses == addresses);
	left_ms = Max(left_ms, 1);
	transfer->waiting = false;
	transfer->addresses = addresses;
	http_note_deadline(transfer);
	http_set(transfer->easy, CURLOPT_RESOLVE, addresses);
	http_set(transfer->easy, CURLOPT_CONNECTTIMEOUT_MS,
			 (long) Min(left_ms, HTTP_CONNECT_TIMEOUT_MS));
	http_check_multi(curl_multi_add_handle(http.multi, transfer->easy));
}

/*
 * Begins the transfer, with nothing received yet, as soon as its host is known.
 */
static void
http_begin(HttpTransfer *transfer, ResolveHost *host)
{
	struct curl_slist *addresses = NULL;

	Assert(!transfer->active);
	transfer->header_bytes = 0;
	transfer->body_bytes = 0;
	transfer->excerpt_length = 0;
	transfer->connecting = false;
	transfer->connected = false;
	transfer->flooded = false;
	transfer->overdue = false;
	transfer->refused[0] = '\0';
	transfer->curl_error[0] = '\0';
	transfer->response.excerpt[0] = '\0';

	transfer->active = true;
	if (host != NULL)
		addresses = resolve_addresses(host, http_now_ms());
	if (host == NULL || addresses != NULL)
	{
		http_connect(transfer, addresses);
		return;
	}
	transfer->waiting = true;
	http_note_deadline(transfer);
	resolve_wait(host, &transfer->waiting_node);
}

/* A host was looked up, perhaps in vain. */
static void
http_take_host(ResolveHost *host, CURLcode code)
{
	const char *error = resolve_ended(host, code, http_now_ms());
	dlist_head *waiting = resolve_waiting(host);

	while (!dlist_is_empty(waiting))
	{
		HttpTransfer *transfer =
			dlist_container(HttpTransfer, waiting_node,
							dlist_pop_head_node(waiting));

		Assert(transfer->active && transfer->waiting);
		transfer->waiting = false;
		if (error == NULL)
		{
			http_connect(transfer, resolve_addresses(host, http_now_ms()));
			continue;
		}
		strlcpy(transfer->curl_error, error, sizeof(transfer->curl_error));
		http_finish(transfer, CURLE_COULDNT_RESOLVE_HOST);
	}
}

void
http_submit(const HttpRequest *request)
{
	HttpTransfer *transfer;
	const char *wrong;

	if (dlist_is_empty(&http.idle))
		elog(ERROR, "more than %d HTTP requests in flight", HTTP_IN_FLIGHT_MAX);
	transfer = dlist_head_element(HttpTransfer, node, &http.idle);
	Assert(!transfer->active && !transfer->headers && !transfer->addresses);
	if (transfer->easy == NULL)
		transfer->easy = curl_easy_init();
	if (transfer->easy == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	http_set_up_easy(transfer, transfer->easy);

	transfer->submitted_ms = http_now_ms();
	transfer->timeout_ms = request->timeout_ms;
	transfer->request_bytes = request->body_length;
	memset(&transfer->response, 0, sizeof(HttpResponse));
	transfer->response.tag = request->tag;

	wrong = request->wrong ? request->wrong : http_prepare(transfer, request);
	dlist_delete(&transfer->node);
	if (wrong == NULL)
		http_begin(transfer, resolve_find(request->url,
										  transfer->submitted_ms));
	else
	{
		http_set_error(&transfer->response, wrong);
		dlist_push_tail(&http.done, &transfer->node);
	}
	http.in_flight++;
}

void
http_shorten(const void *tag, int left_ms)
{
	for (int i = 0; i < HTTP_IN_FLIGHT_MAX; i++)
	{
		HttpTransfer *transfer = &http.transfers[i];
		int64		timeout_ms;

		if (!transfer->active || transfer->response.tag != tag)
			continue;
		timeout_ms = http_elapsed_ms(transfer) + left_ms;
		transfer->timeout_ms = (int) Min(transfer->timeout_ms, timeout_ms);
		http_note_deadline(transfer);
	}
}

/*
 * Did the connection break?
 */
static bool
http_has_broken(const HttpTransfer *transfer, CURLcode code)
{
	return !transfer->flooded &&
		(code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR ||
		 code == CURLE_GOT_NOTHING);
}

/*
 * Was the request answered?  An answer that we ended because its body is too
 * long counts, since its status had arrived.  One that broke off or timed out
 * does not, since the rest is not known.  The exception is an error: a server
 * that does not read the whole request may break the connection right after its
 * answer (RFC 9112, section 9.6).  A status that libcurl has parsed from
 * something else than digits does not count.
 */
static bool
http_was_answered(const HttpTransfer *transfer, CURLcode code, long status)
{
	if (status < HTTP_STATUS_MIN || status > HTTP_STATUS_MAX)
		return false;
	return code == CURLE_OK ||
		(status >= HTTP_STATUS_ERROR_MIN && http_has_broken(transfer, code)) ||
		(code == CURLE_WRITE_ERROR &&
		 transfer->body_bytes > HTTP_BODY_BYTES_MAX);
}

/*
 * Did the connection break before the whole request was sent?
 */
static bool
http_was_cut_short(const HttpTransfer *transfer, CURLcode code)
{
	curl_off_t	sent = 0;

	curl_easy_getinfo(transfer->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
	return transfer->connected && http_has_broken(transfer, code) &&
		sent < (curl_off_t) transfer->request_bytes;
}

/*
 * Returns why a request failed after it was connected.  libcurl's own message
 * is not used: it may quote the answer, even one to another request over the
 * same connection, and the answer may contain the event.
 */
static const char *
http_failure(CURLcode code)
{
	switch (code)
	{
		case CURLE_OK:
			return "the answer has no status";
		case CURLE_UNSUPPORTED_PROTOCOL:
			return "the answer is not HTTP";
		case CURLE_OUT_OF_MEMORY:
			/* libcurl also reports this for a header of more than 100 kB. */
			return "a header of the answer is too long, or memory is short";
		default:
			return curl_easy_strerror(code);
	}
}

/* Sets the reason why the request was not answered. */
static void
http_explain(HttpTransfer *transfer, CURLcode code)
{
	HttpResponse *response = &transfer->response;

	if (transfer->refused[0] != '\0' && !transfer->connecting)
		snprintf(response->error, sizeof(response->error),
				 "address %s is not allowed by idempotency.webhook_allowed_networks",
				 transfer->refused);
	else if (transfer->flooded)
		snprintf(response->error, sizeof(response->error),
				 "the answer is longer than %d bytes", SOCKETS_BYTES_MAX);
	else if (transfer->header_bytes > HTTP_HEADER_BYTES_MAX)
		snprintf(response->error, sizeof(response->error),
				 "the headers of the answer are longer than %d bytes",
				 HTTP_HEADER_BYTES_MAX);
	else if (transfer->waiting)
		http_set_error(response, "timeout while looking up the host");
	else if (transfer->overdue && !transfer->connected)
		http_set_error(response, "timeout while connecting");
	else if (transfer->connected || transfer->curl_error[0] == '\0')
		http_set_error(response, http_failure(code));
	else
		http_set_error(response, transfer->curl_error);
}

/* Turns a transfer that libcurl has finished into an answer. */
static void
http_finish(HttpTransfer *transfer, CURLcode code)
{
	HttpResponse *response = &transfer->response;
	CURL	   *easy = transfer->easy;
	long		status = 0;
	curl_off_t	retry_after_s = 0;
	bool		answered;

	Assert(transfer->active && easy != NULL);

	curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after_s);
	answered = http_was_answered(transfer, code, status);
	response->cut_short = !answered && http_was_cut_short(transfer, code);
	response->timed_out = !answered && code == CURLE_OPERATION_TIMEDOUT;

	if (transfer->waiting)
		dlist_delete(&transfer->waiting_node);
	http_check_multi(curl_multi_remove_handle(http.multi, easy));
	transfer->active = false;

	response->duration_ms = (int) Min(http_elapsed_ms(transfer), INT_MAX);
	if (answered)
	{
		response->status = (int) status;
		response->retry_after_s = (int) Min(Max(retry_after_s, 0), INT_MAX);
	}
	else
		http_explain(transfer, code);
	dlist_push_tail(&http.done, &transfer->node);
}

/*
 * Ends the requests whose time is over, some at a time.  The first call that
 * finds one does not end it, since http_drive() may have read only a part of
 * what has arrived.
 */
static void
http_finish_overdue(void)
{
	int64		now_ms = http_now_ms();
	int			ended = 0;

	if (now_ms < http.deadline_ms)
		return;
	http.deadline_ms = PG_INT64_MAX;
	for (int i = 0; i < HTTP_IN_FLIGHT_MAX; i++)
	{
		HttpTransfer *transfer = &http.transfers[i];
		int64		deadline_ms = http_deadline_ms(transfer);

		if (!transfer->active)
			continue;
		if (deadline_ms <= now_ms && transfer->overdue &&
			ended < HTTP_OVERDUE_SLICE)
		{
			http_finish(transfer, CURLE_OPERATION_TIMEDOUT);
			ended++;
			continue;
		}
		transfer->overdue = deadline_ms <= now_ms;
		http.deadline_ms = Min(http.deadline_ms, Max(deadline_ms, now_ms));
	}
}

/* Marks a request over whose connection too much has come. */
static void
http_note_flood(HttpTransfer *transfer)
{
	if (transfer == NULL)
		return;
	transfer->flooded = true;
	http.flooded = true;
}

/*
 * Ends the requests that were marked, unless they were answered.  Their
 * connection is not used again.
 */
static void
http_finish_flooded(void)
{
	if (!http.flooded)
		return;
	http.flooded = false;
	for (int i = 0; i < HTTP_IN_FLIGHT_MAX; i++)
	{
		HttpTransfer *transfer = &http.transfers[i];

		if (!transfer->active || !transfer->flooded)
			continue;
		http_set(transfer->easy, CURLOPT_FORBID_REUSE, 1L);
		http_finish(transfer, CURLE_RECV_ERROR);
	}
}

/* Lets libcurl handle its timer. */
static CURLMcode
http_drive_timer(void)
{
	int			running;

	if (http.timer_due_ms < 0 || http.timer_due_ms > http_now_ms())
		return CURLM_OK;
	http.timer_due_ms = -1;
	return curl_multi_socket_action(http.multi, CURL_SOCKET_TIMEOUT, 0,
									&running);
}

/*
 * Lets libcurl handle the ready sockets and its timer.  New requests wait for
 * the timer, so it does not come only after all sockets.
 */
static CURLMcode
http_drive(void)
{
	struct epoll_event events[HTTP_EVENTS_MAX];
	CURLMcode	code = CURLM_OK;
	int			running;
	int			count;

	count = sockets_ready(events, HTTP_EVENTS_MAX);
	for (int i = 0; i < count && code == CURLM_OK; i++)
	{
		int			ready = 0;

		if (events[i].events & EPOLLIN)
			ready |= CURL_CSELECT_IN;
		if (events[i].events & EPOLLOUT)
			ready |= CURL_CSELECT_OUT;
		if (events[i].events & (EPOLLERR | EPOLLHUP))
			ready |= CURL_CSELECT_ERR;
		code = curl_multi_socket_action(http.multi, events[i].data.fd,
										ready, &running);
		http_note_flood(sockets_flooded(events[i].data.fd));
		if (code == CURLM_OK && (i + 1) % HTTP_EVENTS_SLICE == 0)
			code = http_drive_timer();
	}
	return code == CURLM_OK ? http_drive_timer() : code;
}

void
http_work(void)
{
	sigset_t	all;
	sigset_t	before;
	CURLMcode	code;
	CURLMsg    *message;
	int			left;

	Assert(http.multi != NULL);

	/* Threads of libcurl inherit the mask. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	code = http_drive();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	http_check_multi(code);

	while ((message = curl_multi_info_read(http.multi, &left)) != NULL)
	{
		CURLcode	result = message->data.result;
		HttpTransfer *transfer = http_transfer_of(message->easy_handle);
		ResolveHost *host = NULL;

		Assert(message->msg == CURLMSG_DONE);
		if (transfer != NULL)
			http_finish(transfer, result);
		else
		{
			curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &host);
			http_take_host(host, result);
		}
	}
	http_finish_flooded();
	http_finish_overdue();
}

bool
http_next_response(HttpResponse *response)
{
	HttpTransfer *transfer;

	if (dlist_is_empty(&http.done))
		return false;

	transfer = dlist_container(HttpTransfer, node,
							   dlist_pop_head_node(&http.done));
	Assert(!transfer->active);
	Assert(http.in_flight > 0);
	*response = transfer->response;

	curl_easy_cleanup(transfer->easy);
	transfer->easy = NULL;
	http_free_lists(transfer);
	dlist_push_head(&http.idle, &transfer->node);
	http.in_flight--;
	return true;
}
