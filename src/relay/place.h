/*
 * place.h
 *		How a relay's requests in flight are shared among the endpoints.  Pure
 *		functions, without I/O.
 */
#ifndef RELAY_PLACE_H
#define RELAY_PLACE_H

/* The requests that a relay can have in flight, and the endpoints with any. */
typedef struct Places
{
	int			holders;		/* endpoints with requests in flight */
	int			taken;			/* requests in flight */
} Places;

/*
 * Returns how many more requests may be sent to an endpoint of this priority
 * that has held requests in flight, and may have window.
 */
extern int	place_room(const Places *places, int held, int window,
					   int priority);

/*
 * Returns what part of all places, from 0 to 1, the endpoint may hold now if
 * its window is large enough.
 */
extern double place_share(const Places *places, int held, int priority);

/* An endpoint that has held requests in flight gets one more, or one less. */
extern void place_take(Places *places, int held);
extern void place_leave(Places *places, int held);

#endif							/* RELAY_PLACE_H */
