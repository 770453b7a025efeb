/*
 * wait.h
 *		For procedures that sleep: without a snapshot, and without locks.
 */
#ifndef BASE_WAIT_H
#define BASE_WAIT_H

/*
 * Lets go of the snapshot that a CALL has.  Raises an error if the caller of
 * the procedure has another one.
 */
extern void wait_release_snapshot(const char *procedure);

/*
 * Calls a function in a subtransaction, with a snapshot and SPI, and rolls that
 * back, whose locks are released so.
 */
extern void wait_look(void (*look) (void *arg), void *arg);

#endif							/* BASE_WAIT_H */
