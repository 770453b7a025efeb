/*
 * key.h
 *		A key: its name, its row, its state.  For the claim module only.
 */
#ifndef CLAIM_KEY_H
#define CLAIM_KEY_H

#include "access/tableam.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"

#include "base/ring.h"

#define KEY_NAME_MAX 255		/* bytes of a key, and of a scope */

typedef enum KeyState
{
	KEY_IN_PROGRESS = 'p',
	KEY_COMPLETED = 'c',
	KEY_FAILED = 'f',			/* permanently: the error is replayed */
	KEY_RETRYABLE = 'r'			/* failed; the next claimer may try again */
} KeyState;

typedef struct KeyName
{
	text	   *scope;
	text	   *key;
} KeyName;

typedef struct KeyRow
{
	int64		token;
	TimestampTz expires_at;		/* -infinity: dropped by idem_forget */
	TimestampTz lease_until;	/* set while in progress */
	int32		attempt;
	KeyState	state;
	bool		expired;		/* key_row_has_expired when it was read */
	bytea	   *request;		/* SHA-256, or NULL */
	Datum		response;		/* jsonb to write; 0: none */
} KeyRow;

/*
 * The live segments of keys, newest first, and a slot for a row.  Tables are
 * opened when they are first needed.
 */
typedef struct KeyRing
{
	RingMap		map;
	Oid			sequence;
	Relation	tables[RING_SIZE];
	Relation	indexes[RING_SIZE];
	bool		written[RING_SIZE];
	TupleTableSlot *slot;
	int			found_in;		/* the segment of the last row found */
	ItemPointerData found_at;
	bool		locked;
} KeyRing;

/* Returns the table of keys whose number is an argument. */
extern Oid	key_segment_arg(FunctionCallInfo fcinfo, int arg);

/* Raises an error unless the text is a valid key. */
extern void key_check_key(text *key);

/* Raises an error if a scope is for keys of the extension itself. */
extern void key_check_not_reserved(const text *scope);

/* Reads and checks the arguments that name a key. */
extern text *key_scope_arg(FunctionCallInfo fcinfo, int arg);
extern KeyName key_name_from_args(FunctionCallInfo fcinfo, int key_arg,
								  int scope_arg);

/*
 * Return from + lease or ttl, or from + the setting if that is NULL.  Raise an
 * error unless it is positive and within the limit of the setting.
 */
extern TimestampTz key_leased_until(const Interval *lease, TimestampTz from);
extern TimestampTz key_expires_at(const Interval *ttl, TimestampTz from);

/* Reads an interval argument; NULL: it is null. */
extern const Interval *key_span_arg(FunctionCallInfo fcinfo, int arg);

/* Returns at + span_us; raises an error if that is out of range. */
extern TimestampTz key_time_after(TimestampTz at, int64 span_us);

/* Begins a search; the map of the ring cannot change until keys_unlock. */
extern void keys_open(KeyRing *keys);

/* Unlocks the ring; must be called before anything that waits. */
extern void keys_unlock(KeyRing *keys);

/* Ends a search; keeps the locks on tables that it has written to. */
extern void keys_close(KeyRing *keys);

/* Opens the table of a segment. */
extern Relation keys_table(KeyRing *keys, int segment);

/* Reads a segment's row of this key into the slot; false: there is none. */
extern bool keys_find_in(KeyRing *keys, int segment, const KeyName *name,
						 Snapshot snapshot);

/* Reads the latest row, committed or our own, into the slot. */
extern bool keys_find(KeyRing *keys, const KeyName *name);

/* Return parts of a row of any segment. */
extern KeyName key_name_of_row(TupleTableSlot *row);
extern TimestampTz key_expiry_of_row(TupleTableSlot *row);

/*
 * Has this row of a segment expired?  It has not for the transaction that wrote
 * it, nor for a snapshot in which that transaction is open.
 */
extern bool key_row_has_expired(TupleTableSlot *row);

/* Copies a row of any segment, except its response. */
extern KeyRow key_row(TupleTableSlot *slot);

/* Copies the response of the row in the slot; 0: none. */
extern Datum keys_response(KeyRing *keys);

/* Insert a key; false: a row with this key exists, perhaps in progress. */
extern bool keys_insert(KeyRing *keys, const KeyName *name, const KeyRow *row);
extern bool keys_insert_row(KeyRing *keys, TupleTableSlot *row);

/* Inserts a row that was deleted from another segment. */
extern void keys_insert_moved(KeyRing *keys, TupleTableSlot *row);

/*
 * Replaces the last row found by a row in the current segment.  Does not wait;
 * the result is as for relation_update.
 */
extern TM_Result keys_replace(KeyRing *keys, const KeyName *name,
							  const KeyRow *row);

/* Deletes the last row found.  Does not wait; result: relation_delete. */
extern TM_Result keys_delete(KeyRing *keys);

/* Returns a token that is larger than every earlier one. */
extern int64 key_next_token(void);

#endif							/* CLAIM_KEY_H */
