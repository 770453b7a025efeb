/*
 * topic_schema.h
 *		JSON schemas of topics.
 */
#ifndef OUTBOX_TOPIC_SCHEMA_H
#define OUTBOX_TOPIC_SCHEMA_H

#include "fmgr.h"

/*
 * Raises an error if the topic has a schema that the payload does not match, or
 * that cannot be checked.  The arguments are those of outbox_enqueue.  Call it
 * before anything of the event is written.
 */
extern void topic_schema_check(FunctionCallInfo fcinfo);

#endif							/* OUTBOX_TOPIC_SCHEMA_H */
