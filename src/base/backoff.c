/*
 * backoff.c
 *		Exponential back-off: a pause that doubles with each failure.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/backoff.h"

void
backoff_fail(Backoff *backoff, int min_ms, int max_ms, TimestampTz now)
{
	Assert(min_ms > 0 && min_ms <= max_ms && backoff->pause_ms >= 0);
	backoff->pause_ms = Min(Max(2 * backoff->pause_ms, min_ms), max_ms);
	backoff->until = TimestampTzPlusMilliseconds(now, backoff->pause_ms);
}

void
backoff_reset(Backoff *backoff)
{
	memset(backoff, 0, sizeof(*backoff));
}

TimestampTz
backoff_earlier(TimestampTz one, TimestampTz other)
{
	if (one == 0 || other == 0)
		return Max(one, other);
	return Min(one, other);
}
