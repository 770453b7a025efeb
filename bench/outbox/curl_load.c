/*
 * curl_load.c
 *		A plain loop around libcurl: the ceiling for what the relay can deliver.
 *
 * Usage: curl_load URL REQUESTS CONCURRENCY BODY HEADER...
 *
 * Posts the same body again and again, so many requests at once, and prints how
 * many were answered in a second.  Unlike the relay it neither reads nor signs
 * nor writes down anything.  The first answer that is not a success ends it: an
 * endpoint that only refuses is a fast one.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CONCURRENCY_MAX 1024
#define POLL_MS 1000

static CURLM *multi;
static long left_to_start;
static long left_to_finish;

static void
fail(const char *what, const char *why)
{
	fprintf(stderr, "curl_load: %s: %s\n", what, why);
	exit(1);
}

static double
now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static size_t
ignore_body(char *data, size_t size, size_t count, void *context)
{
	(void) data;
	(void) context;
	return size * count;
}

static CURL *
make_request(const char *url, const char *body, struct curl_slist *headers)
{
	CURL	   *easy = curl_easy_init();

	if (easy == NULL)
		fail("libcurl", "out of memory");
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, ignore_body);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	return easy;
}

static void
start_request(CURL *easy)
{
	if (left_to_start == 0)
		return;
	left_to_start--;
	curl_multi_add_handle(multi, easy);
}

/* Takes what was answered, and sends as much again. */
static void
take_answers(void)
{
	CURLMsg    *message;
	int			queued;

	while ((message = curl_multi_info_read(multi, &queued)) != NULL)
	{
		CURL	   *easy = message->easy_handle;
		long		status = 0;

		if (message->data.result != CURLE_OK)
			fail("no answer", curl_easy_strerror(message->data.result));
		curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
		if (status / 100 != 2)
			fail("refused", "the answer is not a 2xx");
		left_to_finish--;
		curl_multi_remove_handle(multi, easy);
		start_request(easy);
	}
}

int
main(int argc, char **argv)
{
	struct curl_slist *headers = NULL;
	int			concurrency;
	long		requests;
	double		started_s;

	if (argc < 5)
		fail("usage", "URL REQUESTS CONCURRENCY BODY HEADER...");
	requests = atol(argv[2]);
	concurrency = atoi(argv[3]);
	if (requests < 1 || concurrency < 1 || concurrency > CONCURRENCY_MAX)
		fail("usage", "REQUESTS or CONCURRENCY is out of range");
	for (int i = 5; i < argc; i++)
		headers = curl_slist_append(headers, argv[i]);

	curl_global_init(CURL_GLOBAL_DEFAULT);
	multi = curl_multi_init();
	curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long) CONCURRENCY_MAX);
	left_to_start = left_to_finish = requests;
	started_s = now_s();
	for (int i = 0; i < concurrency; i++)
		start_request(make_request(argv[1], argv[4], headers));
	for (;;)
	{
		CURLMcode	code;
		int			running;

		code = curl_multi_perform(multi, &running);
		if (code != CURLM_OK)
			fail("libcurl", curl_multi_strerror(code));
		take_answers();
		if (left_to_finish == 0)
			break;
		curl_multi_poll(multi, NULL, 0, POLL_MS, NULL);
	}
	printf("%.1f\n", requests / (now_s() - started_s));
	return 0;
}
