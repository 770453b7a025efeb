/*
 * topic.c
 *		outbox_topic_matches: is a topic one of those that a subscription asks
 *		for?  Every subscription asks that of every event of the log.
 */
#include "postgres.h"

#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"

PG_FUNCTION_INFO_V1(outbox_topic_matches);

/*
 * In a pattern * stands for any characters, and all else for itself.  After a
 * mismatch the last * takes one character more.  Bytes will do: * is no part
 * of a longer character in any encoding that a database can have.
 */
static bool
topic_matches_pattern(const char *topic, const char *topic_end,
					  const char *pattern, const char *pattern_end)
{
	const char *after_star = NULL;
	const char *retry_from = NULL;

	while (topic < topic_end)
	{
		if (pattern < pattern_end && *pattern == '*')
		{
			after_star = ++pattern;
			retry_from = topic;
		}
		else if (pattern < pattern_end && *pattern == *topic)
		{
			pattern++;
			topic++;
		}
		else if (after_star != NULL)
		{
			pattern = after_star;
			topic = ++retry_from;
		}
		else
			return false;
	}
	while (pattern < pattern_end && *pattern == '*')
		pattern++;
	return pattern == pattern_end;
}

/*
 * SQL: outbox_topic_matches(patterns, topic).
 */
Datum
outbox_topic_matches(PG_FUNCTION_ARGS)
{
	ArrayIterator patterns = array_create_iterator(PG_GETARG_ARRAYTYPE_P(0), 0, NULL);
	text	   *topic = PG_GETARG_TEXT_PP(1);
	char	   *topic_start = VARDATA_ANY(topic);
	bool		matches = false;
	Datum		element;
	bool		isnull;

	while (!matches && array_iterate(patterns, &element, &isnull))
	{
		text	   *pattern = isnull ? NULL : DatumGetTextPP(element);

		matches = pattern != NULL &&
			topic_matches_pattern(topic_start,
								  topic_start + VARSIZE_ANY_EXHDR(topic),
								  VARDATA_ANY(pattern),
								  VARDATA_ANY(pattern) + VARSIZE_ANY_EXHDR(pattern));
	}
	array_free_iterator(patterns);
	PG_RETURN_BOOL(matches);
}
