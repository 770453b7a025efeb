/*
 * place.c
 *		How a relay's requests in flight are shared among the endpoints.
 *
 * A relay has HTTP_IN_FLIGHT_MAX places, one for each request in flight.  Half
 * of them are own places: the first request of an endpoint takes one of these.
 * The other half is a pool for further requests.  An endpoint may take one from
 * the pool while it has fewer of them than are free, multiplied by its
 * priority.
 *
 * So an endpoint that has no request in flight is served at once while fewer
 * than PLACE_OWN others have any, however many of them hang and for how long.
 * Priorities do not change that: they count only for further requests, and
 * these never take an own place.  Since each one that is taken leaves one less,
 * an endpoint stops before the pool is empty.
 *
 * One endpoint alone of priority 1 gets half of the pool, the next one half of
 * the rest, and so on.  If all want more than they get, they end up with shares
 * in the proportion of their priorities: with the priorities p and q, these are
 * p and q of 1 + p + q parts of the pool, and one part stays free.  If more
 * endpoints than PLACE_OWN have requests in flight, the pool serves first
 * requests too.
 */
#include "postgres.h"

#include "relay/http.h"
#include "relay/place.h"

#define PLACE_OWN (HTTP_IN_FLIGHT_MAX / 2)
#define PLACE_POOL (HTTP_IN_FLIGHT_MAX - PLACE_OWN)

int
place_room(const Places *places, int held, int window, int priority)
{
	int			own = Min(places->holders, PLACE_OWN);
	int			pool_free = PLACE_POOL - (places->taken - own);
	int			room = 0;
	int			share;

	if (window <= held)
		return 0;
	if (held == 0)
	{
		if (places->holders >= PLACE_OWN && pool_free-- <= 0)
			return 0;
		room = held = 1;
	}

	/*
	 * Each one that is taken also makes one less free: the number n of them
	 * is the largest so that
	 *
	 * held - 1 + n - 1 < priority * (pool_free - (n - 1)).
	 */
	share = Max(priority * (pool_free + 1) - (held - 1), 0) / (priority + 1);
	return room + Min(share, window - held);
}

double
place_share(const Places *places, int held, int priority)
{
	int			room = place_room(places, held, HTTP_IN_FLIGHT_MAX, priority);

	return (double) (held + room) / HTTP_IN_FLIGHT_MAX;
}

void
place_take(Places *places, int held)
{
	Assert(held >= 0 && places->taken >= places->holders);
	Assert(places->taken < HTTP_IN_FLIGHT_MAX);
	places->holders += held == 0;
	places->taken++;
}

void
place_leave(Places *places, int held)
{
	Assert(held > 0 && places->taken > 0 && places->holders > 0);
	places->holders -= held == 1;
	places->taken--;
}
