/*
 * loopback.h
 *		A server in this process, for what http.c sends and what it is answered.
 */
#ifndef FUZZ_LOOPBACK_H
#define FUZZ_LOOPBACK_H

#include "relay/http.h"

#include "fuzz.h"

/* The URL of the server, without a slash at the end. */
extern const char *loopback_url(void);

/*
 * Posts the request, gets it answered with these bytes and hands out how http.c
 * understood them.  What arrived is in received.
 */
extern HttpResponse loopback_post(const HttpRequest *request, FuzzField answer,
								  FuzzField *received);

#endif							/* FUZZ_LOOPBACK_H */
