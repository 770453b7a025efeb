/*
 * topic.c
 *		outbox_topic_matches: does a topic match one of a subscription's
 *		patterns?  It is called for every event of the log and every
 *		subscription, so it must be fast.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"

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

/*
 * SQL: outbox_topic_matches(patterns, topic).
 */
Datum
outbox_topic_matches(PG_FUNCTION_ARGS)
{
	ArrayIterator patterns = array_create_iterator(PG_GETARG_ARRAYTYPE_P(0),
												   0, NULL);
	text	   *topic = PG_GETARG_TEXT_PP(1);
	char	   *topic_start = VARDATA_ANY(topic);
	bool		matches = false;
	Datum		element;
	bool		isnull;

	while (!matches && array_iterate(patterns, &element, &isnull))
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
	array_free_iterator(patterns);
	PG_RETURN_BOOL(matches);
}
