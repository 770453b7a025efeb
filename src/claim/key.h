/*
 * key.h
 *		A remembered key: its name, its row, its state.  Within the claim room.
 */
#ifndef CLAIM_KEY_H
#define CLAIM_KEY_H

#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"

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
	TimestampTz expires_at;		/* when the key is forgotten */
	TimestampTz lease_until;	/* meaningful while in progress */
	int32		attempt;
	KeyState	state;
	bytea	   *request;		/* SHA-256 of it; NULL: not given */
	Datum		response;		/* jsonb; 0: none */
} KeyRow;

/* The open table with a slot to read a row into. */
typedef struct KeyTable
{
	Relation	table;
	Relation	index;
	TupleTableSlot *slot;
} KeyTable;

/* Reads and checks the two arguments that name a key. */
extern KeyName key_name_from_args(FunctionCallInfo fcinfo, int key_arg,
								  int scope_arg);

/* from + the interval argument, or + default_s; it has to lie in the future. */
extern TimestampTz key_deadline(FunctionCallInfo fcinfo, int arg,
								TimestampTz from, int default_s,
								const char *name);

/* at + span_us; raises an error if there is no such time. */
extern TimestampTz key_time_after(TimestampTz at, int64 span_us);

extern KeyTable key_table_open(void);

/* Keeps the lock to the end of the transaction if anything was written. */
extern void key_table_close(KeyTable *keys, bool written);

/* Reads the row that the snapshot shows into the slot. */
extern bool key_find(KeyTable *keys, const KeyName *name, Snapshot snapshot);

/* A copy of what is in the slot. */
extern KeyRow key_row(KeyTable *keys);

/* Fills a slot for relation_insert_or_conflict or relation_update. */
extern void key_store(TupleTableSlot *slot, const KeyName *name,
					  const KeyRow *row);

/* A token larger than every one before it. */
extern int64 key_next_token(void);

#endif							/* CLAIM_KEY_H */
