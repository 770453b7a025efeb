/*
 * message.h
 *		The HTTP request that carries an event.
 */
#ifndef RELAY_MESSAGE_H
#define RELAY_MESSAGE_H

#include "outbox/subscription.h"
#include "relay/http.h"

/*
 * Builds the request for events (OutboxEvent *) in the current memory context,
 * except its tag, and signs it with the current time.  There may be several if
 * the batch of the subscription is larger than 1 and all have the same headers.
 * identity is that of the outbox.  If the subscription's secret cannot sign,
 * the request says so.
 */
extern void message_build(const OutboxSubscription *subscription,
						  List *events, const char *identity,
						  HttpRequest *request);

/* The most bytes that an event takes in a body with several. */
extern Size message_batched_size(const OutboxEvent *event,
								 const char *identity);

/* Have the events the same headers of their own? */
extern bool message_same_headers(const OutboxEvent *event,
								 const OutboxEvent *other);

#endif							/* RELAY_MESSAGE_H */
