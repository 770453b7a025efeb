/*
 * idempotency.c
 *		Entry point of the extension, and a map of its modules.
 *
 * Modules, each with its SQL beside its C:
 *
 *   base/     settings, shared memory, our relations and queries on them, the
 *             ring of tables by which rows expire, code that all workers share,
 *             differences between server versions
 *   claim/    idem_claim, and the functions by which owners of claims finish
 *             them; writes idem_key_*
 *   outbox/   enqueuing, the set of open transactions, reading the log,
 *             positions and deferred deliveries; no network; writes outbox_*
 *   relay/    the worker that delivers: its loop, batches of events, HTTP,
 *             signatures, retries; reads and writes rows through outbox/ only
 *   stock/    available quantities in shared memory, reservations; writes
 *             stock_*
 *   sweep/    the worker that lets rows of all modules expire
 *   launch/   the launcher, which starts the other workers in each database
 *             that has the extension
 *   upgrade/  SQL that takes a database from one version to the next
 *
 * Calls go one way: this file -> launch, sweep, relay -> claim, outbox, stock
 * -> base; src/README.md names the exceptions.  The launcher runs once
 * in a cluster; a sweeper and idempotency.relays relays run for each database
 * that has the extension.
 *
 * Without shared_preload_libraries there is no shared memory and there are no
 * workers.  Claims work all the same; other functions raise an error.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/shared.h"
#include "claim/waiters.h"
#include "launch/launcher.h"
#include "launch/ddl_hooks.h"
#include "outbox/xacts.h"
#include "relay/address.h"
#include "relay/traffic.h"
#include "stock/escrow.h"
#include "stock/in_doubt.h"
#include "stock/names.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static shmem_request_hook_type previous_shmem_request = NULL;
static shmem_startup_hook_type previous_shmem_startup = NULL;

static void
idempotency_shmem_request(void)
{
	if (previous_shmem_request)
		previous_shmem_request();
	shared_request();
	xacts_request();
	waiters_request();
	escrow_request();
	names_request();
	in_doubt_request();
	traffic_request();
}

static void
idempotency_shmem_startup(void)
{
	if (previous_shmem_startup)
		previous_shmem_startup();
	shared_startup();
	xacts_startup();
	waiters_startup();
	escrow_startup();
	names_startup();
	in_doubt_startup();
	traffic_startup();
}

/*
 * Citus refuses to be loaded after a library that has hooks, and its message
 * does not name that library.
 */
static void
idempotency_check_order(void)
{
	char	   *copy = pstrdup(shared_preload_libraries_string);
	bool		loaded = false;
	List	   *names;
	ListCell   *cell;

	if (!SplitDirectoriesString(copy, ',', &names))
		return;
	foreach(cell, names)
	{
		const char *name = lfirst(cell);

		loaded |= strcmp(name, "idempotency") == 0;
		if (loaded && strcmp(name, "citus") == 0)
			ereport(WARNING,
					(errmsg("citus comes after idempotency in shared_preload_libraries, so that the server cannot start"),
					 errhint("Write shared_preload_libraries = 'citus, idempotency'.")));
	}
}

void
_PG_init(void)
{
	settings_define(address_check_setting);
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	idempotency_check_order();
	previous_shmem_request = shmem_request_hook;
	shmem_request_hook = idempotency_shmem_request;
	previous_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = idempotency_shmem_startup;
	ddl_hooks_install_hooks();
	launcher_register();
}
