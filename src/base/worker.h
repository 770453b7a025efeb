/*
 * worker.h
 *		What our background workers have in common.
 */
#ifndef BASE_WORKER_H
#define BASE_WORKER_H

#include "postmaster/bgworker.h"

#include "base/shared.h"

/* What a worker of a database is started with, in bgw_extra. */
typedef struct WorkerTarget
{
	Oid			database;
	Oid			owner;			/* of the extension; InvalidOid: superuser */
	SharedWorkerSlot slot;			/* whose is it */
} WorkerTarget;

/* Fills in what all our workers share; main is the function's name. */
extern void worker_define(BackgroundWorker *worker, const char *main,
						  const char *name);

/* Signals, connection and settings; the first thing a worker's main does. */
extern void worker_start_in_database(void);

/* As that, and takes the worker's slot, which it returns, or exits. */
extern SharedWorkerSlot worker_start_in_slot(void);

/*
 * Ends the process, and says why in the log; what follows "because".  To be
 * used where nothing has failed.
 */
extern _Noreturn void worker_exit(const char *why);

/* Obeys shutdown and reload; true if the configuration was read again. */
extern bool worker_obey_signals(void);

/*
 * A transaction with SPI in it.  worker_begin returns false, with nothing
 * begun, if the database does not have the extension any more.
 */
extern bool worker_begin(const char *activity);
extern void worker_commit(void);

/*
 * Takes a step in a transaction as above, in its memory context, and commits it.
 * If it fails the transaction is aborted; returns what it failed with, or NULL.
 * Somebody who cancels this process is not kept from it.
 */
extern ErrorData *worker_try(const char *activity, void (*step) (void *arg),
							 void *arg);

#endif							/* BASE_WORKER_H */
