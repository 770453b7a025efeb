/*
 * report.h
 *		What a worker of ours says in the server's log.
 */
#ifndef BASE_REPORT_H
#define BASE_REPORT_H

/*
 * From now on all that this process logs says from whom it is, is bounded in
 * number and shows no row; who lives as long as the process.
 */
extern void report_begin(const char *who);

/* Calls a function with every error and warning that is logged from now on. */
extern void report_errors_to(void (*note) (const char *message));

#endif							/* BASE_REPORT_H */
