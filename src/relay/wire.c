/*
 * wire.c
 *		Limits what arrives over the connections of HTTP requests.
 *
 * http.c counts the headers and the body of an answer.  Other bytes reach none
 * of libcurl's callbacks: the extensions of chunks, frames of HTTP/2 and
 * records of TLS.  An endpoint that sends such bytes without end would keep the
 * relay busy, and a network too.  So http.c asks here, after some reads, how
 * many bytes the kernel has received on the connection.  That count includes
 * everything.
 *
 * A call of libcurl can also read without end: 7.88 does not return while
 * frames of HTTP/2 come that have no data for it.  So a timer looks while
 * libcurl runs, and shuts down the connections on which too much has arrived,
 * which libcurl then takes for ended.
 *
 * Each request on a connection adds WIRE_BYTES_MAX to what may arrive.  When a
 * request ends, what it has left expires, so a connection that has served many
 * requests may not send more than a new one.
 *
 * libcurl's callbacks call these functions, so they raise no errors, and use
 * malloc() instead of palloc().
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "relay/wire.h"

/* Reads of a connection between two looks at its count. */
#define WIRE_READS 4
/* Time of the processor that libcurl gets between two looks of the timer. */
#define WIRE_WATCH_US 10000

typedef struct WireConnection
{
	bool		open;
	int			local_port;		/* 0: not known yet */
	int			peer_port;		/* the same */
	char		peer[INET6_ADDRSTRLEN]; /* its address */
	bool		used;			/* by a request */
	int			requests;		/* in flight on it */
	int			reads;			/* since the last look */
	uint64		limit;			/* what may arrive in all */
	bool		cut;			/* more has arrived, so it was shut down */
} WireConnection;

typedef union WireName
{
	struct sockaddr any;
	struct sockaddr_in ip4;
	struct sockaddr_in6 ip6;
} WireName;

/* By descriptor. */
static WireConnection *connections = NULL;
static int	connections_size = 0;

/* The thread that calls libcurl. */
static pthread_t wire_thread;

/* May the timer read the table now? */
static volatile sig_atomic_t wire_readable = true;

/*
 * Returns how many bytes have been received on a connection.
 */
static uint64
wire_received(int fd)
{
	struct tcp_info info = {0};
	socklen_t	length = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return 0;
	return info.tcpi_bytes_received;
}

/*
 * Called by the timer's signal.  Threads of libcurl that resolve names may get
 * the signal, too.
 */
static void
wire_look(pg_attribute_unused() int signal_number)
{
	int			errno_before = errno;

	if (!wire_readable || !pthread_equal(pthread_self(), wire_thread))
		return;
	for (int fd = 0; fd < connections_size; fd++)
	{
		WireConnection *connection = &connections[fd];

		if (!connection->open || wire_received(fd) <= connection->limit)
			continue;
		connection->cut = true;
		(void) shutdown(fd, SHUT_RDWR);
	}
	errno = errno_before;
}

void
wire_start(void)
{
	struct sigaction action = {.sa_handler = wire_look, .sa_flags = SA_RESTART};

	wire_thread = pthread_self();
	sigemptyset(&action.sa_mask);
	(void) sigaction(SIGPROF, &action, NULL);
}

void
wire_watch(bool libcurl_runs)
{
	suseconds_t us = libcurl_runs ? WIRE_WATCH_US : 0;
	struct itimerval timer = {
		.it_interval.tv_usec = us,
		.it_value.tv_usec = us
	};

	(void) setitimer(ITIMER_PROF, &timer, NULL);
}

/*
 * Makes room for connections up to a descriptor.
 */
static bool
wire_grow(int fd)
{
	int			size = Max(2 * connections_size, fd + 64);
	WireConnection *larger;

	wire_readable = false;
	larger = realloc(connections, size * sizeof(WireConnection));
	if (larger != NULL)
	{
		memset(&larger[connections_size], 0,
			   (size - connections_size) * sizeof(WireConnection));
		connections = larger;
		connections_size = size;
	}
	wire_readable = true;
	return larger != NULL;
}

bool
wire_opened(int fd)
{
	if (fd >= connections_size && !wire_grow(fd))
		return false;
	connections[fd] = (WireConnection)
	{
		.open = true,
			.limit = WIRE_BYTES_MAX
	};
	return true;
}

void
wire_closed(int fd)
{
	if (fd < connections_size)
		connections[fd].open = false;
}

static int
wire_port(const WireName *name)
{
	return ntohs(name->any.sa_family == AF_INET6 ? name->ip6.sin6_port :
				 name->ip4.sin_port);
}

static void
wire_note_peer(int fd)
{
	WireConnection *connection = &connections[fd];
	WireName	name;
	socklen_t	length = sizeof(name);
	const void *bytes;

	memset(&name, 0, sizeof(name));
	if (getpeername(fd, &name.any, &length) != 0)
		return;
	if (name.any.sa_family == AF_INET6)
		bytes = &name.ip6.sin6_addr;
	else
		bytes = &name.ip4.sin_addr;
	if (inet_ntop(name.any.sa_family, bytes, connection->peer,
				  sizeof(connection->peer)) != NULL)
		connection->peer_port = wire_port(&name);
}

/*
 * A port of our own can belong to several connections to different peers.
 */
static bool
wire_has_peer(int fd, const char *address, int port)
{
	const WireConnection *connection = &connections[fd];

	if (connection->peer_port == 0)
		wire_note_peer(fd);
	return connection->peer_port == port &&
		strcmp(connection->peer, address) == 0;
}

static int
wire_local_port(int fd)
{
	WireConnection *connection = &connections[fd];
	WireName	name;
	socklen_t	length = sizeof(name);

	memset(&name, 0, sizeof(name));
	if (connection->local_port == 0 && getsockname(fd, &name.any, &length) == 0)
		connection->local_port = wire_port(&name);
	return connection->local_port;
}

static void
wire_begin_on(int fd)
{
	WireConnection *connection = &connections[fd];
	uint64		before = connection->used ? connection->limit :
		wire_received(fd);

	Assert(connection->open && connection->requests >= 0);
	connection->limit = before + WIRE_BYTES_MAX;
	connection->used = true;
	connection->requests++;
	connection->reads = 0;
}

int
wire_begin(const char *address, int port, int local_port)
{
	for (int fd = 0; fd < connections_size; fd++)
	{
		if (!connections[fd].open || wire_local_port(fd) != local_port ||
			!wire_has_peer(fd, address, port))
			continue;
		wire_begin_on(fd);
		return fd;
	}
	return -1;
}

void
wire_end(int fd)
{
	WireConnection *connection = &connections[fd];
	uint64		enough;

	if (!connection->open)
		return;
	Assert(connection->requests > 0);
	connection->requests--;
	enough = wire_received(fd) + connection->requests * WIRE_BYTES_MAX;
	connection->limit = Min(connection->limit, enough);
}

bool
wire_is_cut(int fd)
{
	return fd >= 0 && fd < connections_size && connections[fd].open &&
		connections[fd].cut;
}

bool
wire_is_flooded(int fd)
{
	WireConnection *connection;

	if (fd >= connections_size || !connections[fd].open)
		return false;
	connection = &connections[fd];
	if (connection->cut)
		return true;
	if (++connection->reads < WIRE_READS)
		return false;
	connection->reads = 0;
	return wire_received(fd) > connection->limit;
}

void
wire_stop(void)
{
	wire_readable = false;
	free(connections);
	connections = NULL;
	connections_size = 0;
	wire_readable = true;
}
