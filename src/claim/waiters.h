/*
 * waiters.h
 *		Sessions that wait for keys, and transactions that wake them.
 */
#ifndef CLAIM_WAITERS_H
#define CLAIM_WAITERS_H

#include "claim/key.h"

/* Requests the memory; called by shmem_request_hook. */
extern void waiters_request(void);

/* Creates or attaches to the memory; called by shmem_startup_hook. */
extern void waiters_startup(void);

/* This transaction writes a key: its end wakes those who wait for it. */
extern void waiters_note(const KeyName *name);

/* What a session knows of the wake-ups for a key before it looks at it. */
typedef struct Waiter
{
	int			bucket;
	uint64		ends;
} Waiter;

/*
 * Must be called before looking at the key.  Any change after that ends
 * waiters_sleep, which sleeps for so many milliseconds at most.
 */
extern Waiter waiters_arm(const KeyName *name);
extern void waiters_sleep(const Waiter *waiter, long ms);

#endif							/* CLAIM_WAITERS_H */
