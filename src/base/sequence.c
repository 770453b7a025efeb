/*
 * sequence.c
 *		Numbers that do not repeat: tokens, positions, ids of stock_log.
 *
 * pg_restore --data-only sets each sequence as it was in the dump, after all
 * rows have been loaded.  If the database has been in use since the dump, the
 * sequence is then behind.  So shared memory also holds the highest number that
 * was handed out, and sessions skip numbers up to that.  A session must never
 * return a number that does not raise the highest one: another session may have
 * the same number.  A restart forgets the highest number; idempotency_repair()
 * then sets the sequences.
 */
#include "postgres.h"

#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "base/sequence.h"

/* The most numbers that one call skips, which takes seconds. */
#define SEQUENCE_SKIP_MAX 10000000

/* More numbers than are drawn in the instant between two steps. */
#define SEQUENCE_MARGIN (1 << 20)

/*
 * Returns where the highest number is kept, or NULL if there is no shared
 * memory or no free entry.  The number belongs to one sequence: after DROP and
 * CREATE EXTENSION it starts at 0 again.
 */
static pg_atomic_uint64 *
sequence_place(SharedSequence id, Oid sequence)
{
	SharedDatabase *database = shared_known_database();

	if (database == NULL)
		return NULL;
	SpinLockAcquire(&database->mutex);
	if (database->sequences[id] != sequence)
	{
		database->sequences[id] = sequence;
		pg_atomic_write_u64(&database->highest[id], 0);
	}
	SpinLockRelease(&database->mutex);
	return &database->highest[id];
}

int64
sequence_highest(SharedSequence id, Oid sequence)
{
	pg_atomic_uint64 *place = sequence_place(id, sequence);

	return place == NULL ? 0 : (int64) pg_atomic_read_u64(place);
}

/*
 * Records a number that was handed out.  Returns false if the highest number is
 * not less already.
 */
static bool
sequence_raise(SharedSequence id, Oid sequence, int64 number)
{
	pg_atomic_uint64 *place = sequence_place(id, sequence);
	uint64		known;

	Assert(number >= 0);
	if (place == NULL)
		return true;
	known = pg_atomic_read_u64(place);
	while (known < (uint64) number)
	{
		if (pg_atomic_compare_exchange_u64(place, &known, number))
			return true;
	}
	return false;
}

/*
 * The lock is for those who advance the sequence; it does not stop those who
 * draw numbers.  So we go further than needed, by more numbers than can be
 * drawn meanwhile: otherwise, the sequence might be set back.
 */
void
sequence_advance(SharedSequence id, Oid sequence, int64 beyond)
{
	LOCAL_FCINFO(fcinfo, 1);
	Datum		last;

	LockRelationOid(sequence, ShareUpdateExclusiveLock);
	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = ObjectIdGetDatum(sequence);
	fcinfo->args[0].isnull = false;
	last = pg_sequence_last_value(fcinfo);
	if (fcinfo->isnull || DatumGetInt64(last) < beyond)
		DirectFunctionCall2(setval_oid, ObjectIdGetDatum(sequence),
							Int64GetDatum(beyond + SEQUENCE_MARGIN));
	UnlockRelationOid(sequence, ShareUpdateExclusiveLock);
	sequence_raise(id, sequence, beyond);
}

/*
 * A number that raises the highest one is ours: no other session has got the
 * same number, even if the sequence was set back in between.
 */
int64
sequence_next(SharedSequence id, Oid sequence, int64 floor)
{
	for (int i = 0; i < SEQUENCE_SKIP_MAX; i++)
	{
		int64		number = nextval_internal(sequence, false);

		if (number > floor && sequence_raise(id, sequence, number))
			return number;
		CHECK_FOR_INTERRUPTS();
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("sequence \"%s\" was set back too far", get_rel_name(sequence)),
			 errhint("Let the extension's owner set it to %lld by setval().",
					 (long long) Max(floor, sequence_highest(id, sequence)))));
}
