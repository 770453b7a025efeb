/*
 * import.c
 *		Keys that another database has exported: what idem_import calls.
 *
 * The scope has a fence here until all its keys are here, so no claim can come
 * in between.  Of two rows of a key the one with the larger token is kept; of
 * two rows of the same claim, the one that has come further (claim.c).  The
 * databases count tokens independently of each other, so the tokens of this one
 * are advanced beyond those of the other with each move.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/sequence.h"
#include "claim/claim.h"
#include "claim/fence.h"

#define IMPORT_TOKEN_MAX (INT64CONST(1) << 62)
#define IMPORT_REQUEST_LENGTH 32	/* bytes of a SHA-256 */

/* The arguments of idem_import_key. */
enum
{
	IMPORT_KEY,
	IMPORT_SCOPE,
	IMPORT_TOKEN,
	IMPORT_ATTEMPT,
	IMPORT_STATE,
	IMPORT_EXPIRES_AT,
	IMPORT_LEASE_UNTIL,
	IMPORT_REQUEST,
	IMPORT_RESPONSE
};

PG_FUNCTION_INFO_V1(idem_import_key);
PG_FUNCTION_INFO_V1(idem_import_token);

static void
import_refuse(const char *name, const char *rule)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("\"%s\" of the exported key is not valid", name),
			 errdetail("%s", rule)));
}

static int64
import_token_arg(FunctionCallInfo fcinfo, int arg, const char *name)
{
	int64		token;

	args_require(fcinfo, arg, name);
	token = PG_GETARG_INT64(arg);
	if (token < 0 || token > IMPORT_TOKEN_MAX)
		import_refuse(name, "It must be between 0 and 2^62.");
	return token;
}

static KeyState
import_state_arg(FunctionCallInfo fcinfo)
{
	static const struct
	{
		const char *name;
		KeyState	state;
	}			states[] = {
		{"in_progress", KEY_IN_PROGRESS},
		{"completed", KEY_COMPLETED},
		{"failed", KEY_FAILED},
		{"retryable", KEY_RETRYABLE},
	};
	char	   *name = text_to_cstring(args_text(fcinfo, IMPORT_STATE, "state"));

	for (int i = 0; i < (int) lengthof(states); i++)
	{
		if (strcmp(states[i].name, name) == 0)
			return states[i].state;
	}
	import_refuse("state", "It must be in_progress, completed, failed or retryable.");
	pg_unreachable();
}

static KeyRow
import_row_args(FunctionCallInfo fcinfo)
{
	bool		leased = !PG_ARGISNULL(IMPORT_LEASE_UNTIL);
	KeyRow		row = {0};

	row.token = import_token_arg(fcinfo, IMPORT_TOKEN, "token");
	args_require(fcinfo, IMPORT_ATTEMPT, "attempt");
	row.attempt = PG_GETARG_INT32(IMPORT_ATTEMPT);
	if (row.token == 0 || row.attempt <= 0)
		import_refuse(row.token == 0 ? "token" : "attempt",
					  "It must be positive.");
	row.state = import_state_arg(fcinfo);
	if (leased != (row.state == KEY_IN_PROGRESS))
		import_refuse("lease_until", "A key has one exactly while it is in progress.");
	if (leased)
		row.lease_until = PG_GETARG_TIMESTAMPTZ(IMPORT_LEASE_UNTIL);
	args_require(fcinfo, IMPORT_EXPIRES_AT, "expires_at");
	row.expires_at = PG_GETARG_TIMESTAMPTZ(IMPORT_EXPIRES_AT);
	if (TIMESTAMP_NOT_FINITE(row.lease_until) ||
		TIMESTAMP_IS_NOEND(row.expires_at))
		import_refuse(leased ? "lease_until" : "expires_at",
					  "It must be finite.");
	row.expired = row.expires_at <= GetCurrentTimestamp();
	if (!PG_ARGISNULL(IMPORT_REQUEST))
	{
		row.request = PG_GETARG_BYTEA_PP(IMPORT_REQUEST);
		if (VARSIZE_ANY_EXHDR(row.request) != IMPORT_REQUEST_LENGTH)
			import_refuse("request", "It must be a SHA-256.");
	}
	if (!PG_ARGISNULL(IMPORT_RESPONSE))
		row.response = PG_GETARG_DATUM(IMPORT_RESPONSE);
	return row;
}

/*
 * SQL: idem_import_key(key, scope, token, attempt, state, expires_at,
 * lease_until, request, response); false: the key has a newer token here.
 */
Datum
idem_import_key(PG_FUNCTION_ARGS)
{
	KeyRow		row;
	Claim		claim = {.wait = true, .imported = &row};

	errors_hide_frames();
	claim.name = key_name_from_args(fcinfo, IMPORT_KEY, IMPORT_SCOPE);
	row = import_row_args(fcinfo);
	fence_require_committed(claim.name.scope);
	PG_RETURN_BOOL(claim_key(&claim).outcome == IDEM_CLAIMED);
}

/*
 * SQL: idem_import_token(scope, token).  From now on, tokens are larger.
 */
Datum
idem_import_token(PG_FUNCTION_ARGS)
{
	text	   *scope;
	int64		token;

	errors_hide_frames();
	scope = key_scope_arg(fcinfo, 0);
	token = import_token_arg(fcinfo, 1, "last_token");
	fence_require_committed(scope);
	sequence_advance(SHARED_TOKENS, catalog_get()->idem_token_seq, token);
	PG_RETURN_VOID();
}
