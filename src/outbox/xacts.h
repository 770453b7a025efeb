/*
 * xacts.h
 *		The open transactions that have enqueued events.
 */
#ifndef OUTBOX_XACTS_H
#define OUTBOX_XACTS_H

#include "access/transam.h"
#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

/* A transaction that may hold positions that are not visible yet. */
typedef struct OutboxXact
{
	FullTransactionId xid;
	int64		lo;				/* lower bound of its first position */
	TimestampTz entered_at;
} OutboxXact;

/* Requests the memory; called by shmem_request_hook. */
extern void xacts_request(void);

/* Creates or attaches to the memory; called by shmem_startup_hook. */
extern void xacts_startup(void);

/* Returns the next position for this transaction. */
extern int64 xacts_next_position(void);

/* Makes the commit of this transaction wake the relays in any case. */
extern void xacts_wake_at_commit(void);

/* What a session that reads a subscription has done in its transaction. */
typedef enum XactsReader
{
	XACTS_NOT_READING,
	XACTS_FETCHED,				/* if it aborts, others can fetch the batch */
	XACTS_ACKNOWLEDGED			/* its end lets others fetch the next batch */
} XactsReader;

/* Makes the end of this transaction wake those in outbox_wait. */
extern void xacts_wake_readers(XactsReader done);

/*
 * Called before COMMIT or ROLLBACK PREPARED.  No callback runs for what was
 * prepared, and it may have enqueued events or changed a subscription.
 */
extern void xacts_end_prepared(void);

/*
 * Where the commits that may have events end in the WAL.  A commit is noted
 * before its transaction leaves the set.
 */
extern XLogRecPtr xacts_committed_upto(void);
extern void xacts_note_committed(XLogRecPtr upto);

/*
 * How many transactions that may have events were prepared so far.  Read this,
 * see whether any is left that is prepared, and then ask xacts_any_prepared
 * whether there may be commits of which xacts_committed_upto does not know:
 * those of prepared ones, and those before the start of the server.  If none
 * was left, and all that was visible later is noted, call xacts_note_prepared.
 */
extern uint64 xacts_prepared_begun(void);
extern bool xacts_any_prepared(uint64 begun);
extern void xacts_note_prepared(uint64 begun);

/*
 * Return how many enqueuing transactions of this database have begun to commit
 * asynchronously, and how many of them have ended.
 */
extern uint64 xacts_async_begun(void);
extern uint64 xacts_async_ended(void);

/*
 * The same of those that will wake the relays in any case: they may have
 * changed a subscription.
 */
extern uint64 xacts_changes_begun(void);
extern uint64 xacts_changes_ended(void);

/*
 * Copies those of this database, except prepared ones; palloc'd.  Returns how
 * many.
 */
extern int	xacts_copy(OutboxXact **xacts);

#endif							/* OUTBOX_XACTS_H */
