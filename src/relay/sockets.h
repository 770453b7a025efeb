/*
 * sockets.h
 *		The sockets that libcurl waits for, in an epoll descriptor, and how much
 *		has arrived over each.
 */
#ifndef RELAY_SOCKETS_H
#define RELAY_SOCKETS_H

#include <sys/epoll.h>

/* What may arrive over a connection while a request uses it. */
#define SOCKETS_BYTES_MAX (256 * 1024)

/* Creates the descriptor. */
extern void sockets_start(void);

/* Closes the descriptor, and forgets all sockets. */
extern void sockets_stop(void);

/* Returns the descriptor, which is readable when a socket is ready. */
extern int	sockets_fd(void);

/*
 * The socket of a connection was opened, or is about to be closed.
 * sockets_opened returns false if memory is short.  These three are called by
 * libcurl's callbacks and raise no errors.
 */
extern bool sockets_opened(int fd, bool tls);
extern void sockets_closed(int fd);

/*
 * libcurl waits for these events of a socket for this user, or (0) for none any
 * more.
 */
extern bool sockets_wait_for(int fd, uint32 events, void *user);

/*
 * Called after each read; returns the user of a connection over which more has
 * arrived than may, or NULL.
 */
extern void *sockets_flooded(int fd);

/* Returns at most max sockets that are ready now and waited for. */
extern int	sockets_ready(struct epoll_event *events, int max);

#endif							/* RELAY_SOCKETS_H */
