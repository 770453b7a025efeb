/*
 * errors.c
 *		Errors that public functions in PL/pgSQL raise, without our own frames.
 *
 * The server adds to an error the stack of functions and statements that it
 * came out of, and psql prints that as CONTEXT.  Our part of the stack is of no
 * use to somebody who has given a public function a bad argument; the part of
 * their own functions is.  So each public function in PL/pgSQL first notes, by
 * idempotency_enter(), where its part begins.  What is then raised on account
 * of the caller, by idempotency_raise() or by a check in C, leaves that part
 * out.  All other errors have the whole stack, and so have those of workers.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/errors.h"

#define SQLSTATE_LENGTH 5

/*
 * The frame of the public function that was called last.  It is never looked
 * into, since it may be gone.
 */
static const ErrorContextCallback *entered = NULL;

PG_FUNCTION_INFO_V1(idempotency_enter);
PG_FUNCTION_INFO_V1(idempotency_raise);

/*
 * SQL: idempotency_enter(), by a PERFORM of a public function.  The innermost
 * frame is that of the PERFORM, the next one that of the function.
 */
Datum
idempotency_enter(PG_FUNCTION_ARGS)
{
	entered = error_context_stack ? error_context_stack->previous : NULL;
	PG_RETURN_VOID();
}

/*
 * The caller does nothing but check the arguments of a public function, which
 * performs it.  So the stack need not be restored where no error follows: the
 * frame of the PERFORM is popped next, and a frame is popped, as an error is
 * caught, by setting the stack to what was saved before.
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
 * SQL: idempotency_raise(sqlstate, message, hint): as RAISE EXCEPTION.
 */
Datum
idempotency_raise(PG_FUNCTION_ARGS)
{
	char	   *code = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *message = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *hint = NULL;

	if (!PG_ARGISNULL(2))
		hint = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (strlen(code) != SQLSTATE_LENGTH)
		elog(ERROR, "invalid SQLSTATE \"%s\"", code);
	errors_hide_frames();
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE(code[0], code[1], code[2], code[3],
								   code[4])),
			 errmsg("%s", message),
			 hint ? errhint("%s", hint) : 0));
	PG_RETURN_VOID();
}
