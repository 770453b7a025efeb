/*
 * signature_fuzz.c
 *		A secret is valid if and only if it is the base64 of 24 to 64 bytes, and
 *		signs as OpenSSL does.  If this fails, receivers reject events, or a
 *		secret is accepted that cannot sign.  The same for signing keys, which
 *		are the base64 of 32 bytes, or of these and the public key, and whose
 *		signatures OpenSSL verifies with the public key.
 *
 * Input: secret, id, body, which is the bytes of a key as well.
 */
#include "postgres.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "relay/signature.h"

#include "fuzz.h"

#define PREFIX "whsec_"
#define KEY_BYTES_MIN 24
#define KEY_BYTES_MAX 64
#define TIMESTAMP_S 1700000000

#define SIGNING_PREFIX "whsk_"
#define PUBLIC_PREFIX "whpk_"
#define SEED_BYTES 32
#define PUBLIC_BYTES 32
#define SIGNATURE_BYTES 64
/* EVP_DecodeBlock writes the bytes of the padding, too. */
#define PADDING_MAX 2

static char *
encode_base64(const void *bytes, size_t length)
{
	char	   *text = palloc((length + 2) / 3 * 4 + 1);

	EVP_EncodeBlock((uint8 *) text, bytes, (int) length);
	return text;
}

static char *
sign(const void *key, size_t key_length, const char *id, FuzzField body)
{
	char	   *head = psprintf("%s.%d.", id, TIMESTAMP_S);
	size_t		head_length = strlen(head);
	char	   *all = palloc(head_length + body.length + 1);
	uint8		digest[EVP_MAX_MD_SIZE];
	unsigned int digest_length;

	memcpy(all, head, head_length);
	memcpy(all + head_length, body.text, body.length);
	HMAC(EVP_sha256(), key, (int) key_length, (uint8 *) all,
		 head_length + body.length, digest, &digest_length);
	return psprintf("v1,%s", encode_base64(digest, digest_length));
}

/* A secret made of a key must sign as that key does. */
static void
check_key(FuzzField key, const char *id, FuzzField body)
{
	char	   *secret = psprintf(PREFIX "%s", encode_base64(key.text, key.length));
	const char *secrets[] = {secret, NULL};
	bool		fits = key.length >= KEY_BYTES_MIN && key.length <= KEY_BYTES_MAX;

	fuzz_check(signature_secret_valid(secret) == fits);
	if (fits)
		fuzz_check(strcmp(signature_header(secrets, id, TIMESTAMP_S,
										   body.text, body.length),
						  sign(key.text, key.length, id, body)) == 0);
}

/* A text is a secret only if it is the canonical encoding of its key. */
static void
check_secret(const char *secret, const char *id, FuzzField body)
{
	const char *secrets[] = {secret, secret, NULL};
	char	   *header = signature_header(secrets, id, TIMESTAMP_S,
										  body.text, body.length);
	const char *text = secret + strlen(PREFIX);
	uint8	   *key;
	int			padding = 0;
	int			length;
	char	   *once;

	if (strncmp(secret, SIGNING_PREFIX, strlen(SIGNING_PREFIX)) == 0)
		return;
	fuzz_check(signature_secret_valid(secret) == (header != NULL));
	if (header == NULL)
		return;

	fuzz_check(strncmp(secret, PREFIX, strlen(PREFIX)) == 0);
	key = palloc(strlen(text) + 1);
	length = EVP_DecodeBlock(key, (const uint8 *) text, (int) strlen(text));
	for (const char *c = text + strlen(text); c > text && c[-1] == '='; c--)
		padding++;
	length -= padding;
	fuzz_check(length >= KEY_BYTES_MIN && length <= KEY_BYTES_MAX);
	fuzz_check(strcmp(encode_base64(key, length), text) == 0);
	once = sign(key, length, id, body);
	fuzz_check(strcmp(header, psprintf("%s %s", once, once)) == 0);
}

/* A signature must be right for this public key. */
static void
check_signature(const char *header, const char *public_key, const char *id,
				FuzzField body)
{
	char	   *head = psprintf("%s.%d.", id, TIMESTAMP_S);
	size_t		head_length = strlen(head);
	uint8	   *all = palloc(head_length + body.length + 1);
	uint8		raw[PUBLIC_BYTES + PADDING_MAX];
	uint8		signature[SIGNATURE_BYTES + PADDING_MAX];
	const char *base64 = public_key + strlen(PUBLIC_PREFIX);
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	EVP_PKEY   *key;

	memcpy(all, head, head_length);
	memcpy(all + head_length, body.text, body.length);
	fuzz_check(strncmp(header, "v1a,", strlen("v1a,")) == 0);
	header += strlen("v1a,");
	fuzz_check(EVP_DecodeBlock(raw, (const uint8 *) base64,
							   (int) strlen(base64)) == PUBLIC_BYTES + 1);
	fuzz_check(EVP_DecodeBlock(signature, (const uint8 *) header,
							   (int) strlen(header)) == SIGNATURE_BYTES + 2);
	key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, raw, PUBLIC_BYTES);
	fuzz_check(EVP_DigestVerifyInit(context, NULL, NULL, NULL, key) == 1);
	fuzz_check(EVP_DigestVerify(context, signature, SIGNATURE_BYTES,
								all, head_length + body.length) == 1);
	EVP_MD_CTX_free(context);
	EVP_PKEY_free(key);
}

/* What is accepted as a signing key signs; its public key verifies that. */
static void
check_signing_key(const char *signing_key, const char *id, FuzzField body)
{
	const char *secrets[] = {signing_key, NULL};
	char	   *public_key = signature_public_key(signing_key);

	if (public_key == NULL)
		return;
	fuzz_check(strncmp(signing_key, SIGNING_PREFIX, strlen(SIGNING_PREFIX)) == 0);
	check_signature(signature_header(secrets, id, TIMESTAMP_S, body.text,
									 body.length), public_key, id, body);
}

/* Bytes make a signing key if they are a seed; other lengths do not fit. */
static void
check_seed(FuzzField key, const char *id, FuzzField body)
{
	char	   *text = psprintf(SIGNING_PREFIX "%s",
								encode_base64(key.text, key.length));

	fuzz_check((signature_public_key(text) != NULL) == (key.length == SEED_BYTES) ||
			   key.length == SEED_BYTES + PUBLIC_BYTES);
	check_signing_key(text, id, body);
}

void
fuzz_one(void)
{
	char	   *secret = fuzz_field().text;
	char	   *id = fuzz_field().text;
	FuzzField	body = fuzz_rest();

	check_secret(secret, id, body);
	check_key(body, id, body);
	check_signing_key(secret, id, body);
	check_seed(body, id, body);
}
