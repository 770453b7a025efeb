/*
 * fuzz.h
 *		What the targets of the fuzzing share.
 *
 * A target is a file *_fuzz.c with a function fuzz_one(), which libFuzzer calls
 * with one input after another.  An input consists of fields that are ended by
 * the byte 0x1f or by a null byte; the last one goes to the end of the input.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <setjmp.h>

#define FUZZ_FIELD_END 0x1f

/* A byte string that a null byte follows, so that it may be read as text. */
typedef struct FuzzField
{
	char	   *text;
	size_t		length;
} FuzzField;

/* To be defined by the target.  All that it allocates by palloc is freed. */
extern void fuzz_one(void);

/* The next field of the input; beyond the last one they are empty. */
extern FuzzField fuzz_field(void);

/* Whatever is left of the input, be it text or not. */
extern FuzzField fuzz_rest(void);

/* The next 8 bytes of the input, or as many as there are. */
extern int64 fuzz_number(void);

/* Ends the fuzzing with a failure unless the condition holds. */
#define fuzz_check(condition) \
	do { \
		if (!(condition)) \
			fuzz_fail(#condition, __FILE__, __LINE__); \
	} while (0)
extern _Noreturn void fuzz_fail(const char *condition, const char *file, int line);

/*
 * Does the call pass without an error?  An error has to have an SQLSTATE of
 * those for bad arguments.
 */
#define fuzz_passes(call) \
	(sigsetjmp(fuzz_error, 0) == 0 ? ((void) (call), true) : false)
extern sigjmp_buf fuzz_error;

#endif							/* FUZZ_H */
