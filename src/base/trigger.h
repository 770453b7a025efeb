/*
 * trigger.h
 *		Checks how our trigger functions are called, and whether our triggers
 *		are enabled.
 */
#ifndef BASE_TRIGGER_H
#define BASE_TRIGGER_H

#include "commands/trigger.h"
#include "fmgr.h"

#include "base/catalog.h"

/*
 * Raises an error unless the function was called as a trigger of one of these
 * kinds (timing, level and event, as TRIGGER_EVENT_*) on one of these tables.
 * Any role that may execute the function can create other triggers with it.
 */
extern TriggerData *trigger_called(FunctionCallInfo fcinfo,
								   const TriggerEvent *kinds, int kind_count,
								   const Oid *tables, int table_count);

/* Raises an error unless the triggers are ENABLE ALWAYS, as created. */
extern void trigger_require(const CatalogTriggers *triggers);

#endif							/* BASE_TRIGGER_H */
