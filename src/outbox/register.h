/*
 * register.h
 *		The register of open transactions that have enqueued events.
 */
#ifndef OUTBOX_REGISTER_H
#define OUTBOX_REGISTER_H

#include "access/transam.h"
#include "datatype/timestamp.h"

/* A transaction that may hold positions that are not visible yet. */
typedef struct OutboxOpen
{
	FullTransactionId xid;
	int64		lo;				/* lower bound of its first position */
	TimestampTz registered_at;
} OutboxOpen;

/* Requests the memory; called by shmem_request_hook. */
extern void register_request(void);

/* Creates or attaches to the memory; called by shmem_startup_hook. */
extern void register_startup(void);

/* Returns the next position for this transaction. */
extern int64 register_next_position(void);

/* Makes the commit of this transaction wake the relays in any case. */
extern void register_wake_at_commit(void);

/*
 * Return how many enqueuing transactions of this database have begun to commit
 * asynchronously, and how many of them have ended.
 */
extern uint64 register_async_begun(void);
extern uint64 register_async_ended(void);

/* Copies this database's entries; palloc'd.  Returns how many. */
extern int	register_copy(OutboxOpen **open);

#endif							/* OUTBOX_REGISTER_H */
