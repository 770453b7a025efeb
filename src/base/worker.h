/*
 * worker.h
 *		What our background workers have in common.  Called by workers only,
 *		except worker_define.
 */
#ifndef BASE_WORKER_H
#define BASE_WORKER_H

#include "postmaster/bgworker.h"

#include "base/shared.h"

/* What a worker of a database is started with; stored in bgw_extra. */
typedef struct WorkerTarget
{
	Oid			database;
	Oid			owner;			/* of the extension; InvalidOid: superuser */
	SharedWorkerSlot slot;		/* not used by discovery */
} WorkerTarget;

/* Fills in what all our workers share; main is the name of the function. */
extern void worker_define(BackgroundWorker *worker, const char *main,
						  const char *name);

/*
 * Sets signal handlers, connects and fixes settings.  Must be the first call of
 * a worker's main function.
 */
extern void worker_start_in_database(void);

/*
 * As worker_start_in_database, and takes the worker's slot, which it returns.
 * Exits if another process has the slot.
 */
extern SharedWorkerSlot worker_start_in_slot(void);

/* Returns the name of the database of this worker. */
extern const char *worker_database_name(void);

/*
 * Ends the process and logs the reason, as in "... ends because <why>".  For
 * cases that are not errors.
 */
extern _Noreturn void worker_exit(const char *why);

/* Handles shutdown and reload; true if the configuration was reloaded. */
extern bool worker_obey_signals(void);

/* The worker has done what it does, without an error. */
extern void worker_note_success(void);

/*
 * Returns the OID of idem_token_seq, by which an extension differs from one
 * that was created again.  Only after the first worker_begin.
 */
extern Oid	worker_extension(void);

/*
 * Begin and commit a transaction with SPI.  worker_begin returns false, and
 * begins nothing, if the database no longer has the extension.
 */
extern bool worker_begin(const char *activity);
extern void worker_commit(void);

/*
 * Ends the transaction after an error, whatever its state is: a subtransaction
 * may still be open, for example if handling an error has failed.
 */
extern void worker_abort(void);

/*
 * Runs step in such a transaction, in its memory context, and commits.
 * If it fails, aborts and returns the error; otherwise returns NULL.  The error
 * ERRCODE_QUERY_CANCELED is thrown to the caller instead.
 */
extern ErrorData *worker_try(const char *activity, void (*step) (void *arg),
							 void *arg);

#endif							/* BASE_WORKER_H */
