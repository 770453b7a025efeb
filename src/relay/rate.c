/*
 * rate.c
 *		How many events a second may be sent to an endpoint.
 *
 * A subscription with a rate_limit has a token bucket in each relay.  Each
 * event that is sent takes a token, also a retry or a probe.  The bucket holds
 * the tokens of one second, and at least one, so after a pause that many events
 * can be sent at once.  It begins with one token: a relay that starts, or gets
 * partitions from another one, sends no burst that the other has sent already.
 *
 * When there are no tokens, the relay sleeps until the next one is due, but not
 * for less than RATE_WAIT_MIN_MS: with a high rate it sends several events each
 * time.
 */
#include "postgres.h"

#include <math.h>

#include "utils/timestamp.h"

#include "relay/rate.h"

/* Sums of fractions may be a little less than a whole token. */
#define RATE_ROUNDING 1e-6

void
rate_fill(Rate *rate, double per_second, TimestampTz now)
{
	double		seconds = (double) (now - rate->filled_at) / USECS_PER_SEC;

	Assert(per_second >= 0);
	if (rate->filled_at == 0)
		rate->tokens = 1;
	else if (seconds > 0)
		rate->tokens += rate->per_second * seconds;
	rate->tokens = Min(rate->tokens, Max(per_second, 1));
	rate->per_second = per_second;
	rate->filled_at = now;
}

int
rate_tokens(const Rate *rate)
{
	return Max((int) (rate->tokens + RATE_ROUNDING), 0);
}

void
rate_take(Rate *rate, int count)
{
	rate->tokens -= count;
}

TimestampTz
rate_next_at(const Rate *rate)
{
	double		wait_ms;

	if (rate->per_second <= 0)
		return 0;
	wait_ms = 1000 * (1 - rate->tokens) / rate->per_second;
	wait_ms = Min(Max(wait_ms, RATE_WAIT_MIN_MS), RATE_WAIT_MAX_MS);
	return TimestampTzPlusMilliseconds(rate->filled_at, (int64) ceil(wait_ms));
}
