/*
 * retry.c
 *		What to do after an attempt at a delivery, and when.
 *
 * Called by the relay's loop.  Pure arithmetic: no clock, no random numbers,
 * no database, so that each rule can be checked by itself.
 */
#include "postgres.h"

#include "relay/retry.h"

/* An endpoint cannot put a delivery off for longer than this at a time. */
#define RETRY_AFTER_MAX_S (24 * 60 * 60)

/* Up to this share of a wait is added to it at random. */
#define RETRY_JITTER_SHARE 0.1

/*
 * Judge an answer by its status; 0 stands for no answer.
 *
 * Everything but 2xx is a failure, redirects included, because following one
 * would send a signed event to an address that nobody subscribed.  410 is how
 * Standard Webhooks lets an endpoint unsubscribe.
 */
RetryVerdict
retry_judge(int status)
{
	if (status >= 200 && status <= 299)
		return RETRY_DONE;
	if (status == 410)
		return RETRY_GONE;
	return RETRY_AGAIN;
}

/*
 * Is a failure about this one event?  An endpoint that answers these has looked
 * at it.  Others of 4xx, such as 401 and 404, say that something is wrong with
 * the endpoint or the way to it.
 */
bool
retry_blames_event(int status)
{
	switch (status)
	{
		case 400:				/* bad request */
		case 409:				/* conflict */
		case 413:				/* content too large */
		case 415:				/* unsupported media type */
		case 422:				/* unprocessable content */
			return true;
		default:
			return false;
	}
}

/*
 * No answer at all, too many requests, service unavailable.
 */
bool
retry_tells_overload(int status)
{
	return status == 0 || status == 429 || status == 503;
}

/*
 * How long to wait before the next attempt, or -1 if the schedule is
 * exhausted.
 *
 * What the endpoint asked for is a minimum.  Jitter only ever adds, so it
 * cannot break that promise, and it is added to both kinds of wait, since an
 * endpoint tells all its callers the same time.  The number of attempts comes
 * from a row, and may be anything.
 */
int64
retry_delay_ms(const int64 *schedule_ms, int count, int attempts,
			   int retry_after_s, double jitter)
{
	int64		delay_ms;
	int64		asked_ms;

	Assert(jitter >= 0 && jitter <= 1);

	if (attempts >= count)
		return -1;

	delay_ms = schedule_ms[Max(attempts, 0)];
	asked_ms = (int64) Min(retry_after_s, RETRY_AFTER_MAX_S) * 1000;
	delay_ms = Max(delay_ms, asked_ms);

	return delay_ms + (int64) (delay_ms * RETRY_JITTER_SHARE * jitter);
}
