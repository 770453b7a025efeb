/*
 * run.h
 *		A batch of events on its way to one subscription.
 */
#ifndef RELAY_RUN_H
#define RELAY_RUN_H

#include "outbox/subscription.h"
#include "relay/http.h"

typedef struct Run Run;

/*
 * Takes over a batch, and the memory context that it and the subscription are
 * in.  is_new tells outbox_read_batch's from outbox_read_due's.
 */
extern Run *run_start(const OutboxSubscription *subscription,
					  OutboxBatch batch, bool is_new, MemoryContext context);

/* Sends what may go now, at most room requests; returns how many went. */
extern int	run_send(Run *run, int room, const char *identity);

/* Takes an answer to one of a run's requests; its tag says which. */
extern void run_take_response(const HttpResponse *response);

/* Sends nothing more; what is in flight is still waited for. */
extern void run_abandon(Run *run);

/* Has everything in it been decided? */
extern bool run_is_finished(const Run *run);

/* Requests out. */
extern int	run_in_flight(const Run *run);

/* Writes down what became of a finished run, inside a transaction. */
extern void run_settle(const Run *run);

/* Frees a run; call after the transaction that settled it has committed. */
extern void run_free(Run *run);

#endif							/* RELAY_RUN_H */
