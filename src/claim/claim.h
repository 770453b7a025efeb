/*
 * claim.h
 *		Claiming one key; shared by idem_claim and idem_claim_many.  For the
 *		claim module only.
 */
#ifndef CLAIM_CLAIM_H
#define CLAIM_CLAIM_H

#include "base/catalog.h"
#include "claim/key.h"

#define CLAIM_ANSWER_COLUMNS 5

/* The arguments of a claim. */
typedef struct Claim
{
	KeyName		name;
	bool		leased;
	bool		wait;
	const Interval *lease;		/* meaningful if leased */
	const Interval *ttl;		/* NULL: idempotency.ttl */
	bytea	   *request;		/* SHA-256, or NULL */
	struct Dedup *dedup;		/* for dedup_claim, or NULL */
	const KeyRow *imported;		/* the row to write, for idem_import; or NULL */
} Claim;

/* The answer to a claim. */
typedef struct ClaimAnswer
{
	IdemOutcome outcome;
	int64		token;			/* 0: none */
	int32		attempt;		/* 0: none */
	Datum		response;		/* of a key that is finished, or was replaced;
								 * 0: none */
	TimeOffset	retry_after_us; /* 0: unknown */
	bool		taken_over;		/* from an owner whose lease has ended */
} ClaimAnswer;

/* Reads and checks the arguments lease, ttl and wait; the name is set. */
extern void claim_read_args(Claim *claim, FunctionCallInfo fcinfo,
							int lease_arg, int ttl_arg, int wait_arg);

/*
 * Claims a key, or returns the outcome of an earlier claim.  Likewise imports a
 * key: IDEM_CLAIMED says that the imported row is now the key's.
 */
extern ClaimAnswer claim_key(const Claim *claim);

/*
 * Determines the answer to a new claimer from a row that is not being written.
 * Returns false if the key can be claimed.
 */
extern bool claim_classify(const Claim *claim, const KeyRow *row,
						   ClaimAnswer *answer);

/* Sets the columns outcome, token, attempt, response and retry_after. */
extern void claim_answer_columns(const ClaimAnswer *answer, Datum *values,
								 bool *nulls);

#endif							/* CLAIM_CLAIM_H */
