/*
 * subtransaction.h
 *		Runs a function in a subtransaction and tells whether it has failed.
 */
#ifndef BASE_SUBTRANSACTION_H
#define BASE_SUBTRANSACTION_H

/*
 * Calls step in a subtransaction, in the current memory context.  If it fails,
 * rolls back and returns the error; otherwise returns NULL, and the work is
 * kept or rolled back as wanted.  The error ERRCODE_QUERY_CANCELED, of a cancel
 * or a timeout, and an error of the commit are thrown to the caller instead,
 * after the rollback.
 */
extern ErrorData *subtransaction_try(void (*step) (void *arg), void *arg,
									 bool keep);

#endif							/* BASE_SUBTRANSACTION_H */
