/*
 * partition.c
 *		Which relay serves a partition of a subscription: the one that has its
 *		lock.
 *
 * The lock belongs to the session, so it is held between transactions and is
 * released whenever the process ends.  It is an advisory lock of a kind that
 * SQL cannot use.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"

#include "outbox/reader.h"

#define PARTITION_LOCK_KIND 3	/* advisory locks of SQL are 1 and 2 */

static LOCKTAG
partition_lock_tag(OutboxPartitionId id)
{
	LOCKTAG		tag;
	uint32		high = (uint32) (id.subscription >> 32);

	/* Partition numbers need 6 bits. */
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) id.subscription,
						 (uint32) id.number ^ (high << 6), PARTITION_LOCK_KIND);
	return tag;
}

bool
outbox_own_partition(OutboxPartitionId id)
{
	LOCKTAG		tag = partition_lock_tag(id);

	return LockAcquire(&tag, ExclusiveLock, true, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

void
outbox_disown_partition(OutboxPartitionId id)
{
	LOCKTAG		tag = partition_lock_tag(id);

	LockRelease(&tag, ExclusiveLock, true);
}
