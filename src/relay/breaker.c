/*
 * breaker.c
 *		When an endpoint counts as failing, and how it is tried then.
 *
 * An endpoint fails as a whole when events fail one after another with no
 * success in between.  One that answers that it cannot take an event, by 422
 * for example, works.  Only first attempts count, so that a few events that it
 * will never take, and that come again and again, do not add up to that.
 * Then nothing is read for it, which would only turn the log into rows that
 * wait; a probe goes out from time to time, and the first success ends it.
 *
 * Apart from that, the number of requests in flight follows what the endpoint
 * can do: one more with each success, half as many when it does not answer or
 * asks for less.  So one that hangs does not take all the places there are.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "relay/breaker.h"

void
breaker_init(Breaker *breaker)
{
	memset(breaker, 0, sizeof(*breaker));
	breaker->window = BREAKER_WINDOW_START;
}

void
breaker_works(Breaker *breaker)
{
	breaker->failures = 0;
	breaker->trip_wanted = false;
	breaker->reset_wanted = breaker->open;
}

void
breaker_success(Breaker *breaker, int max_in_flight)
{
	breaker->window = Min(breaker->window + 1, max_in_flight);
	breaker_works(breaker);
}

void
breaker_failure(Breaker *breaker, bool first_attempt, bool overloaded,
				int retry_after_s, TimestampTz now)
{
	TimestampTz asked = TimestampTzPlusMilliseconds(now,
													(int64) Min(retry_after_s, BREAKER_PROBE_MAX_MS / 1000) * 1000);

	if (overloaded)
		breaker->window = Max(breaker->window / 2, BREAKER_WINDOW_MIN);
	if (breaker->open)
		breaker->probe.until = Max(breaker->probe.until, asked);
	else if (first_attempt)
		breaker->failures++;
	breaker->trip_wanted = !breaker->open && breaker->failures >= BREAKER_FAILURES;
}

void
breaker_set(Breaker *breaker, bool open, TimestampTz now)
{
	breaker->trip_wanted &= !open;
	breaker->reset_wanted &= open;
	if (breaker->open == open)
		return;
	breaker->open = open;
	breaker->failures = 0;
	breaker->probe_new = breaker->idle = false;
	breaker_hurry(breaker, now);
}

void
breaker_hurry(Breaker *breaker, TimestampTz now)
{
	breaker->probe = (Backoff) {0};
	backoff_fail(&breaker->probe, BREAKER_PROBE_MIN_MS, BREAKER_PROBE_MAX_MS, now);
}

void
breaker_probe(Breaker *breaker, TimestampTz now, double jitter)
{
	breaker->probe_new = !breaker->probe_new;
	backoff_fail(&breaker->probe, BREAKER_PROBE_MIN_MS, BREAKER_PROBE_MAX_MS, now);
	breaker->probe.until = TimestampTzPlusMilliseconds(breaker->probe.until,
													   (int64) (0.1 * jitter * breaker->probe.pause_ms));
}
