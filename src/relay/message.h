/*
 * message.h
 *		The HTTP request that carries an event.
 */
#ifndef RELAY_MESSAGE_H
#define RELAY_MESSAGE_H

#include "outbox/subscription.h"
#include "relay/http.h"

/*
 * Builds the request for an event in the current memory context, except its
 * tag, and signs it with the current time.  identity is that of the outbox.
 * If the subscription's secret cannot sign, the request says so.
 */
extern void message_build(const OutboxSubscription *subscription,
						  const OutboxEvent *event, const char *identity,
						  HttpRequest *request);

#endif							/* RELAY_MESSAGE_H */
