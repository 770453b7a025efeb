/*
 * retry_fuzz.c
 *		A delay is at least what the schedule and the endpoint ask for, and at
 *		most a tenth longer, and the breaker stays within its limits.  If this
 *		fails, an endpoint is flooded, or not tried for a long time.
 *
 * Input: numbers of 8 bytes: max_in_flight, the schedule's length, its delays,
 * then one for each answer of the endpoint.
 */
#include "postgres.h"

#include <limits.h>

#include "utils/timestamp.h"

#include "relay/breaker.h"
#include "relay/retry.h"

#include "fuzz.h"

#define DAY_S (24 * 60 * 60)
#define DELAY_MAX_MS (366 * (int64) DAY_S * 1000)	/* of a schedule */
#define SCHEDULE_MAX 100
#define ANSWERS_MAX 200
#define IN_FLIGHT_MAX 1000
#define NOW 800000000000000

/* A number below count, chosen by the bits. */
static uint64
choose(uint64 *bits, uint64 count)
{
	uint64		chosen = *bits % count;

	*bits /= count;
	return chosen;
}

static void
check_delay(const int64 *schedule_ms, int count, int attempts,
			int retry_after_s, double jitter)
{
	int64		delay_ms = retry_delay_ms(schedule_ms, count, attempts,
										  retry_after_s, jitter);
	int64		asked_ms = (int64) retry_after_s * 1000;
	int64		least_ms;

	fuzz_check((delay_ms == -1) == (attempts >= count));
	if (delay_ms == -1)
		return;
	if (asked_ms > (int64) DAY_S * 1000)
		asked_ms = (int64) DAY_S * 1000;
	least_ms = schedule_ms[attempts] > asked_ms ? schedule_ms[attempts] : asked_ms;
	fuzz_check(delay_ms >= least_ms);
	fuzz_check(delay_ms <= least_ms + least_ms / 10 + 1);
}

static void
check_breaker(const Breaker *breaker, int max_in_flight, TimestampTz now)
{
	fuzz_check(breaker->window >= 1);
	fuzz_check(breaker->window <= Max(max_in_flight, BREAKER_WINDOW_START));
	fuzz_check(breaker->failures >= 0 && breaker->failures <= BREAKER_FAILURES);
	for (int i = 1; i < breaker->failures; i++)
		fuzz_check(breaker->failed[i] != breaker->failed[i - 1]);
	fuzz_check(breaker->asked_until <=
			   TimestampTzPlusMilliseconds(now, BREAKER_PROBE_MAX_MS));
	fuzz_check(breaker->probe_asked_until <=
			   TimestampTzPlusMilliseconds(now, BREAKER_PROBE_MAX_MS));
	fuzz_check(breaker_probe_at(breaker) >= breaker->asked_until);
	fuzz_check(breaker_probe_at(breaker) >= breaker->probe_asked_until);
	fuzz_check(!(breaker->open && breaker->trip_wanted));
	fuzz_check(!(!breaker->open && breaker->reset_wanted));
	if (breaker->open)
	{
		fuzz_check(breaker->probe.pause_ms >= BREAKER_PROBE_MIN_MS);
		fuzz_check(breaker->probe.pause_ms <= BREAKER_PROBE_MAX_MS);
		fuzz_check(breaker->probe.until <=
				   TimestampTzPlusMilliseconds(now, (int64) BREAKER_PROBE_MAX_MS * 11 / 10));
	}
}

static void
answer(Breaker *breaker, uint64 bits, int max_in_flight, TimestampTz now)
{
	uint64		what = choose(&bits, 6);
	int			statuses[] = {0, 401, 429, 500, 503};
	int			status = statuses[choose(&bits, lengthof(statuses))];
	int64		position = 1 + choose(&bits, 2 * BREAKER_FAILURES);

	if (what == 0)
		breaker_success(breaker, max_in_flight);
	else if (what == 1)
		breaker_works(breaker);
	else if (what == 2)
		breaker_set(breaker, status == 0, now);
	else if (what == 3)
		breaker_forget(breaker, now);
	else if (what == 4)
		breaker_probe(breaker, now, choose(&bits, 1001) / 1000.0);
	else
		breaker_failure(breaker, position, status, (int) (bits & INT_MAX), now);
}

void
fuzz_one(void)
{
	int			max_in_flight = 1 + (uint64) fuzz_number() % IN_FLIGHT_MAX;
	int			count = 1 + (uint64) fuzz_number() % SCHEDULE_MAX;
	int64		schedule_ms[SCHEDULE_MAX];
	Breaker		breaker;
	TimestampTz now = NOW;

	for (int i = 0; i < count; i++)
		schedule_ms[i] = (uint64) fuzz_number() % (DELAY_MAX_MS + 1);
	breaker_init(&breaker);
	for (int i = 0; i < ANSWERS_MAX; i++)
	{
		uint64		bits = (uint64) fuzz_number();
		uint64		rest = bits;
		int			attempts = (int) choose(&rest, SCHEDULE_MAX + 2);
		double		jitter = choose(&rest, 1001) / 1000.0;

		if (bits == 0)
			break;
		check_delay(schedule_ms, count, attempts, (int) (rest & INT_MAX), jitter);
		now += (int64) choose(&rest, 1000) * 1000;
		answer(&breaker, bits, max_in_flight, now);
		check_breaker(&breaker, max_in_flight, now);
	}
}
