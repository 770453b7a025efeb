/*
 * dedup.h
 *		Keys that the extension claims for itself: something that has a number
 *		is made once.
 */
#ifndef CLAIM_DEDUP_H
#define CLAIM_DEDUP_H

#include "fmgr.h"
#include "utils/timestamp.h"

/* Scopes that begin with this are refused by idem_claim and the like. */
#define DEDUP_SCOPE_RESERVED "outbox:"

typedef struct Dedup
{
	text	   *scope;
	text	   *key;
	const Interval *ttl;		/* NULL: idempotency.ttl */
	bool		replace;		/* make a new one in any case */
	int64		(*next) (void); /* returns the number of a new one */
	/* Is the one with this number gone, so that a new one can be made? */
	bool		(*is_gone) (int64 number);
	/* The result: */
	int64		number;			/* of the one that counts now */
	int64		replaced;		/* of the one that counted before; 0: none */
} Dedup;

/*
 * Returns whether a new one is to be made, and its number; otherwise, the
 * number of the one that was made before.  Waits for a transaction that has
 * claimed the key and is still open.
 */
extern bool dedup_claim(Dedup *dedup);

/* For claim.c: the response of a new key; does it replace one with this? */
extern Datum dedup_next_response(Dedup *dedup);
extern bool dedup_replaces(const Dedup *dedup, Datum response);

#endif							/* CLAIM_DEDUP_H */
