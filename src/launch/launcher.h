/*
 * launcher.h
 *		The worker that starts all other workers.
 */
#ifndef LAUNCH_LAUNCHER_H
#define LAUNCH_LAUNCHER_H

/* Registers the launcher with the postmaster; called by _PG_init. */
extern void launcher_register(void);

#endif							/* LAUNCH_LAUNCHER_H */
