/*
 * ddl_hooks.h
 *		The hooks on utility commands and on DDL.
 */
#ifndef LAUNCH_DDL_HOOKS_H
#define LAUNCH_DDL_HOOKS_H

/* Sets the hooks; called once by _PG_init of a preloaded library. */
extern void ddl_hooks_install_hooks(void);

#endif							/* LAUNCH_DDL_HOOKS_H */
