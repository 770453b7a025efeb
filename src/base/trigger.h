/*
 * trigger.h
 *		What a trigger function of ours makes sure of first, and so does whoever
 *		relies on it.
 */
#ifndef BASE_TRIGGER_H
#define BASE_TRIGGER_H

#include "commands/trigger.h"
#include "fmgr.h"

#include "base/catalog.h"

/*
 * Raises an error unless the function was called as a trigger of one of these
 * kinds (timing, level and event, as TRIGGER_EVENT_*) on one of these tables.
 * Anybody who may execute it can make it a trigger of any kind on any table.
 */
extern TriggerData *trigger_called(FunctionCallInfo fcinfo,
								   const TriggerEvent *kinds, int kind_count,
								   const Oid *tables, int table_count);

/* Raises an error unless the triggers are in force. */
extern void trigger_require(const CatalogTriggers *triggers);

#endif							/* BASE_TRIGGER_H */
