/*
 * signature.c
 *		Secrets and signatures of Standard Webhooks 1.0.
 *
 * Called by the relay for each attempt and by the SQL functions in webhook.c.
 * A signature is the base64 of HMAC-SHA256 over "id.timestamp.body", by a secret
 * that the receiver has too ("v1"), or of Ed25519 over the same, by a signing
 * key whose public key the receiver has ("v1a").  With it a receiver can verify
 * that the body, the id by which it removes duplicates, and the time of sending
 * were not changed on the way.
 *
 * No function here puts a secret into a message.
 */
#include "postgres.h"

#include "common/base64.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "lib/stringinfo.h"
#include "utils/resowner.h"

#include "relay/ed25519.h"
#include "relay/signature.h"

#define SIGNATURE_SECRET_PREFIX "whsec_"
#define SIGNATURE_SIGNING_KEY_PREFIX "whsk_"
#define SIGNATURE_PUBLIC_KEY_PREFIX "whpk_"
#define SIGNATURE_KEY_BYTES_MIN 24
#define SIGNATURE_KEY_BYTES_MAX 64
#define SIGNATURE_KEY_BYTES_NEW 32
/* A signing key is a seed, or a seed and its public key. */
#define SIGNATURE_PAIR_BYTES (ED25519_SEED_BYTES + ED25519_PUBLIC_BYTES)
/* Of the 32 bytes of a digest; so many make an id unique. */
#define SIGNATURE_DIGEST_BYTES 16

/* Characters of the base64 of n bytes, padding included. */
#define BASE64_LENGTH(n) (((n) + 2) / 3 * 4)

/*
 * Encodes bytes as base64.  The buffers are passed as void pointers because
 * they are char in some versions of PostgreSQL and uint8 in others.
 */
static void
signature_encode(const uint8 *bytes, int length, char *base64, int size)
{
	int			base64_length;

	base64_length = pg_b64_encode((const void *) bytes, length,
								  base64, size - 1);
	if (base64_length < 0)
		elog(ERROR, "could not encode %d bytes as base64", length);
	base64[base64_length] = '\0';
}

/*
 * Decodes what follows the prefix of a secret or key into key, which has room
 * for SIGNATURE_KEY_BYTES_MAX.  Returns its length, or -1 if it is malformed.
 *
 * The result is encoded again and compared: the decoder accepts characters
 * after the padding, and the decoders of receivers may not.
 */
static int
signature_decode(const char *secret, const char *prefix, uint8 *key)
{
	char		again[BASE64_LENGTH(SIGNATURE_KEY_BYTES_MAX) + 1];
	const char *base64 = secret + strlen(prefix);
	int			length;

	if (strncmp(secret, prefix, strlen(prefix)) != 0 ||
		strlen(base64) >= sizeof(again))
		return -1;

	length = pg_b64_decode(base64, strlen(base64),
						   (void *) key, SIGNATURE_KEY_BYTES_MAX);
	if (length < 0)
		return -1;

	signature_encode(key, length, again, sizeof(again));
	return strcmp(base64, again) == 0 ? length : -1;
}

/* Decodes a secret.  Returns its length, or -1 if it is malformed. */
static int
signature_decode_secret(const char *secret, uint8 *key)
{
	int			length = signature_decode(secret, SIGNATURE_SECRET_PREFIX, key);

	return length < SIGNATURE_KEY_BYTES_MIN ? -1 : length;
}

/*
 * Decodes a signing key into its seed, with room for SIGNATURE_KEY_BYTES_MAX.
 * Returns its length, or -1 if it is malformed.
 */
static int
signature_decode_seed(const char *signing_key, uint8 *seed)
{
	int			length = signature_decode(signing_key,
										  SIGNATURE_SIGNING_KEY_PREFIX, seed);

	return length == ED25519_SEED_BYTES || length == SIGNATURE_PAIR_BYTES ?
		length : -1;
}

/*
 * Returns an HMAC context, which lives as long as the process; NULL if there is
 * not enough memory.  PostgreSQL registers it with a resource owner, which is
 * one of its own: the relay signs outside of transactions.
 */
static pg_hmac_ctx *
signature_hmac(void)
{
	static ResourceOwner owner = NULL;
	static pg_hmac_ctx *hmac = NULL;
	ResourceOwner before = CurrentResourceOwner;

	if (hmac != NULL)
		return hmac;
	if (owner == NULL)
		owner = ResourceOwnerCreate(NULL, "idempotency signature");
	CurrentResourceOwner = owner;	/* an error restores it, too */
	hmac = pg_hmac_create(PG_SHA256);
	CurrentResourceOwner = before;
	return hmac;
}

/* Computes the HMAC-SHA256 of head and body; raises an error if it fails. */
static void
signature_make_digest(uint8 *digest, const uint8 *key, int key_length,
					  const char *head, const char *body, size_t body_length)
{
	pg_hmac_ctx *hmac = signature_hmac();

	if (hmac == NULL ||
		pg_hmac_init(hmac, key, key_length) < 0 ||
		pg_hmac_update(hmac, (const uint8 *) head, strlen(head)) < 0 ||
		pg_hmac_update(hmac, (const uint8 *) body, body_length) < 0 ||
		pg_hmac_final(hmac, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute a signature")));
}

/*
 * Appends "v1,<base64 HMAC-SHA256>" of head and body to out; false: the secret
 * is malformed.
 */
static bool
signature_append_hmac(StringInfo out, const char *secret,
					  const char *head, const char *body, size_t body_length)
{
	uint8		key[SIGNATURE_KEY_BYTES_MAX];
	int			key_length = signature_decode_secret(secret, key);
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	char		base64[BASE64_LENGTH(PG_SHA256_DIGEST_LENGTH) + 1];

	if (key_length < 0)
		return false;
	signature_make_digest(digest, key, key_length, head, body, body_length);
	signature_encode(digest, sizeof(digest), base64, sizeof(base64));
	appendStringInfoString(out, "v1,");
	appendStringInfoString(out, base64);
	return true;
}

/*
 * Appends "v1a,<base64 Ed25519>" of head and body to out; false: the signing
 * key is malformed.  Ed25519 reads a message twice, so it has to be in one
 * piece.
 */
static bool
signature_append_ed25519(StringInfo out, const char *signing_key,
						 const char *head, const char *body,
						 size_t body_length)
{
	uint8		seed[SIGNATURE_KEY_BYTES_MAX];
	uint8		signature[ED25519_SIGNATURE_BYTES];
	char		base64[BASE64_LENGTH(ED25519_SIGNATURE_BYTES) + 1];
	size_t		head_length = strlen(head);
	uint8	   *message;

	if (signature_decode_seed(signing_key, seed) < 0)
		return false;
	message = palloc_extended(head_length + body_length + 1, MCXT_ALLOC_HUGE);
	strlcpy((char *) message, head, head_length + 1);
	memcpy(message + head_length, body, body_length);
	if (!ed25519_sign(seed, message, head_length + body_length, signature))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute a signature")));
	pfree(message);
	signature_encode(signature, sizeof(signature), base64, sizeof(base64));
	appendStringInfoString(out, "v1a,");
	appendStringInfoString(out, base64);
	return true;
}

static bool
signature_is_signing_key(const char *secret)
{
	return strncmp(secret, SIGNATURE_SIGNING_KEY_PREFIX,
				   strlen(SIGNATURE_SIGNING_KEY_PREFIX)) == 0;
}

/*
 * While a secret is being rotated there are two, and a receiver accepts the
 * event if either signature is right.  The same goes for signing keys.
 */
char *
signature_header(const char *const *secrets, const char *id,
				 int64 timestamp_s, const char *body, size_t body_length)
{
	StringInfoData out;
	char	   *head;

	Assert(secrets[0] != NULL);

	initStringInfo(&out);
	head = psprintf("%s." INT64_FORMAT ".", id, timestamp_s);
	for (; *secrets != NULL; secrets++)
	{
		bool		ok;

		if (out.len > 0)
			appendStringInfoChar(&out, ' ');
		if (signature_is_signing_key(*secrets))
			ok = signature_append_ed25519(&out, *secrets, head,
										  body, body_length);
		else
			ok = signature_append_hmac(&out, *secrets, head,
									   body, body_length);
		if (!ok)
			return NULL;
	}
	pfree(head);

	return out.data;
}

char *
signature_digest(const char *key, const char *text)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	StringInfoData hex;

	signature_make_digest(digest, (const uint8 *) key, strlen(key), "", text,
						  strlen(text));
	initStringInfo(&hex);
	for (int i = 0; i < SIGNATURE_DIGEST_BYTES; i++)
		appendStringInfo(&hex, "%02x", digest[i]);
	return hex.data;
}

bool
signature_secret_valid(const char *secret)
{
	uint8		key[SIGNATURE_KEY_BYTES_MAX];

	return signature_decode_secret(secret, key) >= 0;
}

char *
signature_secret_generate(void)
{
	uint8		key[SIGNATURE_KEY_BYTES_NEW];
	char		base64[BASE64_LENGTH(SIGNATURE_KEY_BYTES_NEW) + 1];

	if (!pg_strong_random(key, sizeof(key)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random secret")));

	signature_encode(key, sizeof(key), base64, sizeof(base64));
	return psprintf("%s%s", SIGNATURE_SECRET_PREFIX, base64);
}

char *
signature_public_key(const char *signing_key)
{
	uint8		pair[SIGNATURE_KEY_BYTES_MAX];
	uint8		public_key[ED25519_PUBLIC_BYTES];
	char		base64[BASE64_LENGTH(ED25519_PUBLIC_BYTES) + 1];
	int			length = signature_decode_seed(signing_key, pair);

	if (length < 0)
		return NULL;
	if (!ed25519_public(pair, public_key))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not derive a public key")));
	if (length == SIGNATURE_PAIR_BYTES &&
		memcmp(pair + ED25519_SEED_BYTES, public_key, sizeof(public_key)) != 0)
		return NULL;

	signature_encode(public_key, sizeof(public_key), base64, sizeof(base64));
	return psprintf("%s%s", SIGNATURE_PUBLIC_KEY_PREFIX, base64);
}

char *
signature_signing_key_generate(void)
{
	uint8		pair[SIGNATURE_PAIR_BYTES];
	char		base64[BASE64_LENGTH(SIGNATURE_PAIR_BYTES) + 1];

	if (!pg_strong_random(pair, ED25519_SEED_BYTES) ||
		!ed25519_public(pair, pair + ED25519_SEED_BYTES))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random signing key")));

	signature_encode(pair, sizeof(pair), base64, sizeof(base64));
	return psprintf("%s%s", SIGNATURE_SIGNING_KEY_PREFIX, base64);
}
