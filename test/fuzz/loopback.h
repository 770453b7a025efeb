/*
 * loopback.h
 *		A server in this process that receives what http.c sends, and answers.
 */
#ifndef FUZZ_LOOPBACK_H
#define FUZZ_LOOPBACK_H

#include "relay/http.h"

#include "fuzz.h"

/* The URL of the server, without a slash at the end. */
extern const char *loopback_url(void);

/*
 * Posts the request, answers it with these bytes and returns how http.c has
 * understood them.  received is set to what arrived.
 */
extern HttpResponse loopback_post(const HttpRequest *request, FuzzField answer,
								  FuzzField *received);

#endif							/* FUZZ_LOOPBACK_H */
