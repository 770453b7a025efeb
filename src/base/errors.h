/*
 * errors.h
 *		Our own SQLSTATE class, ID.  README.md documents each code; callers
 *		branch on these and never on a message's text.
 *
 * Misuse that PostgreSQL already has a code for (NULL, a bad value, a limit,
 * a missing object) keeps PostgreSQL's code.
 */
#ifndef BASE_ERRORS_H
#define BASE_ERRORS_H

#include "utils/elog.h"

/* The token is not the current owner's: the lease was taken over. */
#define ERRCODE_LEASE_LOST			MAKE_SQLSTATE('I', 'D', '0', '0', '1')
/* No such key is remembered. */
#define ERRCODE_KEY_NOT_FOUND		MAKE_SQLSTATE('I', 'D', '0', '0', '2')
/* The key is in a state that does not allow this. */
#define ERRCODE_KEY_NOT_IN_PROGRESS MAKE_SQLSTATE('I', 'D', '0', '0', '3')

/* The reservation exists with other lines. */
#define ERRCODE_RESERVATION_REUSED	MAKE_SQLSTATE('I', 'D', '0', '0', '4')
/* It was confirmed, cancelled or has expired. */
#define ERRCODE_RESERVATION_CLOSED	MAKE_SQLSTATE('I', 'D', '0', '0', '5')
/* A correction would take more than is available. */
#define ERRCODE_INSUFFICIENT_STOCK	MAKE_SQLSTATE('I', 'D', '0', '0', '6')

#endif							/* BASE_ERRORS_H */
