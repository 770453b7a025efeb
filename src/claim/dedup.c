/*
 * dedup.c
 *		Claims keys for the extension itself, whose answers are numbers.
 *
 * The number is drawn when the row of the key is made, so the row is written
 * once.  It is drawn while the ring of keys is locked, and may lock what the
 * extension has created after that ring.
 */
#include "postgres.h"

#include "utils/fmgrprotos.h"

#include "claim/claim.h"
#include "claim/dedup.h"

/*
 * The owner of the tables can change a row, and forget what is in it.
 */
static int64
dedup_number(Datum response)
{
	if (response == (Datum) 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the key of a dedup_key was altered"),
				 errhint("Forget it with idem_forget().")));
	return DatumGetInt64(DirectFunctionCall1(jsonb_int8, response));
}

Datum
dedup_next_response(Dedup *dedup)
{
	char	   *text;

	dedup->number = dedup->next();
	text = psprintf(INT64_FORMAT, dedup->number);

	return DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
}

bool
dedup_replaces(const Dedup *dedup, Datum response)
{
	return dedup->replace || dedup->is_gone(dedup_number(response));
}

bool
dedup_claim(Dedup *dedup)
{
	Claim		claim = {
		.name = {.scope = dedup->scope, .key = dedup->key},
		.wait = true,
		.ttl = dedup->ttl,
		.dedup = dedup
	};
	ClaimAnswer answer = claim_key(&claim);

	dedup->replaced = 0;
	if (answer.outcome != IDEM_CLAIMED)
		dedup->number = dedup_number(answer.response);
	else if (answer.response != (Datum) 0)
		dedup->replaced = dedup_number(answer.response);
	return answer.outcome == IDEM_CLAIMED;
}
