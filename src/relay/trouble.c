/*
 * trouble.c
 *		Why a partition cannot be served, and when it is tried again.
 *
 * An error caused by the rows of one subscription, by a constraint or a trigger
 * on them, must not stop the others.  The relay aborts the transaction, records
 * the error here, and goes on with the other partitions.  Nothing is sent for
 * this partition until another try succeeds.  Outcomes of events that it has
 * sent but could not record stay in memory until then, so that these events are
 * not sent again.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "relay/trouble.h"

bool
trouble_present(const Trouble *trouble)
{
	return trouble->error[0] != '\0';
}

bool
trouble_waits(const Trouble *trouble, TimestampTz now)
{
	return trouble_present(trouble) && now < trouble->wait.until;
}

bool
trouble_note(Trouble *trouble, const char *error, TimestampTz now)
{
	char		before[SHARED_TROUBLE_MAX];

	backoff_fail(&trouble->wait, TROUBLE_WAIT_MIN_MS, TROUBLE_WAIT_MAX_MS, now);
	strlcpy(before, trouble->error, sizeof(before));
	if (error == NULL || error[0] == '\0')
		error = "missing error text";
	strlcpy(trouble->error, error,
			pg_mbcliplen(error, strlen(error), SHARED_TROUBLE_MAX - 1) + 1);
	return strcmp(before, trouble->error) != 0;
}

void
trouble_hurry(Trouble *trouble, TimestampTz now)
{
	trouble->wait = (Backoff)
	{
		.until = now
	};
}

bool
trouble_end(Trouble *trouble)
{
	bool		present = trouble_present(trouble);

	trouble->error[0] = '\0';
	backoff_reset(&trouble->wait);
	return present;
}
