/*
 * retry.h
 *		What to do after an attempt at a delivery, and when.  Pure functions,
 *		without I/O.
 */
#ifndef RELAY_RETRY_H
#define RELAY_RETRY_H

typedef enum RetryClass
{
	RETRY_DONE,					/* 2xx: delivered */
	RETRY_AGAIN,				/* failed; retry_delay_ms() says when again */
	RETRY_GONE					/* 410: the endpoint never wants more events */
} RetryClass;

/* Classifies an answer; status 0 means no answer. */
extern RetryClass retry_classify(int status);

/*
 * Does a failure concern this event only, while the endpoint works?  It does
 * with these statuses.
 */
#define RETRY_EVENT_STATUSES 5
extern const int retry_event_statuses[RETRY_EVENT_STATUSES];
extern bool retry_blames_event(int status);

/*
 * If the request had several events, may the failure concern one of them?  It
 * may with the statuses above, and with 500: an error in the endpoint's program
 * often comes from what it is given.
 */
extern bool retry_may_blame_event(int status);

/* Does a failure mean that the endpoint is overloaded? */
extern bool retry_tells_overload(int status);

/* Returns how long an endpoint has asked to wait, within a limit. */
extern int64 retry_asked_ms(int retry_after_s);

/*
 * Returns how long to wait before the next attempt; -1 if the schedule is
 * exhausted.  schedule_ms[i] is the wait before attempt i + 1, attempts is the
 * number of attempts so far, retry_after_s what the endpoint asked for (0:
 * nothing), and jitter a random number from 0 to 1.
 */
extern int64 retry_delay_ms(const int64 *schedule_ms, int count, int attempts,
							int retry_after_s, double jitter);

#endif							/* RELAY_RETRY_H */
