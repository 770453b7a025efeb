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
 * Returns how many more requests may be sent to an endpoint that has held
 * requests in flight, and may have window.
 */
extern int	place_room(const Places *places, int held, int window);

/* An endpoint that has held requests in flight gets one more, or one less. */
extern void place_take(Places *places, int held);
extern void place_leave(Places *places, int held);

#endif							/* RELAY_PLACE_H */
