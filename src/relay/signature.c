/*
 * signature.c
 *		Secrets and signatures of Standard Webhooks 1.0.
 *
 * Called by the relay for each attempt and by the SQL functions in webhook.c.
 * A signature is the base64 of HMAC-SHA256 over "id.timestamp.body".  With it a
 * receiver can verify that the body, the id by which it removes duplicates, and
 * the time of sending were not changed on the way.
 *
 * No function here puts a secret into a message.
 */
#include "postgres.h"

#include "common/base64.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "lib/stringinfo.h"
#include "utils/resowner.h"

#include "relay/signature.h"

#define SIGNATURE_SECRET_PREFIX "whsec_"
#define SIGNATURE_KEY_BYTES_MIN 24
#define SIGNATURE_KEY_BYTES_MAX 64
#define SIGNATURE_KEY_BYTES_NEW 32
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
 * Decodes a secret into key, which has room for SIGNATURE_KEY_BYTES_MAX.
 * Returns its length, or -1 if the secret is malformed.
 *
 * The result is encoded again and compared: the decoder accepts characters
 * after the padding, and the decoders of receivers may not.
 */
static int
signature_decode_secret(const char *secret, uint8 *key)
{
	char		again[BASE64_LENGTH(SIGNATURE_KEY_BYTES_MAX) + 1];
	const char *base64 = secret + strlen(SIGNATURE_SECRET_PREFIX);
	int			length;

	if (strncmp(secret, SIGNATURE_SECRET_PREFIX,
				strlen(SIGNATURE_SECRET_PREFIX)) != 0 ||
		strlen(base64) >= sizeof(again))
		return -1;

	length = pg_b64_decode(base64, strlen(base64),
						   (void *) key, SIGNATURE_KEY_BYTES_MAX);
	if (length < SIGNATURE_KEY_BYTES_MIN)
		return -1;

	signature_encode(key, length, again, sizeof(again));
	return strcmp(base64, again) == 0 ? length : -1;
}

/*
 * Returns an HMAC context, which lives as long as the process; NULL if there is
 * not enough memory.  PostgreSQL registers it with a resource owner, which is
 * one of its own: the relay signs outside of transactions.
 */
static pg_hmac_ctx *
signature_hmac(void)
{
	static pg_hmac_ctx *hmac = NULL;
	ResourceOwner before = CurrentResourceOwner;

	if (hmac != NULL)
		return hmac;
	CurrentResourceOwner = ResourceOwnerCreate(NULL, "idempotency signature");
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

/* Appends "v1,<base64 HMAC-SHA256>" of head and body to out. */
static void
signature_append(StringInfo out, const uint8 *key, int key_length,
				 const char *head, const char *body, size_t body_length)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	char		base64[BASE64_LENGTH(PG_SHA256_DIGEST_LENGTH) + 1];

	signature_make_digest(digest, key, key_length, head, body, body_length);
	signature_encode(digest, sizeof(digest), base64, sizeof(base64));
	appendStringInfoString(out, "v1,");
	appendStringInfoString(out, base64);
}

/*
 * While a secret is being rotated there are two, and a receiver accepts the
 * event if either signature is right.
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
		uint8		key[SIGNATURE_KEY_BYTES_MAX];
		int			key_length = signature_decode_secret(*secrets, key);

		if (key_length < 0)
			return NULL;
		if (out.len > 0)
			appendStringInfoChar(&out, ' ');
		signature_append(&out, key, key_length, head, body, body_length);
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
