/*
 * guard.h
 *		External DML on the tables of stock.
 */
#ifndef STOCK_GUARD_H
#define STOCK_GUARD_H

/* Sets the hook that detects ALTER TABLE ... ENABLE or DISABLE TRIGGER. */
extern void guard_install_hook(void);

/*
 * Switches the guard off for the compaction, which changes the tables but no
 * sum, and on again.
 */
extern void guard_let_pass(bool let);

#endif							/* STOCK_GUARD_H */
