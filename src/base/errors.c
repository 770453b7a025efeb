/*
 * errors.c
 *		Errors of public functions in PL/pgSQL, without our own frames, and the
 *		messages that their callers want to see.
 *
 * The server adds to an error the stack of functions and statements in which
 * it was raised, and psql prints the stack as CONTEXT.  If a caller passes a
 * wrong argument to a public function, our part of the stack is of no use to
 * them; the part of their own functions is.  So each public function in
 * PL/pgSQL first notes, with idempotency_enter(), where our part begins.  An
 * error that is the caller's is raised with idempotency_raise(), or by a check
 * in C that calls errors_hide_frames(), and leaves our part out.  All other
 * errors have the whole stack, and so have those of workers.
 *
 * A SECURITY DEFINER function sets client_min_messages to notice, whatever the
 * session has (base/silence.sql).  A session that has set it higher is not to
 * get more for that.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/errors.h"

#define LEVEL "client_min_messages"
#define SQLSTATE_LENGTH 5
#define SQLSTATE_CHARACTERS "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

/*
 * The frame of the public function that was called last.  It is compared but
 * never read, since it may be gone.
 */
static const ErrorContextCallback *entered = NULL;

PG_FUNCTION_INFO_V1(idempotency_enter);
PG_FUNCTION_INFO_V1(idempotency_raise);

static int
errors_setting_level(void)
{
	int			inner = NewGUCNestLevel();

	AtEOXact_GUC(true, inner);
	return inner - 1;
}

/*
 * If the function has lowered client_min_messages, sets it back, until the
 * function ends.
 */
static void
errors_keep_silence(void)
{
	static struct config_generic *setting = NULL;
	const GucStack *lowered;

	if (setting == NULL)
		setting = compat_find_setting(LEVEL);
	lowered = setting == NULL ? NULL : setting->stack;
	if (lowered == NULL || lowered->state != GUC_SAVE ||
		lowered->prior.val.enumval <= client_min_messages ||
		lowered->nest_level != errors_setting_level())
		return;
	(void) set_config_option(LEVEL,
							 lowered->prior.val.enumval == WARNING ?
							 "warning" : "error",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true,
							 0, false);
}

/*
 * SQL: idempotency_enter(), only for PERFORM in a public function: the
 * innermost frame is that of the PERFORM, the next one that of the function.
 */
Datum
idempotency_enter(PG_FUNCTION_ARGS)
{
	entered = error_context_stack ? error_context_stack->previous : NULL;
	errors_keep_silence();
	PG_RETURN_VOID();
}

/*
 * The stack need not be restored if no error follows.  The next frame that is
 * popped is that of the PERFORM, and a frame is popped, as an error is caught,
 * by setting the stack to a value that was saved before.
 */
void
errors_hide_frames(void)
{
	for (ErrorContextCallback *frame = error_context_stack; frame != NULL;
		 frame = frame->previous)
	{
		if (frame == entered)
		{
			error_context_stack = frame->previous;
			break;
		}
	}
}

/*
 * SQL: idempotency_raise(sqlstate, message, hint), as RAISE EXCEPTION.
 */
Datum
idempotency_raise(PG_FUNCTION_ARGS)
{
	char	   *state = text_to_cstring(args_text(fcinfo, 0, "sqlstate"));
	char	   *message = text_to_cstring(args_text(fcinfo, 1, "message"));
	char	   *hint = NULL;

	if (!PG_ARGISNULL(2))
		hint = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (strlen(state) != SQLSTATE_LENGTH ||
		strspn(state, SQLSTATE_CHARACTERS) != SQLSTATE_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid SQLSTATE \"%s\"", state)));
	errors_hide_frames();
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE(state[0], state[1], state[2],
								   state[3], state[4])),
			 errmsg("%s", message),
			 hint ? errhint("%s", hint) : 0));
	PG_RETURN_VOID();
}
