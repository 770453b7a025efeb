/*
 * fuzz.h
 *		What the fuzz targets share.
 *
 * A target is a file *_fuzz.c with a function fuzz_one(), which libFuzzer calls
 * with one input after another.  An input consists of fields that are ended by
 * the byte 0x1f or by a null byte; the last one goes to the end of the input.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <setjmp.h>

#define FUZZ_FIELD_END 0x1f

/* A byte string with a null byte after it, so that it can be read as text. */
typedef struct FuzzField
{
	char	   *text;
	size_t		length;
} FuzzField;

/* Defined by the target.  Everything that it allocates by palloc is freed. */
extern void fuzz_one(void);

/* The next field of the input; after the last one fields are empty. */
extern FuzzField fuzz_field(void);

/* The rest of the input, text or not. */
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
 * Does the call pass without an error?  An error must have one of the SQLSTATEs
 * for bad arguments.
 */
#define fuzz_passes(call) \
	(sigsetjmp(fuzz_error, 0) == 0 ? ((void) (call), true) : false)
extern sigjmp_buf fuzz_error;

#endif							/* FUZZ_H */
