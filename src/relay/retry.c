/*
 * retry.c
 *		What to do after an attempt at a delivery, and when.
 *
 * Called by the relay's loop.  Pure arithmetic: no clock, no random numbers and
 * no database, so that each rule can be tested by itself.
 */
#include "postgres.h"

#include "relay/retry.h"

/* The longest delay that an endpoint can ask for. */
#define RETRY_AFTER_MAX_S (24 * 60 * 60)

/* The largest share of a wait that is added to it at random. */
#define RETRY_JITTER_SHARE 0.1

/*
 * Everything but 2xx is a failure.  That includes redirects: following one
 * would send a signed event to an address that was never subscribed.  By 410,
 * Standard Webhooks lets an endpoint unsubscribe.
 */
RetryClass
retry_classify(int status)
{
	if (status >= 200 && status <= 299)
		return RETRY_DONE;
	if (status == 410)
		return RETRY_GONE;
	return RETRY_AGAIN;
}

/*
 * An endpoint that answers with one of these has examined the event.  Other 4xx
 * codes, such as 401 and 404, mean that something is wrong with the endpoint or
 * the way to it.
 */
const int	retry_event_statuses[RETRY_EVENT_STATUSES] = {
	400,						/* bad request */
	409,						/* conflict */
	413,						/* content too large */
	415,						/* unsupported media type */
	422							/* unprocessable content */
};

bool
retry_blames_event(int status)
{
	for (int i = 0; i < RETRY_EVENT_STATUSES; i++)
	{
		if (status == retry_event_statuses[i])
			return true;
	}
	return false;
}

bool
retry_may_blame_event(int status)
{
	return status == 500 || retry_blames_event(status);
}

/*
 * No answer at all, too many requests, service unavailable.
 */
bool
retry_tells_overload(int status)
{
	return status == 0 || status == 429 || status == 503;
}

int64
retry_asked_ms(int retry_after_s)
{
	return (int64) Min(retry_after_s, RETRY_AFTER_MAX_S) * 1000;
}

/*
 * The wait that the endpoint asked for is a minimum.  Jitter is only added, so
 * it keeps that minimum, and it is added in both cases, since an endpoint may
 * ask all callers for the same time.  The number of attempts comes from a row
 * and may have any value.
 */
int64
retry_delay_ms(const int64 *schedule_ms, int count, int attempts,
			   int retry_after_s, double jitter)
{
	int64		delay_ms;

	Assert(jitter >= 0 && jitter <= 1);

	if (attempts >= count)
		return -1;

	delay_ms = schedule_ms[Max(attempts, 0)];
	delay_ms = Max(delay_ms, retry_asked_ms(retry_after_s));

	return delay_ms + (int64) (delay_ms * RETRY_JITTER_SHARE * jitter);
}
