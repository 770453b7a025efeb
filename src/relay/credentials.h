/*
 * credentials.h
 *		Files with tokens, client certificates, secrets and signing keys for
 *		receivers.
 */
#ifndef RELAY_CREDENTIALS_H
#define RELAY_CREDENTIALS_H

#include "nodes/pg_list.h"

/*
 * Reads the value of the header Authorization for a URL, as it is now, into
 * palloc'd memory.  Returns NULL, or why that is not possible, palloc'd.
 */
extern const char *credentials_read_authorization(const char *url,
												  const char *name,
												  const char **value);

/* Likewise the client certificate, with its key: PEM. */
extern const char *credentials_read_certificate(const char *url,
												const char *name,
												const char **pem);

/*
 * A secret or signing key can be "file:NAME".  Returns the NAME, or NULL if it
 * is not in a file.
 */
extern const char *credentials_file(const char *secret);

/* Can this be the name of a file? */
extern bool credentials_name_valid(const char *name);

/*
 * Likewise reads a file with secrets, or signing keys: the one that signs and,
 * if there is a second line, the one before, as a List of char *.
 */
extern const char *credentials_read_secrets(const char *url, const char *name,
											bool signing_key, List **secrets);

#endif							/* RELAY_CREDENTIALS_H */
