/*
 * sockets.c
 *		The sockets that libcurl waits for, in an epoll descriptor, and how much
 *		has arrived over each.
 *
 * When a request has ended, libcurl does not wait for its connection any more,
 * and with the next request it waits for it again.  To tell the kernel each
 * time costs a sixth of what a request costs in all.  So a connection stays in
 * the descriptor.  If it is ready while nobody waits for it, its peer has
 * closed it, or has sent something that no request has asked for, which libcurl
 * would take for the answer to the next one.  So it is shut down.  libcurl
 * notices that before it uses a connection again.
 *
 * Other sockets, which libcurl uses to resolve names, it closes without telling
 * us.  So those are taken out at once.  Before 8.2.0 the same holds for a
 * socket that has never been connected.
 *
 * http.c counts the headers and the body of an answer.  Other bytes reach none
 * of libcurl's callbacks: the extensions of chunks, and records of TLS.  An
 * endpoint that sends such bytes without end would keep the relay busy, and a
 * network too.  So after some reads we look how many bytes the kernel has
 * received on the connection.
 *
 * libcurl's callbacks call these functions, so they raise no errors, and use
 * malloc() instead of palloc().
 */
#include "postgres.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay/sockets.h"

/* Reads of a connection between two looks at what it has received. */
#define SOCKETS_READS 4
/* Room for what a peer usually sends before it closes a connection. */
#define SOCKETS_UNASKED_BYTES 4096

typedef struct Socket
{
	bool		connection;
	bool		tls;
	uint32		wanted;			/* events that libcurl waits for */
	uint32		polled;			/* events that the kernel waits for */
	void	   *user;			/* the request that uses it, if wanted */
	int			reads;			/* by that, since the last look */
	uint64		limit;			/* what may have been received in all */
} Socket;

static int	epoll_fd = -1;

/* Of connections, by descriptor. */
static Socket *sockets = NULL;
static int	sockets_size = 0;

void
sockets_start(void)
{
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		ereport(ERROR,
				(errcode_for_socket_access(),
				 errmsg("could not create an epoll descriptor: %m")));
}

void
sockets_stop(void)
{
	(void) close(epoll_fd);
	epoll_fd = -1;
	free(sockets);
	sockets = NULL;
	sockets_size = 0;
}

int
sockets_fd(void)
{
	return epoll_fd;
}

static bool
sockets_grow(int fd)
{
	int			size = Max(2 * sockets_size, fd + 64);
	Socket	   *larger = realloc(sockets, size * sizeof(Socket));

	if (larger == NULL)
		return false;
	memset(&larger[sockets_size], 0, (size - sockets_size) * sizeof(Socket));
	sockets = larger;
	sockets_size = size;
	return true;
}

bool
sockets_opened(int fd, bool tls)
{
	if (fd >= sockets_size && !sockets_grow(fd))
		return false;
	sockets[fd] = (Socket)
	{
		.connection = true,
			.tls = tls
	};
	return true;
}

void
sockets_closed(int fd)
{
	if (fd < sockets_size)
		sockets[fd].connection = false;
}

/*
 * Returns a connection, or NULL if it is another socket.
 */
static Socket *
sockets_connection(int fd)
{
	return fd < sockets_size && sockets[fd].connection ? &sockets[fd] : NULL;
}

/*
 * A socket that was closed has disappeared from the descriptor by itself, and
 * its number may be in use again.
 */
static bool
sockets_poll(int fd, uint32 events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ||
		(errno == EEXIST &&
		 epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event) == 0);
}

static void
sockets_take_out(int fd)
{
	struct epoll_event event = {0};

	(void) epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event);
}

/*
 * Returns how many bytes have been received on a connection.
 */
static uint64
sockets_received(int fd)
{
	struct tcp_info info = {0};
	socklen_t	length = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return 0;
	return info.tcpi_bytes_received;
}

/*
 * A request begins to use a connection.
 */
static void
sockets_begin(int fd, Socket *connection, void *user)
{
	connection->user = user;
	connection->reads = 0;
	connection->limit = sockets_received(fd) + SOCKETS_BYTES_MAX;
}

void *
sockets_flooded(int fd)
{
	Socket	   *connection = sockets_connection(fd);

	if (connection == NULL || connection->wanted == 0 ||
		++connection->reads < SOCKETS_READS)
		return NULL;
	connection->reads = 0;
	return sockets_received(fd) > connection->limit ? connection->user : NULL;
}

bool
sockets_wait_for(int fd, uint32 events, void *user)
{
	Socket	   *connection = sockets_connection(fd);

	/* One that does not connect may be closed, and its number used again. */
	if (events == 0 && connection != NULL && connection->polled == EPOLLOUT)
	{
		sockets_closed(fd);
		connection = NULL;
	}
	if (connection != NULL)
	{
		if (connection->wanted == 0 && events != 0)
			sockets_begin(fd, connection, user);
		connection->wanted = events;
	}
	if (events == 0 && connection == NULL)
		sockets_take_out(fd);
	if (events == 0 || (connection != NULL && connection->polled == events))
		return true;
	if (!sockets_poll(fd, events))
		return false;
	if (connection != NULL)
		connection->polled = events;
	return true;
}

/*
 * Makes libcurl notice that a connection cannot be used any more.  Over TLS it
 * looks for the end of what can be read, and then says that it closes the
 * connection: if that failed, the next request would be told so as its error.
 */
static void
sockets_shut_down(int fd, bool tls)
{
	char		unasked[SOCKETS_UNASKED_BYTES];

	if (tls && recv(fd, unasked, sizeof(unasked), MSG_DONTWAIT) <
		(ssize_t) sizeof(unasked))
		(void) shutdown(fd, SHUT_RD);
	else
		(void) shutdown(fd, SHUT_RDWR);
}

int
sockets_ready(struct epoll_event *events, int max)
{
	int			found = epoll_wait(epoll_fd, events, max, 0);
	int			count = 0;

	for (int i = 0; i < found; i++)
	{
		Socket	   *connection = sockets_connection(events[i].data.fd);

		if (connection == NULL || connection->wanted != 0)
		{
			events[count++] = events[i];
			continue;
		}
		sockets_take_out(events[i].data.fd);
		connection->polled = 0;
		sockets_shut_down(events[i].data.fd, connection->tls);
	}
	return count;
}
