/*
 * sockets.c
 *		The sockets that libcurl waits for, in an epoll descriptor.
 *
 * When a request has ended, libcurl does not wait for its connection any more,
 * and with the next request it waits for it again.  To tell the kernel each
 * time costs a sixth of what a request costs in all.  So a connection stays in
 * the descriptor, and is taken out if it is ready while nobody waits for it:
 * when its peer has closed it.
 *
 * Other sockets, which libcurl uses to resolve names, it closes without telling
 * us.  So those are taken out at once.  Before 8.2.0 the same holds for a
 * socket that has never been connected.
 */
#include "postgres.h"

#include <unistd.h>

#include "relay/sockets.h"

typedef struct Socket
{
	bool		connection;
	uint32		wanted;			/* events that libcurl waits for */
	uint32		polled;			/* events that the kernel waits for */
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
sockets_opened(int fd)
{
	if (fd >= sockets_size && !sockets_grow(fd))
		return false;
	sockets[fd] = (Socket)
	{
		.connection = true
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

bool
sockets_wait_for(int fd, uint32 events)
{
	Socket	   *connection = sockets_connection(fd);

	/* One that does not connect may be closed, and its number used again. */
	if (events == 0 && connection != NULL && connection->polled == EPOLLOUT)
	{
		sockets_closed(fd);
		connection = NULL;
	}
	if (connection != NULL)
		connection->wanted = events;
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
	}
	return count;
}
