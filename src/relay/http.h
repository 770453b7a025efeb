/*
 * http.h
 *		Many HTTP requests in flight from one worker process.
 *
 * The caller nests http_wait_fd() as one readable socket in its own wait set,
 * sleeps no longer than http_wait_ms(), then calls http_work() and takes the
 * answers with http_next_response().  Every submitted request is answered
 * exactly once, whatever happens to it; it may have arrived more than once.
 *
 * Any of these may raise an error when memory is short.  Requests may be lost
 * then: the process has to end, or to call http_stop() and start anew.
 */
#ifndef RELAY_HTTP_H
#define RELAY_HTTP_H

/* Longest URL that http_check_url() accepts. */
#define HTTP_URL_MAX 2048
/* What is kept of an answer, and of a description of what went wrong. */
#define HTTP_EXCERPT_MAX 255
#define HTTP_ERROR_MAX 255
/* Most requests that may be submitted and not yet taken back. */
#define HTTP_IN_FLIGHT_MAX 1024

typedef struct HttpRequest
{
	const char *url;
	const char *const *headers; /* "Name: value", NULL-terminated */
	const char *body;
	size_t		body_length;
	int			timeout_ms;		/* for all of it, name resolution included */
	void	   *tag;			/* handed back with the answer */
} HttpRequest;

typedef struct HttpResponse
{
	void	   *tag;
	int			status;			/* 0: no answer, and error says why */
	int			retry_after_s;	/* 0: none asked for */
	int			duration_ms;
	char		error[HTTP_ERROR_MAX + 1];	/* ASCII; empty if answered */
	char		excerpt[HTTP_EXCERPT_MAX + 1];	/* start of the body, ASCII */
} HttpResponse;

/* Starts HTTP in this process, once; ERROR if that cannot be done. */
extern void http_start(void);

/* Drops all requests unanswered and closes everything, without waiting. */
extern void http_stop(void);

/* Sets the networks that may be reached though they are not public. */
extern void http_allow_networks(const char *list);

/* A descriptor that is readable while sockets wait for http_work(). */
extern int	http_wait_fd(void);

/* How long the caller may sleep at most before http_work(); -1: no limit. */
extern long http_wait_ms(void);

/* Starts a POST; copies the request; a failure to start is an answer too. */
extern void http_submit(const HttpRequest *request);

/* Moves all requests on as far as possible without waiting. */
extern void http_work(void);

/* Takes the next answer; false if there is none at the moment. */
extern bool http_next_response(HttpResponse *response);

/* Requests submitted whose answers have not been taken yet. */
extern int	http_in_flight(void);

/* NULL if url is acceptable, else a sentence that says why it is not. */
extern const char *http_check_url(const char *url);

/* Do both have the same scheme, host and port?  No if one of them is no URL. */
extern bool http_same_origin(const char *one, const char *other);

#endif							/* RELAY_HTTP_H */
