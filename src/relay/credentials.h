/*
 * credentials.h
 *		Files with tokens and client certificates for receivers.
 */
#ifndef RELAY_CREDENTIALS_H
#define RELAY_CREDENTIALS_H

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

#endif							/* RELAY_CREDENTIALS_H */
