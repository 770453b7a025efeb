/*
 * errors.h
 *		The SQLSTATEs of our own class, ID, and errors without our own frames.
 *		README.md documents each code.  Callers test these codes, never the
 *		text of a message.
 *
 * Misuse for which PostgreSQL has a code (NULL, a bad value, a limit, a missing
 * object) is reported with PostgreSQL's code.
 */
#ifndef BASE_ERRORS_H
#define BASE_ERRORS_H

#include "utils/elog.h"

/* The token is no longer the owner's: another claimer took the lease over. */
#define ERRCODE_LEASE_LOST			MAKE_SQLSTATE('I', 'D', '0', '0', '1')
/* The key is not known. */
#define ERRCODE_KEY_NOT_FOUND		MAKE_SQLSTATE('I', 'D', '0', '0', '2')
/* The key is not in progress, so it cannot be finished or renewed. */
#define ERRCODE_KEY_NOT_IN_PROGRESS MAKE_SQLSTATE('I', 'D', '0', '0', '3')

/* The reservation exists with other lines. */
#define ERRCODE_RESERVATION_REUSED	MAKE_SQLSTATE('I', 'D', '0', '0', '4')
/* The reservation was confirmed or cancelled, or has expired. */
#define ERRCODE_RESERVATION_CLOSED	MAKE_SQLSTATE('I', 'D', '0', '0', '5')
/* A correction would take more than what is available. */
#define ERRCODE_INSUFFICIENT_STOCK	MAKE_SQLSTATE('I', 'D', '0', '0', '6')

/* The scope has moved to another database. */
#define ERRCODE_SCOPE_MOVED			MAKE_SQLSTATE('I', 'D', '0', '0', '7')

/*
 * For functions that public functions in PL/pgSQL perform to check arguments.
 * The context of an error that they raise then leaves out what is within the
 * public function.
 */
extern void errors_hide_frames(void);

#endif							/* BASE_ERRORS_H */
