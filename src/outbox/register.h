/*
 * register.h
 *		The register of open transactions that have enqueued events.
 */
#ifndef OUTBOX_REGISTER_H
#define OUTBOX_REGISTER_H

#include "access/transam.h"
#include "datatype/timestamp.h"

/* A transaction that may hold positions that nobody can see yet. */
typedef struct OutboxOpen
{
	FullTransactionId xid;
	int64		lo;				/* not above its first position */
	TimestampTz registered_at;
} OutboxOpen;

/* Asks for the memory; called at shmem_request time. */
extern void register_request(void);

/* Creates or attaches; called at shmem_startup time. */
extern void register_startup(void);

/* Hands out the next position to this transaction. */
extern int64 register_next_position(void);

/* The commit of this transaction shall wake the relay in any case. */
extern void register_wake_at_commit(void);

/*
 * How many enqueuing transactions of this database have been about to commit
 * without waiting for the disk, and how many of them have ended since.
 */
extern uint64 register_async_begun(void);
extern uint64 register_async_ended(void);

/* Copies the register's entries of this database; palloc'd. */
extern int	register_copy(OutboxOpen **open);

#endif							/* OUTBOX_REGISTER_H */
