/*
 * sockets.h
 *		The sockets that libcurl waits for, in an epoll descriptor.
 */
#ifndef RELAY_SOCKETS_H
#define RELAY_SOCKETS_H

#include <sys/epoll.h>

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
extern bool sockets_opened(int fd);
extern void sockets_closed(int fd);

/* libcurl waits for these events of a socket, or (0) for none any more. */
extern bool sockets_wait_for(int fd, uint32 events);

/* Returns at most max sockets that are ready now and waited for. */
extern int	sockets_ready(struct epoll_event *events, int max);

#endif							/* RELAY_SOCKETS_H */
