/*
 * ed25519.h
 *		Public keys and signatures of Ed25519 (RFC 8032), as bytes.
 */
#ifndef RELAY_ED25519_H
#define RELAY_ED25519_H

#define ED25519_SEED_BYTES 32
#define ED25519_PUBLIC_BYTES 32
#define ED25519_SIGNATURE_BYTES 64

/* Derives the public key of a seed; false: OpenSSL cannot. */
extern bool ed25519_public(const uint8 *seed, uint8 *public_key);

/* Signs a message with the key of a seed; false: OpenSSL cannot. */
extern bool ed25519_sign(const uint8 *seed,
						 const uint8 *message, size_t length,
						 uint8 *signature);

#endif							/* RELAY_ED25519_H */
