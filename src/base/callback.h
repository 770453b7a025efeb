/*
 * callback.h
 *		What runs at the end of a transaction must not fail, so it allocates
 *		nothing: in builds with assertions, palloc stops the server there, as it
 *		does in any critical section.
 */
#ifndef BASE_CALLBACK_H
#define BASE_CALLBACK_H

#include "miscadmin.h"

#ifdef USE_ASSERT_CHECKING
#define CALLBACK_BEGIN() START_CRIT_SECTION()
#define CALLBACK_END() END_CRIT_SECTION()
#else
#define CALLBACK_BEGIN() ((void) 0)
#define CALLBACK_END() ((void) 0)
#endif

#endif							/* BASE_CALLBACK_H */
