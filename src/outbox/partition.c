/*
 * partition.c
 *		How far each partition has read, as recorded, and which relay serves it.
 *
 * A partition has a pair (position, stragglers) of its own, and may follow the
 * head of a relay (relay/head.c), which has a pair, too.  What it has reached
 * is the later one of the two.  So the row of the head is a promise for every
 * partition that follows it: before it is written, partitions that still have
 * events on their way stop following it.
 *
 * A relay serves the partitions of the buckets that it has the locks of.  These
 * locks belong to the session, so they are held between transactions and are
 * released whenever the process ends.  They are advisory locks of a kind that
 * SQL cannot use.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/xid8.h"

#include "base/query.h"
#include "outbox/partition.h"

#define PARTITION_LOCK_KIND 3	/* advisory locks of SQL are 1 and 2 */

static SavedQuery lock_partition = {
	.sql = "SELECT p.position, p.head FROM idempotency_internal.outbox_subscription s"
	" JOIN idempotency_internal.outbox_partition p ON p.subscription = s.id"
	" WHERE s.id = $1 AND p.number = $2"
	" FOR KEY SHARE OF s SKIP LOCKED FOR NO KEY UPDATE OF p SKIP LOCKED",
	.types = {INT8OID, INT4OID}
};

static SavedQuery find_partition = {
	.sql = "SELECT FROM idempotency_internal.outbox_subscription s"
	" JOIN idempotency_internal.outbox_partition p ON p.subscription = s.id"
	" WHERE s.id = $1 AND p.number = $2",
	.types = {INT8OID, INT4OID}
};

static SavedQuery write_partition = {
	.sql = "UPDATE idempotency_internal.outbox_partition"
	" SET position = $3, stragglers = $4, straggler_froms = $5, head = $6,"
	"  delivered = delivered + $7,"
	"  rate = idempotency_internal.outbox_rate(rate, moved_at, $7),"
	"  moved_at = clock_timestamp(), filtered = filtered + $8,"
	"  filter_errors = filter_errors + $9"
	" WHERE subscription = $1 AND number = $2",
	.types = {
		INT8OID, INT4OID, INT8OID, XID8ARRAYOID, INT8ARRAYOID, INT2OID,
		INT8OID, INT8OID, INT8OID
	}
};

static SavedQuery count_delivered = {
	.sql = "UPDATE idempotency_internal.outbox_partition"
	" SET delivered = delivered + $3,"
	"  rate = idempotency_internal.outbox_rate(rate, moved_at, $3),"
	"  moved_at = clock_timestamp()"
	" WHERE subscription = $1 AND number = $2",
	.types = {INT8OID, INT4OID, INT8OID}
};

static SavedQuery read_head = {
	.sql = "SELECT position, stragglers, straggler_froms"
	" FROM idempotency_internal.outbox_head WHERE relay = $1",
	.types = {INT2OID}
};

static SavedQuery write_head = {
	.sql = "INSERT INTO idempotency_internal.outbox_head"
	" (relay, position, stragglers, straggler_froms) VALUES ($1, $2, $3, $4)"
	" ON CONFLICT (relay) DO UPDATE SET position = excluded.position,"
	"  stragglers = excluded.stragglers,"
	"  straggler_froms = excluded.straggler_froms",
	.types = {INT2OID, INT8OID, XID8ARRAYOID, INT8ARRAYOID}
};

#define LEAVE_HEAD \
	"UPDATE idempotency_internal.outbox_partition p" \
	" SET (position, stragglers, straggler_froms, head) = (" \
	"  SELECT r.position, r.stragglers, r.straggler_froms, NULL::smallint" \
	"  FROM idempotency_internal.outbox_reached r" \
	"  WHERE r.subscription = p.subscription AND r.number = p.number)" \
	" WHERE "

static SavedQuery leave_head_alone = {
	.sql = LEAVE_HEAD "p.subscription = $1 AND p.number = $2",
	.types = {INT8OID, INT4OID}
};

/* $2: the relay's buckets. */
static SavedQuery leave_head = {
	.sql = LEAVE_HEAD "p.head = $1"
	" AND (((p.subscription + p.number) % " CppAsString2(OUTBOX_BUCKETS) ")::int4 <> ALL ($2)"
	"  OR (SELECT s.id FROM idempotency_internal.outbox_subscription s"
	"   WHERE s.id = p.subscription AND s.state = 'active') IS NULL)",
	.types = {INT2OID, INT4ARRAYOID}
};

OutboxCursor
outbox_copy_cursor(const OutboxCursor *cursor)
{
	OutboxCursor copy = *cursor;

	Assert(cursor->straggler_count == 0 || cursor->stragglers != NULL);
	copy.stragglers =
		palloc(cursor->straggler_count * sizeof(OutboxStraggler) + 1);
	for (int i = 0; i < cursor->straggler_count; i++)
		copy.stragglers[i] = cursor->stragglers[i];
	return copy;
}

const OutboxStraggler *
outbox_cursor_find(const OutboxCursor *cursor, FullTransactionId xid)
{
	for (int i = 0; i < cursor->straggler_count; i++)
	{
		if (FullTransactionIdEquals(cursor->stragglers[i].xid, xid))
			return &cursor->stragglers[i];
	}
	return NULL;
}

bool
outbox_cursors_equal(const OutboxCursor *one, const OutboxCursor *other,
					 bool compare_froms)
{
	if (one->position != other->position ||
		one->straggler_count != other->straggler_count)
		return false;
	for (int i = 0; i < one->straggler_count; i++)
	{
		const OutboxStraggler *found =
			outbox_cursor_find(other, one->stragglers[i].xid);

		if (found == NULL ||
			(compare_froms && found->from != one->stragglers[i].from))
			return false;
	}
	return true;
}

bool
outbox_cursor_from_row(uint64 row, int column, OutboxCursor *cursor)
{
	int			count;
	int64	   *xids = query_int64_elements(row, column + 1, &count);
	int64	   *froms = query_int64_elements(row, column + 2,
											 &cursor->straggler_count);

	if (xids == NULL || froms == NULL || count != cursor->straggler_count)
		return false;
	cursor->position = query_int64(row, column);
	cursor->stragglers = palloc(count * sizeof(OutboxStraggler) + 1);
	for (int i = 0; i < count; i++)
	{
		cursor->stragglers[i].xid = FullTransactionIdFromU64((uint64) xids[i]);
		cursor->stragglers[i].from = froms[i];
	}
	return true;
}

void
outbox_cursor_values(Datum *values, const OutboxCursor *cursor)
{
	int			count = cursor->straggler_count;
	Datum	   *xids = palloc((count + 1) * sizeof(Datum));
	Datum	   *froms = palloc((count + 1) * sizeof(Datum));

	for (int i = 0; i < count; i++)
	{
		xids[i] = FullTransactionIdGetDatum(cursor->stragglers[i].xid);
		froms[i] = Int64GetDatum(cursor->stragglers[i].from);
	}
	values[0] = Int64GetDatum(cursor->position);
	values[1] = query_array8(xids, count, XID8OID);
	values[2] = query_array8(froms, count, INT8OID);
}

OutboxRow
outbox_row(uint64 row, int column)
{
	OutboxRow	result = {.position = query_int64(row, column)};
	bool		isnull;
	Datum		head = query_datum(row, column + 1, &isnull);

	result.head = isnull ? OUTBOX_NO_HEAD : DatumGetInt16(head);
	return result;
}

OutboxLock
outbox_lock_partition(OutboxPartitionId id, OutboxRow *row)
{
	Datum		values[2];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	if (query_run(&lock_partition, values, NULL, false) > 0)
	{
		*row = outbox_row(0, 1);
		return OUTBOX_LOCKED;
	}
	if (query_run(&find_partition, values, NULL, false) > 0)
		return OUTBOX_BUSY;
	return OUTBOX_GONE;
}

void
outbox_write_partition(OutboxPartitionId id, const OutboxCursor *cursor,
					   int head, int64 delivered, FilterCounts filtered)
{
	Datum		values[9];
	char		nulls[10] = "         ";

	Assert(delivered >= 0 && filtered.filtered >= 0 && filtered.errors >= 0);
	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	outbox_cursor_values(&values[2], cursor);
	values[5] = Int16GetDatum(head);
	nulls[5] = head == OUTBOX_NO_HEAD ? 'n' : ' ';
	values[6] = Int64GetDatum(delivered);
	values[7] = Int64GetDatum(filtered.filtered);
	values[8] = Int64GetDatum(filtered.errors);
	query_run(&write_partition, values, nulls, false);
}

void
outbox_count_delivered(OutboxPartitionId id, int64 delivered)
{
	Datum		values[3];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	values[2] = Int64GetDatum(delivered);
	query_run(&count_delivered, values, NULL, false);
}

bool
outbox_read_head(int relay, OutboxCursor *cursor)
{
	Datum		values[1];

	values[0] = Int16GetDatum(relay);
	return query_run(&read_head, values, NULL, true) > 0 &&
		outbox_cursor_from_row(0, 1, cursor);
}

void
outbox_write_head(int relay, const OutboxCursor *cursor)
{
	Datum		values[4];

	values[0] = Int16GetDatum(relay);
	outbox_cursor_values(&values[1], cursor);
	query_run(&write_head, values, NULL, false);
}

void
outbox_leave_head_alone(OutboxPartitionId id)
{
	Datum		values[2];

	values[0] = Int64GetDatum(id.subscription);
	values[1] = Int32GetDatum(id.number);
	query_run(&leave_head_alone, values, NULL, false);
}

void
outbox_leave_head(int relay, const bool *buckets)
{
	Datum		own[OUTBOX_BUCKETS];
	int			count = 0;
	Datum		values[2];

	for (int i = 0; i < OUTBOX_BUCKETS; i++)
	{
		if (buckets[i])
			own[count++] = Int32GetDatum(i);
	}
	values[0] = Int16GetDatum(relay);
	values[1] = PointerGetDatum(construct_array(own, count, INT4OID,
												sizeof(int32), true,
												TYPALIGN_INT));
	query_run(&leave_head, values, NULL, false);
}

int
outbox_bucket(OutboxPartitionId id)
{
	return (int) (((uint64) id.subscription + id.number) % OUTBOX_BUCKETS);
}

static LOCKTAG
partition_lock_tag(int bucket)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, bucket, PARTITION_LOCK_KIND);
	return tag;
}

bool
outbox_own_bucket(int bucket)
{
	LOCKTAG		tag = partition_lock_tag(bucket);

	return LockAcquire(&tag, ExclusiveLock, true, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

void
outbox_disown_bucket(int bucket)
{
	LOCKTAG		tag = partition_lock_tag(bucket);
	bool		held PG_USED_FOR_ASSERTS_ONLY;

	held = LockRelease(&tag, ExclusiveLock, true);
	Assert(held);
}
