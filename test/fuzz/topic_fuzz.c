/*
 * topic_fuzz.c
 *		A pattern matches exactly the topics that it should.  If this fails,
 *		subscriptions miss events or get those of others.
 *
 * Input: topic, pattern.
 */
#include "outbox/topic.c"

#include "fuzz.h"

#define BYTES_MAX 255			/* of a topic and of a pattern */

/*
 * Matches by definition: reach[i] is whether the part of the pattern that was
 * read so far matches the first i bytes of the topic.
 */
static bool
matches_by_definition(FuzzField topic, FuzzField pattern)
{
	bool		reach[BYTES_MAX + 1] = {true};

	for (size_t p = 0; p < pattern.length; p++)
	{
		bool		is_star = pattern.text[p] == '*';

		if (is_star)
		{
			for (size_t t = 1; t <= topic.length; t++)
				reach[t] |= reach[t - 1];
			continue;
		}
		for (size_t t = topic.length; t > 0; t--)
			reach[t] = reach[t - 1] && topic.text[t - 1] == pattern.text[p];
		reach[0] = false;
	}
	return reach[topic.length];
}

static bool
matches(FuzzField topic, FuzzField pattern)
{
	return topic_matches_pattern(topic.text, topic.text + topic.length,
								 pattern.text, pattern.text + pattern.length);
}

void
fuzz_one(void)
{
	FuzzField	topic = fuzz_field();
	FuzzField	pattern = fuzz_field();

	topic.length = Min(topic.length, BYTES_MAX);
	pattern.length = Min(pattern.length, BYTES_MAX);
	fuzz_check(matches(topic, topic));
	fuzz_check(matches(pattern, pattern));
	fuzz_check(matches(topic, pattern) == matches_by_definition(topic, pattern));
}
