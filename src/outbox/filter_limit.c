/*
 * filter_limit.c
 *		The limits of an evaluation of a filter: time, memory and values.
 *
 * A relay evaluates the filters of all subscriptions, so one evaluation that
 * takes long, whatever is in the payload, stops all deliveries of the database.
 *
 * Time is the CPU time of the process: a slow machine must not make a filter
 * fail.  A timer looks at it, and ends the evaluation as a cancel would, since
 * that is all that the code of regular expressions obeys.  A cancel or timeout
 * by somebody else is told apart: from the moment on when the time is used up
 * until the evaluation has ended, SIGINT is ours, and is sent again afterwards.
 *
 * A comparison of two sequences, as in "$.a[*] == $.b[*]", is a loop over all
 * pairs that nothing can interrupt.  So a filter with such a comparison is
 * limited by its values before the loop begins.  Each value of a sequence is
 * allocated, so the method of the memory context that allocates is replaced
 * by one that counts; it also knows the memory.  From PostgreSQL 19 on, values
 * are allocated in chunks, so it may count up to twice as many as there are.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "nodes/pg_list.h"
#include "utils/timeout.h"

#include "base/compat.h"
#include "outbox/filter_limit.h"

#define FILTER_CPU_MS 1000		/* for one event and subscription */
#define FILTER_LOOK_MS 100		/* how often the timer looks */
#define FILTER_MEMORY_MAX (256 * 1024 * 1024)
#define FILTER_PAIRED_VALUES_MAX 10000	/* their pairs take about a second */

/* The evaluation that is running. */
static volatile sig_atomic_t running = false;
static volatile sig_atomic_t expired = false;	/* its time is used up */
static volatile sig_atomic_t canceled = false;	/* SIGINT since then */
static volatile int64 began_us; /* CPU time at the first look; 0: none yet */
static struct sigaction sigint_before;
static JsonPath *evaluated;
static int	values;				/* that were allocated */

/* How its memory context allocates. */
static MemoryContextMethods counting;
static void *(*allocate) (COMPAT_ALLOC_PARAMETERS);

/* ---- time ---- */

int64
filter_limit_cpu_us(void)
{
	struct timespec used = {0};

	(void) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (int64) used.tv_sec * 1000000 + used.tv_nsec / 1000;
}

static void
filter_limit_note_cancel(pg_attribute_unused() int signal_number)
{
	canceled = true;
}

/*
 * The handler of the timer.  SIGINT is taken over first, and then nothing was
 * canceled before that, or QueryCancelPending tells.
 */
static void
filter_limit_look(void)
{
	struct sigaction action = {
		.sa_handler = filter_limit_note_cancel, .sa_flags = SA_RESTART
	};
	int64		now_us = filter_limit_cpu_us();

	if (!running || expired)
		return;
	if (began_us == 0)
		began_us = now_us;
	if (now_us - began_us < FILTER_CPU_MS * 1000)
		return;
	sigemptyset(&action.sa_mask);
	(void) sigaction(SIGINT, &action, &sigint_before);
	expired = true;
	if (QueryCancelPending)
		canceled = true;
	InterruptPending = QueryCancelPending = true;
}

static TimeoutId
filter_limit_timer(void)
{
	static bool registered = false;
	static TimeoutId timer;

	if (!registered)
		timer = RegisterTimeout(USER_TIMEOUT, filter_limit_look);
	registered = true;
	return timer;
}

static void
filter_limit_start(JsonPath *filter)
{
	TimestampTz now = GetCurrentTimestamp();

	Assert(!running);
	evaluated = filter;
	values = 0;
	began_us = 0;
	expired = canceled = false;
	running = true;
	enable_timeout_every(filter_limit_timer(),
						 TimestampTzPlusMilliseconds(now, FILTER_LOOK_MS),
						 FILTER_LOOK_MS);
}

static void
filter_limit_stop(void)
{
	Assert(running);
	running = false;
	disable_timeout(filter_limit_timer(), false);
	if (!expired)
		return;
	QueryCancelPending = false;
	(void) sigaction(SIGINT, &sigint_before, NULL);
	if (canceled)
		(void) raise(SIGINT);
}

/* ---- memory and values ---- */

static bool
filter_limit_is_literal(const JsonPathItem *item)
{
	return item->type == jpiNull || item->type == jpiString ||
		item->type == jpiNumeric || item->type == jpiBool;
}

/*
 * Does an item compare two sequences of which both may be long?
 */
static bool
filter_limit_pairs_in(JsonPathItem *item)
{
	JsonPathItem left;
	JsonPathItem right;

	switch (item->type)
	{
		case jpiEqual:
		case jpiNotEqual:
		case jpiLess:
		case jpiGreater:
		case jpiLessOrEqual:
		case jpiGreaterOrEqual:
			jspGetLeftArg(item, &left);
			jspGetRightArg(item, &right);
			return !filter_limit_is_literal(&left) &&
				!filter_limit_is_literal(&right);
		default:
			return false;
	}
}

static List *
filter_limit_add(List *items, const JsonPathItem *item)
{
	JsonPathItem *copy = palloc(sizeof(JsonPathItem));

	*copy = *item;
	return lappend(items, copy);
}

static List *
filter_limit_add_subscripts(List *items, JsonPathItem *item)
{
	JsonPathItem from;
	JsonPathItem to;

	for (int i = 0; i < item->content.array.nelems; i++)
	{
		bool		has_to = jspGetArraySubscript(item, &from, &to, i);

		items = filter_limit_add(items, &from);
		if (has_to)
			items = filter_limit_add(items, &to);
	}
	return items;
}

/*
 * Adds what an item of a path is made of, to items that are yet to be visited.
 */
static List *
filter_limit_add_parts(List *items, JsonPathItem *item)
{
	JsonPathItem part;

	switch (item->type)
	{
		case jpiEqual:
		case jpiNotEqual:
		case jpiLess:
		case jpiGreater:
		case jpiLessOrEqual:
		case jpiGreaterOrEqual:
		case jpiAnd:
		case jpiOr:
		case jpiAdd:
		case jpiSub:
		case jpiMul:
		case jpiDiv:
		case jpiMod:
		case jpiStartsWith:
			jspGetLeftArg(item, &part);
			items = filter_limit_add(items, &part);
			jspGetRightArg(item, &part);
			return filter_limit_add(items, &part);
		case jpiNot:
		case jpiIsUnknown:
		case jpiPlus:
		case jpiMinus:
		case jpiExists:
		case jpiFilter:
			jspGetArg(item, &part);
			return filter_limit_add(items, &part);
		case jpiLikeRegex:
			jspInitByBuffer(&part, item->base,
							item->content.like_regex.expr);
			return filter_limit_add(items, &part);
		case jpiIndexArray:
			return filter_limit_add_subscripts(items, item);
		default:
			return items;
	}
}

static bool
filter_limit_pairs(JsonPath *filter)
{
	List	   *items;
	JsonPathItem item;
	JsonPathItem next;

	jspInit(&item, filter);
	items = filter_limit_add(NIL, &item);
	for (int i = 0; i < list_length(items); i++)
	{
		item = *(JsonPathItem *) list_nth(items, i);
		if (filter_limit_pairs_in(&item))
			return true;
		items = filter_limit_add_parts(items, &item);
		if (jspGetNext(&item, &next))
			items = filter_limit_add(items, &next);
	}
	return false;
}

static void
filter_limit_check(MemoryContext context, Size size)
{
	int			before = values;

	if (context->mem_allocated + size > FILTER_MEMORY_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a filter needs too much memory for an event")));
	values += compat_jsonpath_values(size);
	if (before < FILTER_PAIRED_VALUES_MAX &&
		values >= FILTER_PAIRED_VALUES_MAX && filter_limit_pairs(evaluated))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a filter compares too many values of an event")));
}

static void *
filter_limit_alloc(COMPAT_ALLOC_PARAMETERS)
{
	if (running)
		filter_limit_check(context, size);
	return allocate(COMPAT_ALLOC_ARGUMENTS);
}

static void
filter_limit_context(MemoryContext context)
{
	if (allocate == NULL)
	{
		counting = *context->methods;
		allocate = counting.alloc;
		counting.alloc = filter_limit_alloc;
	}
	context->methods = &counting;
}

void
filter_limit_call(MemoryContext context, JsonPath *filter,
				  void (*evaluate) (void *arg), void *arg)
{
	filter_limit_context(context);
	filter_limit_start(filter);
	PG_TRY();
	{
		evaluate(arg);
	}
	PG_CATCH();
	{
		filter_limit_stop();
		if (expired && !canceled && geterrcode() == ERRCODE_QUERY_CANCELED)
		{
			FlushErrorState();
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("a filter takes too long for an event")));
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
	filter_limit_stop();
}
