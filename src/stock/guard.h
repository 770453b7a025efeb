/*
 * guard.h
 *		External DML on the tables of stock.
 */
#ifndef STOCK_GUARD_H
#define STOCK_GUARD_H

/* Has those who disable or enable triggers drop the counters. */
extern void guard_install_hook(void);

#endif							/* STOCK_GUARD_H */
