/*
 * key.h
 *		A remembered key: its name, its row, its state.  Within the claim module.
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
	KEY_FAILED = 'f',			/* for good: the error is replayed */
	KEY_RETRYABLE = 'r'			/* failed, and free for the next claimer */
} KeyState;

typedef struct KeyName
{
	text	   *scope;
	text	   *key;
} KeyName;

typedef struct KeyRow
{
	int64		token;
	TimestampTz expires_at;		/* when it is forgotten; -infinity: it was */
	TimestampTz lease_until;	/* meaningful while in progress */
	int32		attempt;
	KeyState	state;
	bool		expired;		/* key_row_has_expired, when it was read */
	bytea	   *request;		/* SHA-256 of it; NULL: not given */
	Datum		response;		/* jsonb to be written; 0: none */
} KeyRow;

/*
 * The live segments of keys, newest first, with a slot for a row.  A table
 * is opened when it is first needed.
 */
typedef struct KeyRing
{
	RingMap		map;
	Oid			sequence;
	Relation	tables[RING_SIZE];
	Relation	indexes[RING_SIZE];
	bool		written[RING_SIZE];
	TupleTableSlot *slot;
	int			found_in;		/* the segment of the row last found */
	ItemPointerData found_at;
	bool		locked;
} KeyRing;

/* Raises an error unless the transaction may write. */
extern void key_prevent_if_readonly(const char *function);

/* The table of keys that an argument names by its number. */
extern Oid	key_segment_arg(FunctionCallInfo fcinfo, int arg);

/* Raises an error unless text can be a key. */
extern void key_check_key(text *key);

/* Reads and checks the arguments that name a key. */
extern text *key_scope_arg(FunctionCallInfo fcinfo, int arg);
extern KeyName key_name_from_args(FunctionCallInfo fcinfo, int key_arg,
								  int scope_arg);

/*
 * from + a lease or a ttl, or + the setting if that is NULL.  It has to be
 * positive, and no longer than the setting may be.
 */
extern TimestampTz key_leased_until(const Interval *lease, TimestampTz from);
extern TimestampTz key_expires_at(const Interval *ttl, TimestampTz from);

/* An argument for these. */
extern const Interval *key_span_arg(FunctionCallInfo fcinfo, int arg);

/* at + span_us; raises an error if there is no such time. */
extern TimestampTz key_time_after(TimestampTz at, int64 span_us);

/*
 * Begins a look at the keys: the ring stays as it is until keys_unlock.
 */
extern void keys_open(KeyRing *keys);

/* Lets go of the ring; to be called before anything that waits. */
extern void keys_unlock(KeyRing *keys);

/* Ends a look; keeps the locks of what it has written. */
extern void keys_close(KeyRing *keys);

/* The table of a segment. */
extern Relation keys_table(KeyRing *keys, int segment);

/* Reads the row that the snapshot shows in a segment into the slot. */
extern bool keys_find_in(KeyRing *keys, int segment, const KeyName *name,
						 Snapshot snapshot);

/* Reads the newest committed row, or this transaction's own, into the slot. */
extern bool keys_find(KeyRing *keys, const KeyName *name);

/* Parts of a row of any segment. */
extern KeyName key_name_of_row(TupleTableSlot *row);
extern TimestampTz key_expiry_of_row(TupleTableSlot *row);

/*
 * Is a row that was read from a segment unknown again?  Not for the
 * transaction that wrote it, nor for a statement that began before that ended.
 */
extern bool key_row_has_expired(TupleTableSlot *row);

/* A copy of a row of any segment, but for the response. */
extern KeyRow key_row(TupleTableSlot *slot);

/* A copy of the response in the slot; 0: none. */
extern Datum keys_response(KeyRing *keys);

/* Inserts a key that is not there; false: there is one, perhaps in progress. */
extern bool keys_insert(KeyRing *keys, const KeyName *name, const KeyRow *row);
extern bool keys_insert_row(KeyRing *keys, TupleTableSlot *row);

/* Inserts a row of another segment that was deleted there. */
extern void keys_insert_moved(KeyRing *keys, TupleTableSlot *row);

/*
 * Puts a row in the place of the one last found, in the current segment.
 * Does not wait: see relation_update.
 */
extern TM_Result keys_replace(KeyRing *keys, const KeyName *name,
							  const KeyRow *row);

/* Deletes the row last found.  Does not wait: see relation_delete. */
extern TM_Result keys_delete(KeyRing *keys);

/* A token larger than every one before it. */
extern int64 key_next_token(void);

#endif							/* CLAIM_KEY_H */
