/*
 * tickets.c
 *		An endpoint over TLS 1.3 that sends tickets of sessions instead of an
 *		answer, on a port of 127.0.0.1 that it prints.
 *
 * Argument: a file name without its .key and .crt.
 */
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define FLOOD_BYTES (16 * 1024 * 1024)

static int
listen_on_any_port(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t	length = sizeof(address);
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(fd, (struct sockaddr *) &address, length) != 0 ||
		listen(fd, 10) != 0 ||
		getsockname(fd, (struct sockaddr *) &address, &length) != 0)
		return -1;
	printf("port %d\n", ntohs(address.sin_port));
	return fd;
}

/*
 * Makes the tickets first, which takes longer than to read them.
 */
static void
flood(SSL *tls, int fd)
{
	BIO		   *made = BIO_new(BIO_s_mem());
	char		request[4096];
	char	   *next;
	ssize_t		written = 0;
	long		left = 0;

	if (SSL_accept(tls) != 1 || SSL_read(tls, request, sizeof(request)) <= 0)
		return;
	SSL_set0_wbio(tls, made);
	while (left < FLOOD_BYTES && SSL_new_session_ticket(tls) == 1 &&
		   SSL_do_handshake(tls) == 1)
		left = BIO_get_mem_data(made, &next);
	for (; left > 0 && written >= 0; left -= written)
	{
		written = write(fd, next, left);
		next += written;
	}
}

int
main(int argc, char **argv)
{
	SSL_CTX    *context = SSL_CTX_new(TLS_server_method());
	char		path[1024];
	int			listener;

	(void) argc;
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	snprintf(path, sizeof(path), "%s.crt", argv[1]);
	SSL_CTX_use_certificate_chain_file(context, path);
	snprintf(path, sizeof(path), "%s.key", argv[1]);
	SSL_CTX_use_PrivateKey_file(context, path, SSL_FILETYPE_PEM);
	SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
	listener = listen_on_any_port();
	for (;;)
	{
		int			fd = accept(listener, NULL, NULL);
		SSL		   *tls = SSL_new(context);

		if (fd < 0)
			return 1;
		SSL_set_fd(tls, fd);
		flood(tls, fd);
		SSL_free(tls);
		close(fd);
	}
}
