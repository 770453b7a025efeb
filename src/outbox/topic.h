/*
 * topic.h
 *		Topics of events.
 */
#ifndef OUTBOX_TOPIC_H
#define OUTBOX_TOPIC_H

#include "utils/array.h"

/* Is this the topic of an event of the extension itself? */
extern bool topic_is_reserved(const text *topic);

/* Does a relay send an event of the log to a subscription with these topics? */
extern bool topic_is_wanted(ArrayType *patterns, const text *topic);

#endif							/* OUTBOX_TOPIC_H */
