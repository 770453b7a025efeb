/*
 * place.c
 *		How a relay's requests in flight are shared among the endpoints.
 *
 * A relay has HTTP_IN_FLIGHT_MAX places, one for each request in flight.  Half
 * of them are own places: the first request of an endpoint takes one of these.
 * The other half is a pool for further requests.  An endpoint may take one from
 * the pool while it has fewer of them than are free.
 *
 * So an endpoint that has no request in flight is served at once while fewer
 * than PLACE_OWN others have any, however many of them hang and for how long.
 * One endpoint alone gets half of the pool, the next one half of the rest, and
 * so on.  If more endpoints than PLACE_OWN have requests in flight, the pool
 * serves first requests too.
 */
#include "postgres.h"

#include "relay/http.h"
#include "relay/place.h"

#define PLACE_OWN (HTTP_IN_FLIGHT_MAX / 2)
#define PLACE_POOL (HTTP_IN_FLIGHT_MAX - PLACE_OWN)

int
place_room(const Places *places, int held, int window)
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
	/* Each one that is taken also makes one less free. */
	share = Max(pool_free - (held - 1) + 1, 0) / 2;
	return room + Min(share, window - held);
}

void
place_take(Places *places, int held)
{
	places->holders += held == 0;
	places->taken++;
}

void
place_leave(Places *places, int held)
{
	places->holders -= held == 1;
	places->taken--;
}
