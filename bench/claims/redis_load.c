/*
 * redis_load.c
 *		Clients of Redis that make several calls in turn for each key, which
 *		redis-benchmark cannot do.
 *
 * Usage: redis_load SOCKET CLIENTS SECONDS WORD... [-- WORD...]...
 *
 * A cycle is these commands, one after the answer to the other; "--" is between
 * them.  In a word, %k is a random number of 12 digits, the same in the whole
 * cycle, and %t is the number that the answer before had, such as a token.
 * Prints the cycles in a second.  An answer that is an error or null ends it,
 * since a command that only refuses is a fast one.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS_MAX 1024
#define COMMANDS_MAX 4
#define WORDS_MAX 16
#define BUFFER_SIZE 4096
#define POLL_MS 1000

typedef struct Client
{
	int			command;		/* which one has been sent */
	int			filled;			/* bytes of the answer so far */
	char		key[13];
	char		token[24];
	char		answer[BUFFER_SIZE];
} Client;

static struct pollfd sockets[CLIENTS_MAX];
static Client clients[CLIENTS_MAX];
static char *words[COMMANDS_MAX][WORDS_MAX];
static int	word_counts[COMMANDS_MAX];
static int	command_count;

static void
fail(const char *what, const char *why)
{
	fprintf(stderr, "redis_load: %s: %s\n", what, why);
	exit(1);
}

static double
now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static int
connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int			fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (strlen(path) >= sizeof(address.sun_path))
		fail(path, "too long");
	strcpy(address.sun_path, path);
	if (fd < 0 || connect(fd, (struct sockaddr *) &address, sizeof(address)) != 0)
		fail(path, strerror(errno));
	return fd;
}

static void
read_commands(char **arguments)
{
	command_count = 1;
	for (; *arguments != NULL; arguments++)
	{
		int		   *count = &word_counts[command_count - 1];

		if (strcmp(*arguments, "--") == 0)
			command_count++;
		else if (command_count <= COMMANDS_MAX && *count < WORDS_MAX)
			words[command_count - 1][(*count)++] = *arguments;
		if (command_count > COMMANDS_MAX || *count == WORDS_MAX)
			fail(*arguments, "too many words or commands");
	}
}

/* Copies a word, with what %k and %t stand for. */
static void
fill_in(char *to, size_t size, const char *word, const Client *client)
{
	const char *end = to + size - sizeof(client->token);

	for (; *word != '\0'; word++)
	{
		if (to >= end)
			fail(word, "too long");
		if (word[0] != '%' || (word[1] != 'k' && word[1] != 't'))
			*to++ = *word;
		else
			to += sprintf(to, "%s", *++word == 'k' ? client->key : client->token);
	}
	*to = '\0';
}

static void
send_command(int fd, Client *client)
{
	char		request[BUFFER_SIZE];
	int			size = sprintf(request, "*%d\r\n", word_counts[client->command]);

	for (int i = 0; i < word_counts[client->command]; i++)
	{
		char		word[512];

		fill_in(word, sizeof(word), words[client->command][i], client);
		size += snprintf(request + size, sizeof(request) - size, "$%zu\r\n%s\r\n",
						 strlen(word), word);
		if (size >= (int) sizeof(request))
			fail(word, "the command is too long");
	}
	if (write(fd, request, size) != size)
		fail("write", strerror(errno));
	client->filled = 0;
}

static void
start_cycle(int fd, Client *client)
{
	client->command = 0;
	sprintf(client->key, "%012lld", (random() * 2147483648LL + random()) % 1000000000000LL);
	send_command(fd, client);
}

/*
 * Goes past one value of an answer; returns NULL if it is not complete.  Keeps
 * the last number.
 */
static char *
skip_value(char *at, Client *client)
{
	char	   *end = strstr(at, "\r\n");
	long		count;

	if (end == NULL)
		return NULL;
	count = strtol(at + 1, NULL, 10);
	if (*at == '-' || (*at == '$' && count < 0))
		fail("answer", client->answer);
	if (*at == ':')
		snprintf(client->token, sizeof(client->token), "%ld", count);
	end += 2;
	if (*at == '$')
	{
		end += count + 2;
		return end <= client->answer + client->filled ? end : NULL;
	}
	for (long i = 0; *at == '*' && i < count && end != NULL; i++)
		end = skip_value(end, client);
	return end;
}

/* Returns whether that was the end of a cycle. */
static int
take_answer(int fd, Client *client)
{
	ssize_t		got = read(fd, client->answer + client->filled,
						   sizeof(client->answer) - client->filled - 1);

	if (got <= 0)
		fail("read", got == 0 ? "the server has closed the connection" : strerror(errno));
	client->filled += got;
	client->answer[client->filled] = '\0';
	if (skip_value(client->answer, client) == NULL)
		return 0;
	if (++client->command < command_count)
	{
		send_command(fd, client);
		return 0;
	}
	start_cycle(fd, client);
	return 1;
}

int
main(int argc, char **argv)
{
	int			count;
	long		cycles = 0;
	double		started,
				until;

	if (argc < 5)
		fail("usage", "redis_load SOCKET CLIENTS SECONDS WORD... [-- WORD...]...");
	count = atoi(argv[2]);
	if (count < 1 || count > CLIENTS_MAX)
		fail(argv[2], "not a number of clients");
	read_commands(argv + 4);
	srandom(time(NULL) ^ getpid());
	for (int i = 0; i < count; i++)
	{
		sockets[i].fd = connect_to(argv[1]);
		sockets[i].events = POLLIN;
	}
	started = now_s();
	until = started + atof(argv[3]);
	for (int i = 0; i < count; i++)
		start_cycle(sockets[i].fd, &clients[i]);
	while (now_s() < until)
	{
		if (poll(sockets, count, POLL_MS) < 0)
			fail("poll", strerror(errno));
		for (int i = 0; i < count; i++)
		{
			if (sockets[i].revents != 0)
				cycles += take_answer(sockets[i].fd, &clients[i]);
		}
	}
	printf("%.1f\n", cycles / (now_s() - started));
	return 0;
}
