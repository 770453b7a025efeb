/*
 * claim.h
 *		Claiming one key, however it is asked for.  Within the claim module.
 */
#ifndef CLAIM_CLAIM_H
#define CLAIM_CLAIM_H

#include "base/catalog.h"
#include "claim/key.h"

#define CLAIM_ANSWER_COLUMNS 5

/* What is asked. */
typedef struct Claim
{
	KeyName		name;
	bool		leased;
	bool		wait;
	const Interval *lease;		/* meaningful if leased */
	const Interval *ttl;		/* NULL: as configured */
	bytea	   *request;		/* SHA-256; NULL: none */
} Claim;

/* What became of it. */
typedef struct ClaimAnswer
{
	IdemOutcome outcome;
	int64		token;			/* 0: none */
	int32		attempt;		/* 0: none */
	Datum		response;		/* 0: none */
	TimeOffset	retry_after_us; /* 0: unknown */
	bool		taken_over;		/* from an owner whose lease ran out */
} ClaimAnswer;

/* Reads and checks the arguments lease, ttl and wait. */
extern void claim_read_args(Claim *claim, FunctionCallInfo fcinfo,
							int lease_arg, int ttl_arg, int wait_arg);

extern ClaimAnswer claim_key(const Claim *claim);

/* The columns outcome, token, attempt, response and retry_after. */
extern void claim_answer_columns(const ClaimAnswer *answer, Datum *values,
								 bool *nulls);

#endif							/* CLAIM_CLAIM_H */
