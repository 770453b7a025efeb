/*
 * header.h
 *		Which HTTP headers events and subscriptions may add to a request.
 */
#ifndef OUTBOX_HEADER_H
#define OUTBOX_HEADER_H

#include "utils/jsonb.h"

/* Raises an error unless all headers of the object may be sent. */
extern void header_check(Jsonb *headers);

#endif							/* OUTBOX_HEADER_H */
