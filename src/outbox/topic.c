/*
 * topic.c
 *		Does a topic match one of a subscription's patterns?  This is asked for
 *		every event of the log and many subscriptions, so it must be fast.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "outbox/topic.h"

PG_FUNCTION_INFO_V1(outbox_topic_matches);

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

bool
outbox_topic_is_wanted(ArrayType *patterns, Datum topic_datum)
{
	ArrayIterator iterator = array_create_iterator(patterns, 0, NULL);
	text	   *topic = DatumGetTextPP(topic_datum);
	char	   *topic_start = VARDATA_ANY(topic);
	bool		matches = false;
	Datum		element;
	bool		isnull;

	while (!matches && array_iterate(iterator, &element, &isnull))
	{
		text	   *pattern = isnull ? NULL : DatumGetTextPP(element);

		CHECK_FOR_INTERRUPTS();
		matches = pattern != NULL &&
			topic_matches_pattern(topic_start,
								  topic_start + VARSIZE_ANY_EXHDR(topic),
								  VARDATA_ANY(pattern),
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
	PG_RETURN_BOOL(outbox_topic_is_wanted(PG_GETARG_ARRAYTYPE_P(0),
										  PG_GETARG_DATUM(1)));
}
