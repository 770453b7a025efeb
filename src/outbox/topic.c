/*
 * topic.c
 *		Does a topic match one of a subscription's patterns?  This is asked for
 *		every event of the log and many subscriptions, so it must be fast.
 *
 * The topics of our own events are reserved: a pattern matches them only if it
 * begins like them, so that a subscription to all topics gets none of them.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/settings.h"
#include "outbox/topic.h"

/*
 * outbox_ping sends to one subscription, by a deferred delivery.  Whatever
 * matches, the event is not read from the log as well.
 */
#define TOPIC_PING SETTINGS_TOPIC_RESERVED "ping"

PG_FUNCTION_INFO_V1(outbox_topic_matches);
PG_FUNCTION_INFO_V1(outbox_is_wanted);

static bool
topic_begins_with(const text *topic, const char *start)
{
	return VARSIZE_ANY_EXHDR(topic) >= strlen(start) &&
		memcmp(VARDATA_ANY(topic), start, strlen(start)) == 0;
}

bool
topic_is_reserved(const text *topic)
{
	return topic_begins_with(topic, SETTINGS_TOPIC_RESERVED);
}

static bool
topic_is_ping(const text *topic)
{
	return VARSIZE_ANY_EXHDR(topic) == strlen(TOPIC_PING) &&
		topic_begins_with(topic, TOPIC_PING);
}

/*
 * In a pattern, * stands for any characters, and every other character for
 * itself.  So the topic must begin with the part before the first *, end with
 * the part after the last *, and contain the parts between them one after
 * another.  Each of these is searched from where the preceding part first
 * ends, which leaves the most for the parts that follow.  So no byte is
 * searched twice for different parts, and memmem() takes linear time.
 * Comparing bytes is enough: * is not part of a multibyte character in any
 * server encoding.
 */
static bool
topic_matches_pattern(const char *topic, const char *topic_end,
					  const char *pattern, const char *pattern_end)
{
	const char *star = memchr(pattern, '*', pattern_end - pattern);

	if (star == NULL)
		return topic_end - topic == pattern_end - pattern &&
			memcmp(topic, pattern, pattern_end - pattern) == 0;
	if (star - pattern > topic_end - topic ||
		memcmp(topic, pattern, star - pattern) != 0)
		return false;
	topic += star - pattern;
	pattern = star + 1;
	while ((star = memchr(pattern, '*', pattern_end - pattern)) != NULL)
	{
		topic = memmem(topic, topic_end - topic, pattern, star - pattern);
		if (topic == NULL)
			return false;
		topic += star - pattern;
		pattern = star + 1;
	}
	return pattern_end - pattern <= topic_end - topic &&
		memcmp(topic_end - (pattern_end - pattern), pattern,
			   pattern_end - pattern) == 0;
}

static bool
topic_matches(ArrayType *patterns, const text *topic)
{
	ArrayIterator iterator = array_create_iterator(patterns, 0, NULL);
	bool		reserved = topic_is_reserved(topic);
	const char *start = VARDATA_ANY(topic);
	const char *end = start + VARSIZE_ANY_EXHDR(topic);
	bool		matches = false;
	Datum		element;
	bool		isnull;

	while (!matches && array_iterate(iterator, &element, &isnull))
	{
		text	   *pattern = isnull ? NULL : DatumGetTextPP(element);

		CHECK_FOR_INTERRUPTS();
		matches = pattern != NULL &&
			(!reserved || topic_is_reserved(pattern)) &&
			topic_matches_pattern(start, end, VARDATA_ANY(pattern),
								  VARDATA_ANY(pattern) +
								  VARSIZE_ANY_EXHDR(pattern));
	}
	array_free_iterator(iterator);
	return matches;
}

/*
 * SQL: outbox_topic_matches(patterns, topic).
 */
Datum
outbox_topic_matches(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(topic_matches(PG_GETARG_ARRAYTYPE_P(0),
								 PG_GETARG_TEXT_PP(1)));
}

bool
topic_is_wanted(ArrayType *patterns, const text *topic)
{
	return !topic_is_ping(topic) && topic_matches(patterns, topic);
}

/*
 * SQL: outbox_is_wanted(patterns, topic), whether a relay sends an event of the
 * log to a subscription with these patterns.
 */
Datum
outbox_is_wanted(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(topic_is_wanted(PG_GETARG_ARRAYTYPE_P(0),
								   PG_GETARG_TEXT_PP(1)));
}
