/*
 * served.h
 *		What a relay serves: its part of the partitions, and their subscriptions
 *		in memory.
 */
#ifndef RELAY_SERVED_H
#define RELAY_SERVED_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/hsearch.h"

#include "base/shared.h"
#include "outbox/partition.h"
#include "relay/head.h"

typedef struct Served
{
	SharedDatabase *database;
	Head	   *head;			/* of this relay */
	MemoryContext context;		/* lives as long as the process */
	int			rank;			/* among the relays that run; -1: none */
	int			relays;			/* the number of relays that run */
	bool		buckets[OUTBOX_BUCKETS];	/* those that this relay has */
	int			bucket_feeds[OUTBOX_BUCKETS];	/* number of feeds in each */
	TimestampTz own_at;			/* when to try to get more; 0: not needed */
	List	   *endpoints;		/* of Endpoint * */
	HTAB	   *table;			/* the same, by subscription */
	int64	   *loads;			/* subscriptions that are to be loaded */
	int			load_count;
	int			load_room;		/* allocated */
	uint64		look;			/* number of the last look at all */
	uint64		seen_changes;	/* that had begun at the last look */
	bool		seen_all;		/* all of these had ended before it */
	TimestampTz next_look_at;
	char		identity[NAMEDATALEN];	/* of the outbox */
	bool		held;			/* this is a copy with subscriptions */
} Served;

extern void served_init(Served *served, SharedDatabase *database, Head *head,
						MemoryContext context);

/*
 * Divides the buckets among the relays that run.  Call it before the snapshot
 * of a pass is taken: then that shows all that the relay before has recorded.
 */
extern void served_divide(Served *served);

/*
 * Looks at all subscriptions if one of them may have changed, and from time to
 * time: then again at next_look_at.  Changes by other means than our functions,
 * and deliveries that they have made due, are seen only then.  changes_ended
 * was read before the snapshot was taken.
 */
extern void served_look(Served *served, uint64 changes_ended,
						TimestampTz next_look_at);

/*
 * Loads subscriptions that have changed, some at a time.  Returns whether all
 * are loaded.
 */
extern bool served_load(Served *served);

/*
 * Stops the batches of partitions that this relay does not have to serve any
 * more, and frees these partitions when their batches have ended.
 */
extern void served_drop_inactive(Served *served);

#endif							/* RELAY_SERVED_H */
