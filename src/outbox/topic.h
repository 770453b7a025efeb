/*
 * topic.h
 *		Which topics a subscription wants.
 */
#ifndef OUTBOX_TOPIC_H
#define OUTBOX_TOPIC_H

#include "utils/array.h"

/* Does a topic (text) match one of these patterns? */
extern bool outbox_topic_is_wanted(ArrayType *patterns, Datum topic);

#endif							/* OUTBOX_TOPIC_H */
