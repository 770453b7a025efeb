/*
 * wire.h
 *		Limits what arrives over the connections of HTTP requests.
 */
#ifndef RELAY_WIRE_H
#define RELAY_WIRE_H

/* What may arrive for each request on a connection. */
#define WIRE_BYTES_MAX (256 * 1024)

/* Prepares the calling thread, the only one that calls libcurl. */
extern void wire_start(void);

/*
 * From now on libcurl runs, or it has returned.  While it runs, SIGPROF must
 * not be blocked.
 */
extern void wire_watch(bool libcurl_runs);

/*
 * A socket was opened for a connection, or is being closed.  wire_opened
 * returns false if memory is short.  These two raise no errors.
 */
extern bool wire_opened(int fd);
extern void wire_closed(int fd);

/*
 * A request begins on a connection, which is named by the address and port of
 * its peer and by its own port.  Returns the connection's descriptor, or -1.
 * Raises no errors.
 */
extern int	wire_begin(const char *address, int port, int local_port);

/* The request has ended. */
extern void wire_end(int fd);

/* Called after each read; returns whether more has arrived than may. */
extern bool wire_is_flooded(int fd);

/*
 * Was the connection shut down, because more has arrived than may?  No if there
 * is none (-1).
 */
extern bool wire_is_cut(int fd);

/* Forgets all connections. */
extern void wire_stop(void);

#endif							/* RELAY_WIRE_H */
