/*
 * trigger.c
 *		Trigger functions of ours, called as what they are not.
 *
 * They rely on the columns of their table and on what a kind of trigger is given.
 * Those in PL/pgSQL compare the same, and call idempotency_refuse_trigger.
 */
#include "postgres.h"

#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/trigger.h"

#define TRIGGER_KIND \
	(TRIGGER_EVENT_OPMASK | TRIGGER_EVENT_ROW | TRIGGER_EVENT_TIMINGMASK)

TriggerData *
trigger_called(FunctionCallInfo fcinfo, const TriggerEvent *kinds,
			   int kind_count, const Oid *tables, int table_count)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	bool		is_kind = false;
	bool		is_table = false;

	if (CALLED_AS_TRIGGER(fcinfo))
	{
		for (int i = 0; i < kind_count; i++)
			is_kind |= (trigger->tg_event & TRIGGER_KIND) == kinds[i];
		for (int i = 0; i < table_count; i++)
			is_table |= RelationGetRelid(trigger->tg_relation) == tables[i];
	}
	if (!is_kind || !is_table)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" is for a trigger of extension idempotency only",
						get_func_name(fcinfo->flinfo->fn_oid))));
	return trigger;
}
