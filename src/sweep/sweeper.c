/*
 * sweeper.c
 *		The worker that lets rows expire: one for each database.
 *
 * It knows nothing of the rows.  Each module has an SQL function that takes a
 * bounded step, skips what is locked, and returns whether there is more to do.
 * Each step is one short transaction.  The sweeper sleeps for
 * idempotency.sweep_interval, or until it is called (shared_wake_worker), when
 * no module has more to do.  A module that
 * fails pauses, each time for longer.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/backoff.h"
#include "base/catalog.h"
#include "base/query.h"
#include "base/settings.h"
#include "base/worker.h"

#define SWEEP_BATCH 1000		/* rows that a step may handle */
#define SWEEP_LOOK_MS 100		/* for so long, a look for a restore counts */
#define SWEEP_REST_MS 1000		/* first pause of a module that fails */
#define SWEEP_REST_MAX_MS 60000 /* the longest pause */

PGDLLEXPORT void sweeper_main(Datum arg);

typedef struct SweepModule
{
	const char *activity;
	bool		draws;			/* numbers; not while a restore runs */
	SavedQuery	sweep;
	const CatalogTriggers *(*triggers) (void);	/* that it needs, or NULL */
	SavedQuery	repair;			/* repairs what their absence caused */
	Backoff		rest;
} SweepModule;

static const CatalogTriggers *
sweep_key_triggers(void)
{
	return &catalog_get()->key_triggers;
}

static const CatalogTriggers *
sweep_stock_triggers(void)
{
	return &catalog_get()->stock_triggers;
}

#define REPAIR_KEYS \
	.triggers = sweep_key_triggers, \
	.repair = {.sql = "SELECT idempotency_internal.idem_repair(false)"}
#define REPAIR_STOCK \
	.triggers = sweep_stock_triggers, \
	.repair = {.sql = "SELECT idempotency_internal.stock_repair(false)"}

static SweepModule modules[] = {
	{
		.activity = "sweeping keys",
		.sweep = {.sql = "SELECT idempotency_internal.idem_expire($1)", .types = {INT4OID}},
		REPAIR_KEYS
	},
	{
		.activity = "sweeping events",
		.draws = true,
		.sweep = {.sql = "SELECT idempotency_internal.outbox_expire($1)", .types = {INT4OID}}
	},
	{
		.activity = "settling prepared transactions",
		.sweep = {.sql = "SELECT idempotency_internal.stock_settle_prepared($1)", .types = {INT4OID}}
	},
	{
		.activity = "sweeping reservations",
		.draws = true,
		.sweep = {.sql = "SELECT idempotency_internal.stock_expire($1) <> 0", .types = {INT4OID}},
		REPAIR_STOCK
	},
	{
		.activity = "serving queues of stock",
		.draws = true,
		.sweep = {.sql = "SELECT idempotency_internal.stock_serve($1)", .types = {INT4OID}},
		REPAIR_STOCK
	},
	{
		.activity = "learning names of reservations",
		.sweep = {.sql = "SELECT idempotency_internal.stock_learn_names($1)", .types = {INT4OID}},
		REPAIR_STOCK
	},
	{
		.activity = "compacting stock",
		.draws = true,
		.sweep = {.sql = "SELECT idempotency_internal.stock_compact($1)", .types = {INT4OID}},
		REPAIR_STOCK
	},
	{
		.activity = "forgetting stock",
		.draws = true,
		.sweep = {.sql = "SELECT idempotency_internal.stock_forget($1)", .types = {INT4OID}}
	}
};

/*
 * Is a sequence behind the numbers in our tables?  Then they are being
 * restored.  This reads tables of several modules, so it is a transaction of
 * its own: a step that follows takes its locks in order.  Unless steps take
 * long, one look counts for all modules of a sweep.
 */
static bool
sweep_is_restoring(void)
{
	static SavedQuery query = {
		.sql = "SELECT idempotency_internal.idempotency_restoring() IS NOT NULL"
	};
	static bool restoring = true;
	static TimestampTz looked_at = 0;
	TimestampTz now = GetCurrentTimestamp();
	bool		isnull;

	if (!restoring && now >= looked_at &&
		now < TimestampTzPlusMilliseconds(looked_at, SWEEP_LOOK_MS))
		return false;
	restoring = false;
	looked_at = 0;				/* if this fails */

	if (!worker_begin("looking for a restore"))
		worker_exit("the extension is not there any more");
	if (OidIsValid(catalog_get()->restoring))
	{
		query_run(&query, NULL, NULL, true);
		restoring = DatumGetBool(query_datum(0, 1, &isnull));
	}
	worker_commit();
	looked_at = now;
	return restoring;
}

/*
 * Returns the next step of a module.  There is none if triggers that the module
 * needs are disabled: a restore is running.
 */
static SavedQuery *
sweep_next_step(SweepModule *module)
{
	const CatalogTriggers *triggers = NULL;

	if (module->triggers)
		triggers = module->triggers();
	if (triggers == NULL || !OidIsValid(triggers->table))
		return &module->sweep;
	return triggers->state == TRIGGER_DISABLED ? NULL : &module->repair;
}

/*
 * One step of one module.  Returns whether there may be more.
 */
static bool
sweep_module(SweepModule *module)
{
	Datum		values[1] = {Int32GetDatum(SWEEP_BATCH)};
	SavedQuery *step;
	bool		more = false;

	if (module->draws && sweep_is_restoring())
		return false;
	if (!worker_begin(module->activity))
		worker_exit("the extension is not there any more");
	step = sweep_next_step(module);
	if (step != NULL)
	{
		bool		isnull;

		query_run(step, values, NULL, false);
		more = DatumGetBool(query_datum(0, 1, &isnull));
	}
	worker_commit();
	return more;
}

/*
 * As sweep_module, but logs errors.  A failure in one module, such as a lock
 * timeout, must not keep the sweeper from the other modules.  The pause after
 * it grows: the cause usually lasts, and each failure writes to the log.
 */
static bool
sweep_module_or_report(SweepModule *module)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool more = false;

	PG_TRY();
	{
		more = sweep_module(module);
		backoff_reset(&module->rest);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		EmitErrorReport();
		worker_abort();
		FlushErrorState();
		RESUME_INTERRUPTS();
		backoff_fail(&module->rest, SWEEP_REST_MS, SWEEP_REST_MAX_MS,
					 GetCurrentTimestamp());
	}
	PG_END_TRY();
	return more;
}

/*
 * Ends all pauses after a reload: the cause of a failure may be gone.
 */
static void
sweep_wake_all(void)
{
	for (int i = 0; i < (int) lengthof(modules); i++)
		modules[i].rest.until = 0;
}

/*
 * Does no module pause after a failure?
 */
static bool
sweep_all_work(void)
{
	for (int i = 0; i < (int) lengthof(modules); i++)
	{
		if (modules[i].rest.pause_ms > 0)
			return false;
	}
	return true;
}

void
sweeper_main(Datum arg)
{
	(void) worker_start_in_slot();
	for (;;)
	{
		bool		more = false;

		Assert(CurrentMemoryContext == TopMemoryContext);
		for (int i = 0; i < (int) lengthof(modules); i++)
		{
			if (worker_obey_signals())
				sweep_wake_all();
			if (GetCurrentTimestamp() >= modules[i].rest.until)
				more |= sweep_module_or_report(&modules[i]);
		}
		if (sweep_all_work())
			worker_note_success();
		if (more)
			continue;
		WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				  settings_sweep_interval_ms, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}
