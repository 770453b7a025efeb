/*
 * traffic.h
 *		Statistics of what relays have sent to each subscription, in shared
 *		memory.
 */
#ifndef RELAY_TRAFFIC_H
#define RELAY_TRAFFIC_H

#include "datatype/timestamp.h"

#include "relay/http.h"

/* Requests the memory and its lock; called by shmem_request_hook. */
extern void traffic_request(void);

/* Creates or attaches to the memory; called by shmem_startup_hook. */
extern void traffic_startup(void);

/* A request to a subscription was answered, or has failed. */
extern void traffic_count_request(int64 subscription,
								  const HttpResponse *response);

/* Events that were due at these times were delivered to a subscription. */
extern void traffic_count_deliveries(int64 subscription,
									 const TimestampTz *due_at, int count);

/* The database, or the extension in it, is being dropped. */
extern void traffic_forget_database(Oid database);

#endif							/* RELAY_TRAFFIC_H */
