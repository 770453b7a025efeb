/*
 * report.h
 *		Limits and completes what our workers write to the server log.
 */
#ifndef BASE_REPORT_H
#define BASE_REPORT_H

/*
 * From now on, each message that this process logs names the worker, is subject
 * to a rate limit and shows no row.  The string who must live as long as the
 * process.
 */
extern void report_begin(const char *who);

/* Calls a function with each error and warning that is raised from now on. */
extern void report_errors_to(void (*note) (const char *message));

#endif							/* BASE_REPORT_H */
