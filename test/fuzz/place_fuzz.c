/*
 * place_fuzz.c
 *		An endpoint without a request in flight gets a place while fewer than
 *		half of all places belong to others that have one, and there are never
 *		more requests in flight than places.  If this fails, endpoints that
 *		hang keep others from being served.
 *
 * Input: numbers of 8 bytes, each an endpoint, its window, and whether requests
 * are sent or answered.
 */
#include "postgres.h"

#include "relay/http.h"
#include "relay/place.h"

#include "fuzz.h"

#define ENDPOINTS 1500
#define WINDOW_MAX 2000
#define STEPS_MAX 4000

static Places places;
static int	held[ENDPOINTS];

static void
send_all(int endpoint, int window)
{
	int			room = place_room(&places, held[endpoint], window);

	fuzz_check(room >= 0);
	if (held[endpoint] == 0 && places.holders < HTTP_IN_FLIGHT_MAX / 2)
		fuzz_check(room >= 1);
	for (int i = 0; i < room; i++)
		place_take(&places, held[endpoint]++);
	fuzz_check(room == 0 || held[endpoint] <= window);
	/* At most half of the pool, besides its own place. */
	fuzz_check(room == 0 || held[endpoint] <= HTTP_IN_FLIGHT_MAX / 4 + 2);
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
