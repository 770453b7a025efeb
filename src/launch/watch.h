/*
 * watch.h
 *		Notices what happens to databases and to the extension in them.
 */
#ifndef LAUNCH_WATCH_H
#define LAUNCH_WATCH_H

/* Sets the hooks; called once by _PG_init of a preloaded library. */
extern void watch_install_hooks(void);

#endif							/* LAUNCH_WATCH_H */
