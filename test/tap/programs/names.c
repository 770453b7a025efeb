/*
 * names.c
 *		A library for LD_PRELOAD: the names that end in ".test".  Those that
 *		begin with "hang" are not answered for as long as the file exists that
 *		NAMES_HANG names, those with "none" do not exist, and all others are
 *		127.0.0.1.  Each look-up is appended to the file that NAMES_LOG names.
 *
 *		While the file NAMES_LATER exists, the monotonic clock is 100 s ahead,
 *		and names that begin with "old" are not answered either.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LATER_S 100

typedef int (*Lookup) (const char *, const char *, const struct addrinfo *,
					   struct addrinfo **);

static int
exists(const char *variable)
{
	return access(getenv(variable), F_OK) == 0;
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	int			result = (int) syscall(SYS_clock_gettime, clock, now);

	if (clock == CLOCK_MONOTONIC && exists("NAMES_LATER"))
		now->tv_sec += LATER_S;
	return result;
}

static int
hangs(const char *node)
{
	if (strncmp(node, "old", 3) == 0)
		return exists("NAMES_LATER");
	return strncmp(node, "hang", 4) == 0 && exists("NAMES_HANG");
}

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
		while (hangs(node))
			usleep(100000);
		if (strncmp(node, "none", 4) == 0)
			return EAI_NONAME;
		node = "127.0.0.1";
	}
	return real(node, service, hints, result);
}
