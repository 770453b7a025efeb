/*
 * protect.h
 *		Keeps code of others out of the way of our workers, and triggers off our
 *		tables.
 */
#ifndef LAUNCH_PROTECT_H
#define LAUNCH_PROTECT_H

/* Sets the hook; called once by _PG_init of a preloaded library. */
extern void protect_install_hook(void);

#endif							/* LAUNCH_PROTECT_H */
