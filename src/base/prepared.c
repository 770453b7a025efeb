/*
 * prepared.c
 *		Finds prepared transactions by the locks that they hold.
 *
 * No callback of ours runs when a prepared transaction ends, perhaps days later
 * or after a restart.  But its locks tell of it from the moment at which it is
 * prepared to the moment at which its end is visible: PREPARE TRANSACTION hands
 * them over from the session, and a restart restores them.
 *
 * A lock names its holder by a virtual transaction id.  That of a transaction
 * prepared before the last start is its transaction id.  Two others have the
 * same one if a backend has used up all its numbers in between.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lock.h"

#include "base/prepared.h"

FullTransactionId
prepared_full_xid(FullTransactionId next, TransactionId xid)
{
	uint32		epoch = EpochFromFullTransactionId(next);

	Assert(TransactionIdIsNormal(xid));
	if (xid >= XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

/*
 * Returns the id of the holder of a lock if it is prepared.
 */
static TransactionId
prepared_xid(VirtualTransactionId holder, bool *unknown)
{
	bool		more = false;
	TransactionId xid;

	if (VirtualTransactionIdIsRecoveredPreparedXact(holder))
		return holder.localTransactionId;
	xid = TwoPhaseGetXidByVirtualXID(holder, &more);
	*unknown |= more;
	return xid;
}

/*
 * The next id is read after the locks: then all holders have lower ones.
 */
int
prepared_holders(Oid relation, PreparedXact **xacts, bool *unknown)
{
	VirtualTransactionId *holders;
	FullTransactionId next;
	LOCKTAG		tag;
	int			holder_count;
	int			count = 0;

	*xacts = NULL;
	*unknown = false;
	if (max_prepared_xacts == 0)
		return 0;
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relation);
	holders = GetLockConflicts(&tag, ShareLock, &holder_count);
	next = ReadNextFullTransactionId();
	*xacts = palloc(mul_size(holder_count + 1, sizeof(PreparedXact)));
	for (int i = 0; i < holder_count; i++)
	{
		TransactionId xid = prepared_xid(holders[i], unknown);
		PreparedXact *xact = &(*xacts)[count];

		if (!TransactionIdIsValid(xid))
			continue;
		xact->xid = prepared_full_xid(next, xid);
		xact->recovered =
			VirtualTransactionIdIsRecoveredPreparedXact(holders[i]);
		count++;
	}
	return count;
}
