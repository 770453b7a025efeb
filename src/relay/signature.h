/*
 * signature.h
 *		Secrets and signatures of Standard Webhooks 1.0.
 */
#ifndef RELAY_SIGNATURE_H
#define RELAY_SIGNATURE_H

/* What is required of a secret, as an error detail. */
#define SIGNATURE_SECRET_RULE \
	"It must be \"whsec_\" followed by the base64 of 24 to 64 bytes."

/* What is required of a signing key, as an error detail. */
#define SIGNATURE_SIGNING_KEY_RULE \
	"It must be \"whsk_\" followed by the base64 of the 32 bytes of an Ed25519 seed, or of the seed and its public key."

/*
 * Returns the value of the webhook-signature header, palloc'd: one signature
 * for each of the NULL-terminated secrets and signing keys, in their order,
 * separated by spaces.  NULL if one of them is malformed.  Needs no
 * transaction.
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

/*
 * Returns the public key of a signing key, palloc'd; NULL if the signing key is
 * malformed, or contains another public key.
 */
extern char *signature_public_key(const char *signing_key);

/* A new random signing key, palloc'd. */
extern char *signature_signing_key_generate(void);

#endif							/* RELAY_SIGNATURE_H */
