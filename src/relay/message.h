/*
 * message.h
 *		An event as it goes over the wire.
 */
#ifndef RELAY_MESSAGE_H
#define RELAY_MESSAGE_H

#include "outbox/subscription.h"
#include "relay/http.h"

/*
 * Builds the request for an event in the current memory context, signed as of
 * now; all but its tag.  identity is the outbox's.  Returns false if the
 * subscription's secret cannot sign.
 */
extern bool message_build(const OutboxSubscription *subscription,
						  const OutboxEvent *event, const char *identity,
						  HttpRequest *request);

#endif							/* RELAY_MESSAGE_H */
