/*
 * breaker.c
 *		How many requests an endpoint may have in flight, when it counts as
 *		failing, and how it is probed then.
 *
 * An endpoint fails as a whole when several events have failed one after
 * another with no success in between.  An endpoint that refuses an event, by
 * 422 for example, works.  Each event counts once, however often it is retried:
 * a few events that the endpoint never accepts must not open the breaker.
 *
 * While the breaker is open no events are read, which would only turn the log
 * into rows that wait.  A probe is sent from time to time, and the first
 * success closes the breaker.
 *
 * An endpoint that answers 429 or 503 can ask for a pause (Retry-After).  Then
 * it gets no request of any kind for that time, whether the breaker is open or
 * not.  With another status it asks for one event.  But if it fails as a whole,
 * the next probe waits that long, unless an answer shows before that it works:
 * one that had been in flight, or one that another relay has got.
 *
 * The number of requests in flight follows the endpoint.  It begins with a few,
 * grows by one with each success, and is halved after no answer, 429 or 503.
 * So an endpoint that hangs soon has one request in flight.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "relay/breaker.h"
#include "relay/retry.h"

void
breaker_init(Breaker *breaker)
{
	memset(breaker, 0, sizeof(*breaker));
	breaker->window = BREAKER_WINDOW_START;
}

void
breaker_works(Breaker *breaker)
{
	breaker->works = true;
	breaker->failures = 0;
	breaker->probe_asked_until = 0;
	breaker->trip_wanted = false;
	breaker->reset_wanted = breaker->open;
}

void
breaker_success(Breaker *breaker, int max_in_flight)
{
	breaker->window = Min(breaker->window + 1, max_in_flight);
	breaker_works(breaker);
}

/*
 * Appends an event to the row of failures, unless it is there already.
 */
static void
breaker_note_failed(Breaker *breaker, int64 position, bool answered,
					TimestampTz now)
{
	if (breaker->failures == 0)
	{
		breaker->failed_from = now;
		breaker->unanswered = true;
	}
	Assert(!breaker->open && breaker->failures <= BREAKER_FAILURES);
	breaker->unanswered &= !answered;
	for (int i = 0; i < breaker->failures; i++)
	{
		if (breaker->failed[i] == position)
			return;
	}
	if (breaker->failures < BREAKER_FAILURES)
		breaker->failed[breaker->failures++] = position;
}

static bool
breaker_fails(const Breaker *breaker, TimestampTz now)
{
	TimestampTz long_enough =
		TimestampTzPlusMilliseconds(breaker->failed_from,
									BREAKER_UNANSWERED_MS);

	return breaker->failures >= BREAKER_FAILURES ||
		(breaker->unanswered && breaker->failures >= BREAKER_UNANSWERED &&
		 now >= long_enough);
}

void
breaker_failure(Breaker *breaker, int64 position, int status,
				int retry_after_s, TimestampTz now)
{
	int64		asked_ms = Min((int64) retry_after_s * 1000,
							   BREAKER_PROBE_MAX_MS);
	TimestampTz asked = TimestampTzPlusMilliseconds(now, asked_ms);

	if (retry_tells_overload(status))
	{
		breaker->window = Max(breaker->window / 2, 1);
		breaker->asked_until = Max(breaker->asked_until, asked);
	}
	breaker->works = false;
	if (!breaker->open)
	{
		breaker_note_failed(breaker, position, status != 0, now);
		breaker->trip_wanted = breaker_fails(breaker, now);
	}
	if (breaker->open || breaker->trip_wanted)
		breaker->probe_asked_until = Max(breaker->probe_asked_until, asked);
}

static void
breaker_hurry(Breaker *breaker, TimestampTz now)
{
	backoff_reset(&breaker->probe);
	backoff_fail(&breaker->probe, BREAKER_PROBE_MIN_MS, BREAKER_PROBE_MAX_MS,
				 now);
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
	if (!open)
		breaker->probe_asked_until = 0;
	breaker->probe_new = breaker->idle = false;
	breaker_hurry(breaker, now);
}

void
breaker_forget(Breaker *breaker, TimestampTz now)
{
	breaker->window = BREAKER_WINDOW_START;
	breaker->works = false;
	breaker->failures = 0;
	breaker->trip_wanted = false;
	breaker->asked_until = 0;
	breaker->probe_asked_until = 0;
	breaker->idle = false;
	breaker_hurry(breaker, now);
}

void
breaker_limit_waits(Breaker *breaker, TimestampTz now)
{
	TimestampTz latest = TimestampTzPlusMilliseconds(now,
													 BREAKER_PROBE_MAX_MS);

	breaker->probe.until = Min(breaker->probe.until, latest);
	breaker->asked_until = Min(breaker->asked_until, latest);
	breaker->probe_asked_until = Min(breaker->probe_asked_until, latest);
}

TimestampTz
breaker_probe_at(const Breaker *breaker)
{
	return Max(breaker->probe.until,
			   Max(breaker->asked_until, breaker->probe_asked_until));
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
