/*
 * turn.c
 *		Shows since when this relay has been in the present turn of its loop,
 *		and at which subscription it is.
 *
 * A turn takes milliseconds.  If one takes much longer, all deliveries of the
 * database wait, and idempotency_status() names the subscription
 * (outbox/status.sql).
 */
#include "postgres.h"

#include "port/atomics.h"

#include "relay/turn.h"

static SharedRelay *mine = NULL;

void
turn_start(SharedDatabase *database, int relay)
{
	mine = &database->relays[relay];
	turn_rest();
}

void
turn_begin(TimestampTz now)
{
	turn_at(0);
	pg_atomic_write_u64(&mine->turn_since, now);
}

void
turn_rest(void)
{
	pg_atomic_write_u64(&mine->turn_since, 0);
}

void
turn_at(int64 subscription)
{
	pg_atomic_write_u64(&mine->turn_at, subscription);
}
