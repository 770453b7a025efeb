/*
 * report.c
 *		Limits and completes what our workers write to the server log.
 *
 * Every message gets a line of context that names the worker and its database,
 * since log_line_prefix may show neither.
 *
 * A broken endpoint, or an error that recurs, must not fill the log.  Messages
 * that differ only in digits are of one kind.  Of each kind REPORT_BURST
 * messages are logged, and then one per REPORT_CREDIT_MS, which tells how many
 * were left out.
 *
 * Readers of the log need not have the right to read events.  The server's
 * message for a violated constraint shows the row in its detail, so that detail
 * is removed.
 */
#include "postgres.h"

#include <ctype.h>

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "base/report.h"

#define REPORT_BURST 10			/* messages of a kind logged at once */
#define REPORT_CREDIT_MS 60000	/* time after which one more may be logged */
#define REPORT_KINDS 256
#define REPORT_TEXT_MAX 512		/* bytes that make up the kind of a message */

/*
 * A kind of message.  Two kinds with the same place in the table replace each
 * other and then start with full credit.  A message with a name that changes
 * each time is always a new kind and is not limited.
 */
typedef struct ReportKind
{
	uint64		hash;
	int			credit;			/* number of messages that may be logged */
	TimestampTz credited_at;
	int			skipped;		/* not logged since the last one that was */
} ReportKind;

static ReportKind kinds[REPORT_KINDS];
static emit_log_hook_type previous_emit_log = NULL;
static const char *reporter = NULL;
static void (*note_error) (const char *message) = NULL;

static ReportKind *
report_kind(const char *message)
{
	char		kept[REPORT_TEXT_MAX];
	int			length = 0;
	uint64		hash;
	ReportKind *kind;

	for (const char *c = message; *c && length < REPORT_TEXT_MAX; c++)
	{
		if (!isdigit((unsigned char) *c))
			kept[length++] = *c;
	}
	hash = hash_bytes_extended((const unsigned char *) kept, length, 0);
	kind = &kinds[hash % REPORT_KINDS];
	if (kind->hash != hash || kind->credited_at == 0)
	{
		kind->hash = hash;
		kind->credit = REPORT_BURST;
		kind->credited_at = GetCurrentTimestamp();
		kind->skipped = 0;
	}
	return kind;
}

/*
 * May another message of the kind be logged?
 */
static bool
report_take_credit(ReportKind *kind)
{
	TimestampTz now = GetCurrentTimestamp();
	long		elapsed_ms = TimestampDifferenceMilliseconds(kind->credited_at,
															 now);
	long		credits = elapsed_ms / REPORT_CREDIT_MS;

	if (credits > 0)
	{
		kind->credit = (int) Min(kind->credit + credits, REPORT_BURST);
		kind->credited_at = now;
	}
	if (kind->credit == 0)
	{
		kind->skipped++;
		return false;
	}
	kind->credit--;
	return true;
}

static void
report_limit(ErrorData *message)
{
	ReportKind *kind = report_kind(message->message);
	char	   *text = message->message;

	if (!report_take_credit(kind))
		message->output_to_server = false;
	else if (kind->skipped > 0)
	{
		message->message = psprintf("%s (not logged: %d more like this)",
									text, kind->skipped);
		pfree(text);
		kind->skipped = 0;
	}
}

static void
report_emit_log(ErrorData *message)
{
	if (note_error != NULL && message->elevel >= WARNING &&
		message->elevel <= ERROR && message->message)
		note_error(message->message);
	if (message->elevel >= LOG && message->elevel <= ERROR && message->message)
		report_limit(message);
	if (ERRCODE_TO_CATEGORY(message->sqlerrcode) ==
		ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION && message->detail)
	{
		pfree(message->detail);
		message->detail = NULL;
	}
	if (previous_emit_log && message->output_to_server)
		previous_emit_log(message);
}

static void
report_add_context(void *arg)
{
	errcontext("%s", reporter);
}

void
report_begin(const char *who)
{
	static ErrorContextCallback context = {.callback = report_add_context};

	reporter = who;
	context.previous = error_context_stack;
	error_context_stack = &context;
	previous_emit_log = emit_log_hook;
	emit_log_hook = report_emit_log;
}

void
report_errors_to(void (*note) (const char *message))
{
	note_error = note;
}
