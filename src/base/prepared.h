/*
 * prepared.h
 *		Prepared transactions, by the locks that they hold.
 */
#ifndef BASE_PREPARED_H
#define BASE_PREPARED_H

#include "access/transam.h"

/* A prepared transaction. */
typedef struct PreparedXact
{
	FullTransactionId xid;
	bool		recovered;		/* it was prepared before the last start */
} PreparedXact;

/*
 * Finds those that hold RowExclusiveLock, or a stronger lock, on a relation of
 * this database; palloc'd.  Returns how many.  Sets *unknown if some could not
 * be identified: then any transaction that is open now may be one.
 */
extern int	prepared_holders(Oid relation, PreparedXact **xacts,
							 bool *unknown);

/* The full id of a transaction that was open when "next" was the next id. */
extern FullTransactionId prepared_full_xid(FullTransactionId next,
										   TransactionId xid);

#endif							/* BASE_PREPARED_H */
