/*
 * args.h
 *		Arguments of our SQL functions, and rows that they return.
 */
#ifndef BASE_ARGS_H
#define BASE_ARGS_H

#include "datatype/timestamp.h"
#include "fmgr.h"

/* Raise an error unless an argument is there; name: what callers call it. */
extern void args_raise_null(const char *name);
extern void args_require(FunctionCallInfo fcinfo, int arg, const char *name);
extern text *args_text(FunctionCallInfo fcinfo, int arg, const char *name);

/* Raise an error if a text is empty, or longer than so many bytes. */
extern void args_check_not_empty(const text *value, const char *name);
extern void args_check_length(const text *value, const char *name, int max);

/*
 * from + span, which has to be positive, and max_s at the most.  setting: what
 * that limit is from; NULL: it is fixed.
 */
extern TimestampTz args_time_after(TimestampTz from, const Interval *span,
								   int max_s, const char *name,
								   const char *setting);

/* Compares two texts byte by byte, as collation C does. */
extern int	args_compare_texts(const text *a, const text *b);

/* Raises an error unless a text can go into an event, which is in UTF-8. */
extern void args_check_encoding(const text *value);

/* A row of a composite type of ours, which has to have so many columns. */
extern Datum args_form_row(Oid type, const char *name, int columns,
						   Datum *values, bool *nulls);

#endif							/* BASE_ARGS_H */
