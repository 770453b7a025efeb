/*
 * topic.c
 *		outbox_topic_matches: is a topic one of those that a subscription asks
 *		for?  Every subscription asks that of every event of the log.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"

PG_FUNCTION_INFO_V1(outbox_topic_matches);

/*
 * In a pattern * stands for any characters, and all else for itself.  So the
 * topic begins with what stands before the first *, ends with what stands
 * behind the last, and has the other pieces in between, one after another:
 * each is looked for where the piece before it first ends, which leaves the
 * most for those that follow.  No byte is looked at again for an earlier
 * piece, and memmem() takes linear time.  Bytes will do: * is no part of a
 * longer character in any encoding that a database can have.
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
