/*
 * place_fuzz.c
 *		An endpoint without a request in flight gets a place while fewer than
 *		half of all places belong to others that have one, and there are never
 *		more requests in flight than places.  If this fails, endpoints that
 *		hang keep others from being served.
 *
 * An endpoint gets further requests until it has as many as are free in the
 * pool, multiplied by its priority.
 *
 * Input: numbers of 8 bytes, each an endpoint, its window, and whether requests
 * are sent or answered.  The priority follows from the number of the endpoint.
 */
#include "postgres.h"

#include "relay/http.h"
#include "relay/place.h"

#include "fuzz.h"

#define ENDPOINTS 1500
#define WINDOW_MAX 2000
#define STEPS_MAX 4000
#define POOL (HTTP_IN_FLIGHT_MAX / 2)

static Places places;
static int	held[ENDPOINTS];

static int
priority_of(int endpoint)
{
	return endpoint % 2 == 0 ? 1 : 1 + endpoint % 100;
}

static int
pool_free(void)
{
	int			own = Min(places.holders, HTTP_IN_FLIGHT_MAX - POOL);

	return POOL - (places.taken - own);
}

static void
send_all(int endpoint, int window)
{
	int			priority = priority_of(endpoint);
	int			before = held[endpoint];
	int			room = place_room(&places, before, window, priority);
	double		share = place_share(&places, before, priority);

	fuzz_check(room >= 0);
	fuzz_check(share >= 0 && share <= 1);
	fuzz_check(before + room <= share * HTTP_IN_FLIGHT_MAX + 0.001);
	if (held[endpoint] == 0 && places.holders < HTTP_IN_FLIGHT_MAX / 2)
		fuzz_check(room >= 1);
	for (int i = 0; i < room; i++)
		place_take(&places, held[endpoint]++);
	fuzz_check(room == 0 || held[endpoint] <= window);
	/* At most its part of the pool, besides its own place. */
	fuzz_check(room == 0 || held[endpoint] <=
			   POOL * priority / (priority + 1) + 2);
	/* No more than the pool allows, and no fewer. */
	fuzz_check(held[endpoint] < 2 || room == 0 ||
			   held[endpoint] - 2 < priority * (pool_free() + 1));
	if (held[endpoint] > 0 && held[endpoint] < window)
		fuzz_check(held[endpoint] - 1 >= priority * pool_free());
}

static void
answer(int endpoint, int count)
{
	while (count-- > 0 && held[endpoint] > 0)
		place_leave(&places, held[endpoint]--);
}

static void
check_sums(void)
{
	int			holders = 0;
	int			taken = 0;

	for (int i = 0; i < ENDPOINTS; i++)
	{
		holders += held[i] > 0;
		taken += held[i];
	}
	fuzz_check(holders == places.holders && taken == places.taken);
	fuzz_check(taken <= HTTP_IN_FLIGHT_MAX);
}

void
fuzz_one(void)
{
	memset(&places, 0, sizeof(places));
	memset(held, 0, sizeof(held));
	for (int i = 0; i < STEPS_MAX; i++)
	{
		uint64		bits = (uint64) fuzz_number();
		int			endpoint = bits / 4 % ENDPOINTS;
		int			number = 1 + bits / 4 / ENDPOINTS % WINDOW_MAX;

		if (bits == 0)
			break;
		/* Many endpoints of one kind, so that few bytes make a crowd. */
		for (int k = 0; k < (bits % 4 == 0 ? 64 : 1); k++)
		{
			if (bits % 4 == 1)
				answer(endpoint, number);
			else
				send_all((endpoint + k) % ENDPOINTS, number);
		}
		check_sums();
	}
}
