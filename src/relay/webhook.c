/*
 * webhook.c
 *		SQL functions that check and sign what a webhook consists of.
 *
 * outbox_subscribe() calls the checks, so that what could not be delivered is
 * refused while the caller can still react.  Nothing here reads a table.
 *
 * URLs and secrets are never quoted in a message: both may be credentials.
 */
#include "postgres.h"

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "base/args.h"
#include "base/compat.h"
#include "base/errors.h"
#include "outbox/header.h"
#include "relay/credentials.h"
#include "relay/signature.h"
#include "relay/url.h"

PG_FUNCTION_INFO_V1(outbox_check_url);
PG_FUNCTION_INFO_V1(outbox_url_refused);
PG_FUNCTION_INFO_V1(outbox_same_origin);
PG_FUNCTION_INFO_V1(outbox_check_secret);
PG_FUNCTION_INFO_V1(outbox_check_endpoint);
PG_FUNCTION_INFO_V1(outbox_secret_generate);
PG_FUNCTION_INFO_V1(outbox_signature);
PG_FUNCTION_INFO_V1(outbox_derive_public_key);
PG_FUNCTION_INFO_V1(outbox_key_generate);
PG_FUNCTION_INFO_V1(outbox_read_public_key);

static void
webhook_check_url(text *url)
{
	const char *reason = url_check(text_to_cstring(url));

	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid webhook url"),
				 errdetail("%s", reason)));
}

/*
 * Is this "file:NAME"?  Raises an error if the name is not one.  Whether there
 * is such a file is seen when it is read.
 */
static bool
webhook_check_file(const char *secret, const char *what)
{
	const char *name = credentials_file(secret);

	if (name != NULL && !credentials_name_valid(name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid name of a file with a %s", what),
				 errdetail("It has at most 255 letters, digits, dots, hyphens and underscores, and does not begin with a dot.")));
	return name != NULL;
}

static void
webhook_check_secret(text *secret)
{
	if (!webhook_check_file(text_to_cstring(secret), "secret") &&
		!signature_secret_valid(text_to_cstring(secret)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid webhook secret"),
				 errdetail(SIGNATURE_SECRET_RULE)));
}

/*
 * SQL: outbox_check_url(url), raises an error unless the URL is acceptable, and
 * allowed now.  A constraint does not depend on settings.
 */
Datum
outbox_check_url(PG_FUNCTION_ARGS)
{
	text	   *url = args_text(fcinfo, 0, "url");
	const char *reason;

	errors_hide_frames();
	webhook_check_url(url);
	reason = url_refused(text_to_cstring(url));
	if (reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("webhook url is not allowed"),
				 errdetail("%s.", reason),
				 errhint("A superuser can change the setting.")));
	PG_RETURN_VOID();
}

/* SQL: outbox_url_refused(url), which setting refuses it; null: none does. */
Datum
outbox_url_refused(PG_FUNCTION_ARGS)
{
	const char *reason =
		url_refused(text_to_cstring(PG_GETARG_TEXT_PP(0)));

	if (reason == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(reason));
}

/* SQL: outbox_same_origin(one, other), compares scheme, host and port. */
Datum
outbox_same_origin(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(url_same_origin(text_to_cstring(PG_GETARG_TEXT_PP(0)),
								   text_to_cstring(PG_GETARG_TEXT_PP(1))));
}

/* SQL: outbox_check_secret(secret), raises an error unless it can sign. */
Datum
outbox_check_secret(PG_FUNCTION_ARGS)
{
	errors_hide_frames();
	webhook_check_secret(args_text(fcinfo, 0, "secret"));
	PG_RETURN_VOID();
}

/*
 * SQL: outbox_check_endpoint(url, secret, old_secret, headers), the constraint
 * on rows of outbox_subscription.  Other constraints exclude null.
 */
Datum
outbox_check_endpoint(PG_FUNCTION_ARGS)
{
	if (!PG_ARGISNULL(0))
		webhook_check_url(PG_GETARG_TEXT_PP(0));
	for (int arg = 1; arg <= 2; arg++)
	{
		if (!PG_ARGISNULL(arg))
			webhook_check_secret(PG_GETARG_TEXT_PP(arg));
	}
	if (!PG_ARGISNULL(3))
		header_check(PG_GETARG_JSONB_P(3));
	PG_RETURN_BOOL(true);
}

/* SQL: outbox_secret_generate(), a new random secret. */
Datum
outbox_secret_generate(pg_attribute_unused() PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(signature_secret_generate()));
}

/*
 * SQL: outbox_signature(secret, id, timestamp, body), the value of the
 * webhook-signature header of such an event.
 *
 * Events are sent as UTF-8, whatever the database's encoding, so the UTF-8 form
 * is signed.
 */
Datum
outbox_signature(PG_FUNCTION_ARGS)
{
	const char *secrets[2] = {NULL, NULL};
	char	   *id = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *body = text_to_cstring(PG_GETARG_TEXT_PP(3));
	char	   *signature;

	secrets[0] = text_to_cstring(PG_GETARG_TEXT_PP(0));
	id = pg_server_to_any(id, strlen(id), PG_UTF8);
	body = pg_server_to_any(body, strlen(body), PG_UTF8);

	signature = signature_header(secrets, id, PG_GETARG_INT64(2),
								 body, strlen(body));
	if (signature == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid webhook secret"),
				 errdetail(SIGNATURE_SECRET_RULE)));

	PG_RETURN_TEXT_P(cstring_to_text(signature));
}

/*
 * SQL: outbox_derive_public_key(signing_key), raises an error unless the key
 * can sign.  Null: it is in a file.
 */
Datum
outbox_derive_public_key(PG_FUNCTION_ARGS)
{
	const char *signing_key = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *public_key;

	errors_hide_frames();
	if (webhook_check_file(signing_key, "signing key"))
		PG_RETURN_NULL();
	public_key = signature_public_key(signing_key);
	if (public_key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid signing key"),
				 errdetail(SIGNATURE_SIGNING_KEY_RULE)));
	PG_RETURN_TEXT_P(cstring_to_text(public_key));
}

/*
 * SQL: outbox_read_public_key(url, signing_key), the public key of one that is
 * in a file; null if it is not.
 */
Datum
outbox_read_public_key(PG_FUNCTION_ARGS)
{
	const char *url = text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *file = credentials_file(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	const char *wrong;
	List	   *keys;

	if (file == NULL)
		PG_RETURN_NULL();
	errors_hide_frames();
	wrong = credentials_read_secrets(url, file, true, &keys);
	if (wrong != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not read a signing key"),
				 errdetail("%s.", wrong)));
	PG_RETURN_TEXT_P(cstring_to_text(signature_public_key(linitial(keys))));
}

/* SQL: outbox_key_generate(), a new random signing key. */
Datum
outbox_key_generate(pg_attribute_unused() PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(signature_signing_key_generate()));
}
