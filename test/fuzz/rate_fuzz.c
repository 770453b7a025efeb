/*
 * rate_fuzz.c
 *		A bucket never gives more tokens than the rate and one burst allow, and
 *		gives one when it has said that it would.  If this fails, an endpoint
 *		is flooded, or gets fewer events than it could, or none.
 *
 * Input: numbers of 8 bytes, each a rate, a time to wait, and a number of tokens
 * to take.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "relay/rate.h"

#include "fuzz.h"

#define STEPS_MAX 1000
#define RATES 13
#define RATE_MIN 0.00001
#define WAIT_UNITS 100000
#define NOW 800000000000000

/* From RATE_MIN, each ten times the one before; 0 after the last one. */
static double
choose_rate(int number)
{
	double		rate = RATE_MIN;

	if (number == RATES - 1)
		return 0;
	while (number-- > 0)
		rate *= 10;
	return rate;
}

/*
 * A relay that sleeps as long as it is told finds a token.
 */
static void
check_next(Rate rate)
{
	TimestampTz next = rate_next_at(&rate);
	TimestampTz least =
		TimestampTzPlusMilliseconds(rate.filled_at, RATE_WAIT_MIN_MS);
	TimestampTz most =
		TimestampTzPlusMilliseconds(rate.filled_at, RATE_WAIT_MAX_MS);

	if (rate.per_second == 0)
	{
		fuzz_check(next == 0);
		return;
	}
	fuzz_check(next >= least && next <= most);
	rate_fill(&rate, rate.per_second, next);
	fuzz_check(next == most || rate_tokens(&rate) >= 1);
}

void
fuzz_one(void)
{
	Rate		rate = {0};
	TimestampTz now = NOW;
	double		allowed = 1;	/* tokens so far, without the bound of a burst */
	double		per_second = 0;

	for (int i = 0; i < STEPS_MAX; i++)
	{
		uint64		bits = (uint64) fuzz_number();
		TimestampTz wait = bits / 64 % WAIT_UNITS * 1000;
		int			count = (int) (bits / 64 / WAIT_UNITS % 100);

		if (bits == 0)
			break;
		if (i > 0)
			allowed += per_second * wait / USECS_PER_SEC;
		now += wait;
		per_second = choose_rate(bits % RATES);
		rate_fill(&rate, per_second, now);
		count = Min(count, rate_tokens(&rate));
		fuzz_check(rate_tokens(&rate) <= Max(per_second, 1) + 1);
		rate_take(&rate, count);
		allowed -= count;
		fuzz_check(allowed > -0.01);
		if (rate_tokens(&rate) == 0)
			check_next(rate);
	}
}
