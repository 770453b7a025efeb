/*
 * guard.h
 *		External DML on the tables of stock.
 */
#ifndef STOCK_GUARD_H
#define STOCK_GUARD_H

#include "nodes/parsenodes.h"

/*
 * Called before each ALTER TABLE.  Waits until this transaction is alone if the
 * guard of a table of ours is about to be enabled or disabled.
 */
extern void guard_before_alter(const AlterTableStmt *statement);

/*
 * Switches the guard off for the compaction, which changes the tables but no
 * sum, and on again.
 */
extern void guard_let_pass(bool let);

#endif							/* STOCK_GUARD_H */
