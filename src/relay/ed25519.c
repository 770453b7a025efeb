/*
 * ed25519.c
 *		Public keys and signatures of Ed25519 (RFC 8032), as bytes.
 *
 * The only file that calls OpenSSL.  What OpenSSL allocates is freed before a
 * function returns, and nothing here raises an error, so none of it can be
 * left behind.  A key is made for each signature: that costs about as much as
 * the signature, and a request over TLS costs far more.
 */
#include "postgres.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include "relay/ed25519.h"

static EVP_PKEY *
ed25519_key(const uint8 *seed)
{
	return EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed,
										ED25519_SEED_BYTES);
}

/*
 * libcurl uses the same library in this process, and takes an error that is
 * left in the queue for its own.
 */
static bool
ed25519_done(bool ok)
{
	if (!ok)
		ERR_clear_error();
	return ok;
}

bool
ed25519_public(const uint8 *seed, uint8 *public_key)
{
	EVP_PKEY   *key = ed25519_key(seed);
	size_t		length = ED25519_PUBLIC_BYTES;
	bool		ok;

	ok = key != NULL &&
		EVP_PKEY_get_raw_public_key(key, public_key, &length) == 1 &&
		length == ED25519_PUBLIC_BYTES;
	EVP_PKEY_free(key);
	return ed25519_done(ok);
}

bool
ed25519_sign(const uint8 *seed, const uint8 *message, size_t length,
			 uint8 *signature)
{
	EVP_PKEY   *key = ed25519_key(seed);
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	size_t		signature_length = ED25519_SIGNATURE_BYTES;
	bool		ok;

	ok = key != NULL && context != NULL &&
		EVP_DigestSignInit(context, NULL, NULL, NULL, key) == 1 &&
		EVP_DigestSign(context, signature, &signature_length,
					   message, length) == 1 &&
		signature_length == ED25519_SIGNATURE_BYTES;
	EVP_MD_CTX_free(context);
	EVP_PKEY_free(key);
	return ed25519_done(ok);
}
