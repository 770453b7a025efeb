/*
 * signature.h
 *		Secrets and signatures of Standard Webhooks 1.0.
 */
#ifndef RELAY_SIGNATURE_H
#define RELAY_SIGNATURE_H

/* What is required of a secret, as an error detail. */
#define SIGNATURE_SECRET_RULE \
	"It must be \"whsec_\" followed by the base64 of 24 to 64 bytes."

/*
 * Returns the value of the webhook-signature header, palloc'd: one signature
 * for each of the NULL-terminated secrets, in their order, separated by
 * spaces.  NULL if one of them is malformed.  Needs no transaction.
 */
extern char *signature_header(const char *const *secrets, const char *id,
							  int64 timestamp_s,
							  const char *body, size_t body_length);

/*
 * Returns 32 hexadecimal digits that identify a text, palloc'd; others for
 * another key.
 */
extern char *signature_digest(const char *key, const char *text);

/* Is this a secret that can sign? */
extern bool signature_secret_valid(const char *secret);

/* A new random secret, palloc'd. */
extern char *signature_secret_generate(void);

#endif							/* RELAY_SIGNATURE_H */
