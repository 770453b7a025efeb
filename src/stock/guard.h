/*
 * guard.h
 *		External DML on the tables of stock.
 */
#ifndef STOCK_GUARD_H
#define STOCK_GUARD_H

/* Has those who disable or enable triggers drop the counters. */
extern void guard_install_hook(void);

/* The compaction changes the tables now, or no longer: no sum changes. */
extern void guard_let_pass(bool let);

#endif							/* STOCK_GUARD_H */
