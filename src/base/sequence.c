/*
 * sequence.c
 *		Numbers that do not repeat: tokens, positions, ids of the log of stock.
 *
 * pg_restore --data-only sets each sequence as it was in the dump, after all
 * rows are there; if the database was in use meanwhile, that is back.  So the
 * highest number that was handed out also stands in shared memory, and numbers
 * that are not above it are passed over.  A restart forgets it: then
 * idempotency_repair() sets the sequences.
 */
#include "postgres.h"

#include "commands/sequence.h"
#include "miscadmin.h"

#include "base/sequence.h"

/*
 * Where the highest number stands; NULL: there is no place for it.  It belongs
 * to one sequence: after DROP and CREATE EXTENSION it starts over.
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
 * What is known is read before a number is taken: so a number that another
 * session has taken in between is no reason to pass over ours.
 */
int64
sequence_next(SharedSequence id, Oid sequence, int64 floor)
{
	pg_atomic_uint64 *place = sequence_place(id, sequence);
	uint64		known = place == NULL ? 0 : pg_atomic_read_u64(place);
	int64		number;

	floor = Max(floor, (int64) known);
	do
	{
		CHECK_FOR_INTERRUPTS();
		number = nextval_internal(sequence, false);
	} while (number <= floor);
	while (place != NULL && known < (uint64) number &&
		   !pg_atomic_compare_exchange_u64(place, &known, number))
		 /* known was refreshed */ ;
	return number;
}
