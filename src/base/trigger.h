/*
 * trigger.h
 *		What a trigger function of ours makes sure of first.
 */
#ifndef BASE_TRIGGER_H
#define BASE_TRIGGER_H

#include "commands/trigger.h"
#include "fmgr.h"

/*
 * Raises an error unless the function was called as a trigger of one of these
 * kinds (timing, level and event, as TRIGGER_EVENT_*) on one of these tables.
 * Anybody who may execute it can make it a trigger of any kind on any table.
 */
extern TriggerData *trigger_called(FunctionCallInfo fcinfo,
								   const TriggerEvent *kinds, int kind_count,
								   const Oid *tables, int table_count);

#endif							/* BASE_TRIGGER_H */
