/*
 * http.h
 *		Many HTTP requests in flight from one worker process.
 *
 * The caller nests http_wait_fd() as a readable socket in its own wait set,
 * sleeps no longer than http_wait_ms(), then calls http_work() and takes the
 * answers with http_next_response().  Every submitted request is answered
 * exactly once, whatever happens to it; it may have arrived more than once.
 *
 * Each of these functions may raise an error if memory is short.  Requests may
 * be lost then, so the process must end, or call http_stop() and start again.
 */
#ifndef RELAY_HTTP_H
#define RELAY_HTTP_H

/* Limits of the excerpt of an answer, and of the text of an error. */
#define HTTP_EXCERPT_MAX 1024
#define HTTP_ERROR_MAX 255
/* The most requests that may be submitted and not taken back yet. */
#define HTTP_IN_FLIGHT_MAX 1024

typedef struct HttpRequest
{
	const char *url;
	const char *const *headers; /* "Name: value", NULL-terminated */
	const char *body;
	size_t		body_length;
	const char *certificate;	/* of the client, with its key; PEM or NULL */
	int			timeout_ms;		/* for everything, including name resolution */
	const char *wrong;			/* why it cannot be sent, or NULL */
	void	   *tag;			/* returned with the answer */
} HttpRequest;

typedef struct HttpResponse
{
	void	   *tag;
	int			status;			/* 0: no answer; error has the reason */
	bool		cut_short;		/* no answer: the connection broke before the
								 * whole request was sent */
	bool		timed_out;		/* no answer in time */
	int			retry_after_s;	/* 0: the endpoint asked for none */
	int			duration_ms;
	char		error[HTTP_ERROR_MAX + 1];	/* ASCII; empty if answered */
	char		excerpt[HTTP_EXCERPT_MAX + 1];	/* start of the body, ASCII */
} HttpResponse;

/* Starts HTTP in this process, once; raises an error if it cannot. */
extern void http_start(void);

/* Drops all requests unanswered and closes everything, without waiting. */
extern void http_stop(void);

/* Sets the networks that may be reached although they are not public. */
extern void http_allow_networks(const char *list);

/* Returns a descriptor that is readable while sockets wait for http_work(). */
extern int	http_wait_fd(void);

/* Returns how long to sleep at most before http_work(); -1: no limit. */
extern long http_wait_ms(void);

/* Starts a POST; copies the request.  A failure to start becomes its answer. */
extern void http_submit(const HttpRequest *request);

/* The request with this tag must end within this time, or sooner. */
extern void http_shorten(const void *tag, int left_ms);

/* Advances all requests as far as possible without waiting. */
extern void http_work(void);

/* Takes the next answer; false: there is none at the moment. */
extern bool http_next_response(HttpResponse *response);

/* Returns the number of requests whose answers have not been taken. */
extern int	http_in_flight(void);

#endif							/* RELAY_HTTP_H */
