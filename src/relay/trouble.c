/*
 * trouble.c
 *		What keeps a partition from being served, and when it is tried again.
 *
 * An error that comes from the rows of one subscription, from a constraint or
 * a trigger on them, is no reason to stop the others.  The relay aborts the
 * transaction, notes here what went wrong, and goes on with the others; nothing
 * is sent for the partition until another try succeeds.  What it had sent and
 * could not write down stays in memory meanwhile, so that it is written down
 * then and not sent again.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "relay/trouble.h"

bool
trouble_present(const Trouble *trouble)
{
	return trouble->text[0] != '\0';
}

bool
trouble_waits(const Trouble *trouble, TimestampTz now)
{
	return trouble_present(trouble) && now < trouble->wait.until;
}

bool
trouble_note(Trouble *trouble, const char *text, TimestampTz now)
{
	char		before[SHARED_TROUBLE_MAX];

	backoff_fail(&trouble->wait, TROUBLE_WAIT_MIN_MS, TROUBLE_WAIT_MAX_MS, now);
	strlcpy(before, trouble->text, sizeof(before));
	if (text == NULL || text[0] == '\0')
		text = "missing error text";
	strlcpy(trouble->text, text,
			pg_mbcliplen(text, strlen(text), SHARED_TROUBLE_MAX - 1) + 1);
	return strcmp(before, trouble->text) != 0;
}

void
trouble_hurry(Trouble *trouble, TimestampTz now)
{
	trouble->wait = (Backoff) {.until = now};
}

bool
trouble_end(Trouble *trouble)
{
	bool		present = trouble_present(trouble);

	trouble->text[0] = '\0';
	trouble->wait = (Backoff) {0};
	return present;
}
