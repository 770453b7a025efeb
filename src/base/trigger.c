/*
 * trigger.c
 *		Checks how our trigger functions are called, and whether our triggers
 *		are enabled.
 *
 * Trigger functions rely on the columns of their table and on the data that
 * their kind of trigger gets.  Those in PL/pgSQL make the same checks and call
 * idempotency_refuse_trigger.
 *
 * While our triggers are disabled, rows can come in that are neither redirected
 * (keys) nor counted (stock).  pg_restore --disable-triggers ends with ENABLE
 * TRIGGER ALL, which makes ENABLE ALWAYS triggers ordinary ones; that is how we
 * detect it.  Claims and stock are then refused until idem_repair or
 * stock_repair has put the rows right and the triggers are ENABLE ALWAYS again.
 * The sweeper calls these functions, but not while triggers are still disabled,
 * since more rows may come.
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

void
trigger_require(const CatalogTriggers *triggers)
{
	bool		disabled = triggers->state == TRIGGER_DISABLED;

	if (!OidIsValid(triggers->table))
		return;
	if (triggers->missing != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("trigger \"%s\" of table \"%s\" is missing",
						triggers->missing, get_rel_name(triggers->table)),
				 errdetail("Rows may have been written that the extension has not handled."),
				 errhint("Let the extension's owner call idempotency_repair(), which creates it again.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("triggers of table \"%s\" %s disabled",
					get_rel_name(triggers->table), disabled ? "are" : "were"),
			 errdetail("Rows may have been written that the extension has not handled, for example by pg_restore --disable-triggers."),
			 disabled ?
			 errhint("When all rows are there, use ALTER TABLE ... ENABLE TRIGGER ALL, as pg_restore does, or let the extension's owner call idempotency_repair().") :
			 errhint("The sweeper repairs this within seconds, unless a transaction that has used the tables is open. If no sweeper runs, let the extension's owner call idempotency_repair().")));
}
