/*
 * ddl_guard.h
 *		Refuses DDL on our objects that would let other roles run code in our
 *		workers, and triggers on our tables.
 */
#ifndef LAUNCH_DDL_GUARD_H
#define LAUNCH_DDL_GUARD_H

/* Sets the hook; called once by _PG_init of a preloaded library. */
extern void ddl_guard_install_hook(void);

#endif							/* LAUNCH_DDL_GUARD_H */
