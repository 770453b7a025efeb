/*
 * args.h
 *		Checks of SQL arguments, and composite values as results.
 */
#ifndef BASE_ARGS_H
#define BASE_ARGS_H

#include "datatype/timestamp.h"
#include "fmgr.h"

/*
 * Raise an error if an argument is null.  name is the parameter's name as
 * documented for callers.
 */
extern void args_raise_null(const char *name);
extern void args_require(FunctionCallInfo fcinfo, int arg, const char *name);
extern text *args_text(FunctionCallInfo fcinfo, int arg, const char *name);

/* Returns the argument "token"; raises an error unless it is positive. */
extern int64 args_token(FunctionCallInfo fcinfo, int arg);

/* Raise an error if a text is empty, or longer than max bytes. */
extern void args_check_not_empty(const text *value, const char *name);
extern void args_check_length(const text *value, const char *name, int max);

/*
 * Returns from + span.  Raises an error unless span is positive and not longer
 * than max_s.  setting names the setting that limits it; NULL: the limit is
 * fixed, and in whole days.
 */
extern TimestampTz args_time_after(TimestampTz from, const Interval *span,
								   int max_s, const char *name,
								   const char *setting);

/* Compares two texts byte by byte, as collation C does. */
extern int	args_compare_texts(const text *a, const text *b);

/* Raises an error if a text cannot be converted to UTF-8, as events are. */
extern void args_check_encoding(const text *value);

/*
 * Forms a value of one of our composite types.  Raises an error if the type
 * does not have the expected number of columns.
 */
extern Datum args_form_row(Oid type, const char *name, int columns,
						   Datum *values, bool *nulls);

#endif							/* BASE_ARGS_H */
