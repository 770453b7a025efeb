/*
 * ddl_guard.h
 *		Keeps code of others out of the way of our workers, and triggers off our
 *		tables.
 */
#ifndef LAUNCH_DDL_GUARD_H
#define LAUNCH_DDL_GUARD_H

/* Sets the hook; called once by _PG_init of a preloaded library. */
extern void ddl_guard_install_hook(void);

#endif							/* LAUNCH_DDL_GUARD_H */
