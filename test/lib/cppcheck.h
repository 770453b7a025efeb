/*
 * cppcheck.h
 *		Macros for cppcheck, which does not read the server's headers: those
 *		that C's grammar alone cannot explain.
 */
#define PG_VERSION_NUM 150000
#define LIBCURL_VERSION_NUM 0x080000
#define PG_FUNCTION_ARGS FunctionCallInfo fcinfo
#define PG_FUNCTION_INFO_V1(name) extern Datum name(PG_FUNCTION_ARGS)
#define PG_MODULE_MAGIC extern int pg_module_magic
#define PGDLLEXPORT
#define pg_attribute_unused()
#define foreach(cell, list) \
	for (cell = list_head(list); cell != NULL; cell = lnext(list, cell))
#define Assert(condition) ((condition) ? (void) 0 : abort())
#define ERROR 21
#define elog(level, ...) ((level) >= ERROR ? abort() : (void) 0)
#define ereport(level, ...) ((level) >= ERROR ? abort() : (void) 0)
#define INT64_FORMAT "%ld"
#define CppAsString2(value) #value
