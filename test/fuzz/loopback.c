/*
 * loopback.c
 *		A server in this process that receives what http.c sends, and answers.
 *
 * It takes one request from each connection, sends the answer and closes.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loopback.h"

#define RECEIVED_MAX (1024 * 1024)
#define POLL_MS 10

static int	listener = -1;
static int	connection = -1;
static char url[64];
static char received_text[RECEIVED_MAX + 1];
static size_t received_length;
static size_t sent_length;

static void
loopback_start(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t	size = sizeof(address);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	fuzz_check(listener >= 0);
	fuzz_check(bind(listener, (struct sockaddr *) &address, size) == 0);
	fuzz_check(listen(listener, 16) == 0);
	fuzz_check(getsockname(listener, (struct sockaddr *) &address, &size) == 0);
	snprintf(url, sizeof(url), "http://127.0.0.1:%d", ntohs(address.sin_port));
	http_start();
	http_allow_networks("127.0.0.1");
}

const char *
loopback_url(void)
{
	if (listener < 0)
		loopback_start();
	return url;
}

static void
loopback_close(void)
{
	if (connection >= 0)
		close(connection);
	connection = -1;
}

/* Has the whole request arrived? */
static bool
loopback_is_complete(const HttpRequest *request)
{
	const char *end = strstr(received_text, "\r\n\r\n");

	return end != NULL &&
		received_length >= end + 4 - received_text + request->body_length;
}

static void
loopback_receive(void)
{
	ssize_t		length = recv(connection, received_text + received_length,
							  RECEIVED_MAX - received_length, 0);

	if (length > 0)
		received_length += length;
	else if (length == 0 || errno != EAGAIN)
		loopback_close();
	received_text[received_length] = '\0';
}

static void
loopback_send(FuzzField answer)
{
	ssize_t		length = send(connection, answer.text + sent_length,
							  answer.length - sent_length, MSG_NOSIGNAL);

	if (length > 0)
		sent_length += length;
	if (sent_length == answer.length || (length < 0 && errno != EAGAIN))
		loopback_close();
}

/* Does what can be done without waiting. */
static void
loopback_work(const HttpRequest *request, FuzzField answer)
{
	if (connection < 0)
	{
		connection = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
		received_length = sent_length = 0;
	}
	if (connection >= 0 && !loopback_is_complete(request))
		loopback_receive();
	if (connection >= 0 && loopback_is_complete(request))
		loopback_send(answer);
}

HttpResponse
loopback_post(const HttpRequest *request, FuzzField answer, FuzzField *received)
{
	HttpResponse response;

	received_length = 0;
	received_text[0] = '\0';
	http_submit(request);
	fuzz_check(http_in_flight() == 1);
	while (!http_next_response(&response))
	{
		struct pollfd fds[] = {
			{.fd = http_wait_fd(),.events = POLLIN},
			{.fd = listener,.events = POLLIN},
			{.fd = connection,.events = POLLIN}
		};
		long		wait_ms = http_wait_ms();

		(void) poll(fds, lengthof(fds), wait_ms < 0 ? POLL_MS : Min(wait_ms, POLL_MS));
		loopback_work(request, answer);
		http_work();
	}
	loopback_close();
	fuzz_check(http_in_flight() == 0);
	received->text = received_text;
	received->length = received_length;
	return response;
}
