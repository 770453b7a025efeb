/*
 * breaker.c
 *		When an endpoint counts as failing, and how it is probed then.
 *
 * An endpoint fails as a whole when the first attempts of several events fail
 * one after another with no success in between.  An endpoint that refuses an
 * event, by 422 for example, works.  Only first attempts count: a few events
 * that the endpoint never accepts, and that are retried again and again, must
 * not open the breaker.
 *
 * While the breaker is open no chunks are read, which would only turn the log
 * into rows that wait.  A probe is sent from time to time, and the first
 * success closes the breaker.
 *
 * Apart from that, the number of requests in flight follows the endpoint: one
 * more after each success, half as many after no answer, 429 or 503.  So an
 * endpoint that hangs does not take all free transfers.
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
	int64		retry_after_ms = Min((int64) retry_after_s * 1000,
									 BREAKER_PROBE_MAX_MS);
	TimestampTz asked = TimestampTzPlusMilliseconds(now, retry_after_ms);

	if (overloaded)
		breaker->window = Max(breaker->window / 2, BREAKER_WINDOW_MIN);
	if (breaker->open)
		breaker->probe.until = Max(breaker->probe.until, asked);
	else if (first_attempt)
		breaker->failures++;
	breaker->trip_wanted = !breaker->open &&
		breaker->failures >= BREAKER_FAILURES;
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
	backoff_reset(&breaker->probe);
	backoff_fail(&breaker->probe, BREAKER_PROBE_MIN_MS, BREAKER_PROBE_MAX_MS,
				 now);
}

void
breaker_probe(Breaker *breaker, TimestampTz now, double jitter)
{
	int64		jitter_ms;

	breaker->probe_new = !breaker->probe_new;
	backoff_fail(&breaker->probe, BREAKER_PROBE_MIN_MS, BREAKER_PROBE_MAX_MS,
				 now);
	jitter_ms = (int64) (0.1 * jitter * breaker->probe.pause_ms);
	breaker->probe.until =
		TimestampTzPlusMilliseconds(breaker->probe.until, jitter_ms);
}
