/*
 * names.h
 *		Which names of reservations are new.  For the stock module only, except
 *		names_request and names_startup, which idempotency.c calls.
 */
#ifndef STOCK_NAMES_H
#define STOCK_NAMES_H

#include "c.h"

/*
 * A name that a reservation is about to use.  names_find and then names_begin
 * decide whether it is new.
 */
typedef struct ReservationName
{
	uint64		hash;
	bool		is_new;
	uint32		generation;		/* of the filter that knows the name */
} ReservationName;

extern void names_request(void);
extern void names_startup(void);

/* Must be called before all functions below. */
extern void names_prepare(void);

/* Looks whether the name is new, for the moment. */
extern ReservationName names_find(Oid log, const text *reservation);

/*
 * For a name that may be known: from now on nobody else finds that it is new,
 * and if somebody did, he has written its first row.
 */
extern void names_note(ReservationName *name);

/*
 * Must surround the insertion of the first row of the reservation.  If
 * names_begin returns false, it has begun nothing: the name is not new any
 * more, or has to be noted again.  An error may end it.
 */
extern bool names_begin(const ReservationName *name);
extern void names_end(const ReservationName *name);

/* Rows have been written that the filter does not know; for external DML. */
extern void names_forget(void);

/*
 * Tells that rows of the history are moved between its tables: a build must not
 * miss them.
 */
extern void names_note_moved(void);

#endif							/* STOCK_NAMES_H */
