/*
 * launcher.h
 *		The worker that starts all others.
 */
#ifndef LAUNCH_LAUNCHER_H
#define LAUNCH_LAUNCHER_H

/* Registers it with the postmaster; called by _PG_init when preloaded. */
extern void launcher_register(void);

#endif							/* LAUNCH_LAUNCHER_H */
