/*
 * stubs.c
 *		What the pure parts of the extension need of a server: memory that is
 *		freed after each input, and errors.
 *
 * Only the server's libraries for client programs are linked.  Symbols that no
 * target reaches stay unresolved; calling one is a crash.
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "fuzz.h"

#define FUZZ_MESSAGE_MAX 8192

extern int	LLVMFuzzerTestOneInput(const uint8 *data, size_t size);

MemoryContext CurrentMemoryContext = NULL;
MemoryContext TopMemoryContext = NULL;
ResourceOwner CurrentResourceOwner = NULL;
sigjmp_buf	fuzz_error;
bool		settings_webhook_require_https = false;

static dlist_head chunks = DLIST_STATIC_INIT(chunks);
static const uint8 *input;
static const uint8 *input_end;
static int	error_level;
static int	error_code;

void
fuzz_fail(const char *condition, const char *file, int line)
{
	fprintf(stderr, "%s:%d: not so: %s\n", file, line, condition);
	abort();
}

/*----------
 * The input.
 *----------
 */

static FuzzField
fuzz_take(size_t length)
{
	FuzzField	field = {palloc(length + 1), length};

	memcpy(field.text, input, length);
	field.text[length] = '\0';
	input += length;
	return field;
}

FuzzField
fuzz_field(void)
{
	const uint8 *end = input;
	FuzzField	field;

	while (end < input_end && *end != FUZZ_FIELD_END && *end != '\0')
		end++;
	field = fuzz_take(end - input);
	if (input < input_end)
		input++;
	return field;
}

FuzzField
fuzz_rest(void)
{
	return fuzz_take(input_end - input);
}

int64
fuzz_number(void)
{
	int64		number = 0;
	size_t		length = Min(input_end - input, (ptrdiff_t) sizeof(number));

	memcpy(&number, fuzz_take(length).text, length);
	return number;
}

int
LLVMFuzzerTestOneInput(const uint8 *data, size_t size)
{
	input = data;
	input_end = data + size;
	fuzz_one();
	while (!dlist_is_empty(&chunks))
		free(dlist_pop_head_node(&chunks));
	return 0;
}

/*----------
 * Memory.
 *----------
 */

static void *
chunk_use(dlist_node *chunk)
{
	fuzz_check(chunk != NULL);
	dlist_push_tail(&chunks, chunk);
	return chunk + 1;
}

static dlist_node *
chunk_of(void *pointer)
{
	dlist_node *chunk = (dlist_node *) pointer - 1;

	dlist_delete(chunk);
	return chunk;
}

void *
palloc(Size size)
{
	return chunk_use(malloc(sizeof(dlist_node) + size));
}

void *
palloc_extended(Size size, pg_attribute_unused() int flags)
{
	return palloc(size);
}

void *
palloc0(Size size)
{
	return chunk_use(calloc(1, sizeof(dlist_node) + size));
}

void *
repalloc(void *pointer, Size size)
{
	return chunk_use(realloc(chunk_of(pointer), sizeof(dlist_node) + size));
}

void
pfree(void *pointer)
{
	free(chunk_of(pointer));
}

char *
pnstrdup(const char *in, Size length)
{
	char	   *copy;

	length = strnlen(in, length);
	copy = palloc(length + 1);
	memcpy(copy, in, length);
	copy[length] = '\0';
	return copy;
}

char *
pstrdup(const char *in)
{
	return pnstrdup(in, strlen(in));
}

/* Only memory that is never freed is allocated in a context of its own. */
void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return calloc(1, size);
}

void *
MemoryContextAlloc(MemoryContext context, Size size)
{
	return palloc(size);
}

ResourceOwner
ResourceOwnerCreate(ResourceOwner parent, const char *name)
{
	return NULL;
}

/*----------
 * Errors.
 *----------
 */

bool
errstart(int elevel, const char *domain)
{
	error_level = elevel;
	error_code = 0;
	return true;
}

bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

int
errcode(int sqlerrcode)
{
	error_code = sqlerrcode;
	return 0;
}

/* Formats the message, so that all its arguments are read. */
static void
error_format(const char *format, va_list arguments)
{
	char		message[FUZZ_MESSAGE_MAX];

	fuzz_check(vsnprintf(message, sizeof(message), format, arguments) > 0);
}

int
errmsg(const char *fmt,...)
{
	va_list		arguments;

	va_start(arguments, fmt);
	error_format(fmt, arguments);
	va_end(arguments);
	return 0;
}

int
errdetail(const char *fmt,...)
{
	va_list		arguments;

	va_start(arguments, fmt);
	error_format(fmt, arguments);
	va_end(arguments);
	return 0;
}

/* elog() is for cases that cannot happen. */
int
errmsg_internal(const char *fmt,...)
{
	fuzz_fail(fmt, "an internal error", 0);
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	fuzz_check(error_code == ERRCODE_INVALID_PARAMETER_VALUE ||
			   error_code == ERRCODE_PROGRAM_LIMIT_EXCEEDED);
	if (error_level >= ERROR)
		siglongjmp(fuzz_error, 1);
}
