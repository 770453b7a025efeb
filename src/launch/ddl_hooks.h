/*
 * ddl_hooks.h
 *		Tells the launcher what happens to databases and to the extension in
 *		them.
 */
#ifndef LAUNCH_DDL_HOOKS_H
#define LAUNCH_DDL_HOOKS_H

/* Sets the hooks; called once by _PG_init of a preloaded library. */
extern void ddl_hooks_install_hooks(void);

#endif							/* LAUNCH_DDL_HOOKS_H */
