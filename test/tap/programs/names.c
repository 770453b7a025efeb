/*
 * names.c
 *		A library for LD_PRELOAD: the names that end in ".test".  Those that
 *		begin with "hang" are not answered for as long as the file exists that
 *		NAMES_HANG names, those with "none" do not exist, and all others are
 *		127.0.0.1.  Each look-up is appended to the file that NAMES_LOG names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Lookup) (const char *, const char *, const struct addrinfo *,
					   struct addrinfo **);

int
getaddrinfo(const char *restrict node, const char *restrict service,
			const struct addrinfo *restrict hints,
			struct addrinfo **restrict result)
{
	Lookup		real = (Lookup) dlsym(RTLD_NEXT, "getaddrinfo");
	size_t		length = node ? strlen(node) : 0;

	if (length > 5 && strcmp(node + length - 5, ".test") == 0)
	{
		FILE	   *log = fopen(getenv("NAMES_LOG"), "a");

		if (log != NULL)
		{
			fprintf(log, "%s\n", node);
			fclose(log);
		}
		while (strncmp(node, "hang", 4) == 0 &&
			   access(getenv("NAMES_HANG"), F_OK) == 0)
			usleep(100000);
		if (strncmp(node, "none", 4) == 0)
			return EAI_NONAME;
		node = "127.0.0.1";
	}
	return real(node, service, hints, result);
}
