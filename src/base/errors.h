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

/*
 * Raised in SQL only: ID004 reservation_reused (the reservation exists with
 * other lines), ID005 reservation_closed (it was confirmed, cancelled or has
 * expired).
 */

#endif							/* BASE_ERRORS_H */
