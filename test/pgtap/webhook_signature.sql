/*
 * Signatures and secrets are those of Standard Webhooks 1.0.  If this fails,
 * receivers that verify with any library of that standard refuse our events.
 */
\set ON_ERROR_STOP on
SET client_min_messages = warning;
SET client_encoding = 'UTF8';
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE EXTENSION IF NOT EXISTS pgtap;

BEGIN;
SELECT plan(31);

/* The example in the standard. */
SELECT is(
	outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
					 'msg_p5jXN8AQM9LWM0D4loKWxJek', 1614265330,
					 '{"test": 2432232314}'),
	'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
	'the published example has the published signature');

/* Computed with the standard's JavaScript library, version 1.1.1. */
SELECT is(
	outbox_signature('whsec_p6enp6enp6enp6enp6enp6enp6enp6en',
					 'evt_1', 0,
					 ''),
	'v1,A5pYbB4pHPX4QRFXIPPSPeRs9zM4/aocJFgs+eawT3w=',
	'an empty body is signed as the library signs it');
SELECT is(
	outbox_signature('whsec_/////////////////////////////////////////////////////////////////////////////////////w==',
					 'evt_2.3', 2000000000,
					 '{"type":"order.placed","data":{"name":"Zoë €"}}'),
	'v1,MSkeOT5TP5fzAoJBWWKtX3eYYz5Ee4ii7+hG+LCcRP4=',
	'a body outside ASCII is signed as the library signs it');

SELECT isnt(
	outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'a', 1, 'body'),
	outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'b', 1, 'body'),
	'the id is signed');
SELECT isnt(
	outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'a', 1, 'body'),
	outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'a', 2, 'body'),
	'the timestamp is signed');
SELECT is(
	outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'a', 1, NULL),
	NULL, 'no body, no signature');
SELECT throws_ok(
	$$SELECT outbox_signature('whsec_tooshort', 'a', 1, 'body')$$,
	'22023', 'invalid webhook secret', 'a malformed secret does not sign');

/* Secrets. */
SELECT matches(outbox_secret_generate(), '^whsec_[A-Za-z0-9+/]{43}=$',
			   'a generated secret is whsec_ and 32 bytes of base64');
SELECT isnt(outbox_secret_generate(), outbox_secret_generate(),
			'two generated secrets differ');
SELECT lives_ok($$SELECT outbox_check_secret(outbox_secret_generate())$$,
				'a generated secret passes the check');
SELECT throws_ok($$SELECT outbox_check_secret(NULL)$$,
				 '22004', 'secret must not be null', 'a secret is needed');

SELECT lives_ok(
	format('SELECT outbox_check_secret(%L)',
		   'whsec_' || translate(encode(decode(repeat('a7', bytes), 'hex'),
										'base64'), E'\n', '')),
	format('a secret of %s bytes is accepted', bytes))
FROM unnest(ARRAY[24, 64]) AS bytes;

SELECT throws_ok(format('SELECT outbox_check_secret(%L)', secret),
				 '22023', 'invalid webhook secret', what || ' is refused')
FROM (VALUES
	(1, '', 'an empty secret'),
	(2, 'MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'a secret without whsec_'),
	(3, 'whsec_' || encode(decode(repeat('a7', 23), 'hex'), 'base64'),
	 'a secret of 23 bytes'),
	(4, 'whsec_' || translate(encode(decode(repeat('a7', 65), 'hex'),
									 'base64'), E'\n', ''),
	 'a secret of 65 bytes'),
	(5, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw ', 'a trailing blank'),
	(6, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwAA', 'missing padding'),
	(7, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwAB==', 'a base64 that no encoder writes'),
	(8, 'whsec_' || repeat('A', 100000), 'a huge secret')
) AS bad(nr, secret, what)
ORDER BY nr;

/*
 * The first test of RFC 8032, section 7.1: the seed and its public key.  The
 * signature was computed with Python's cryptography.
 */
\set seed 'whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A='
\set pair 'whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg=='
\set other 'whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DWWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg=='
SELECT is(idempotency_internal.outbox_derive_public_key(key),
	'whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=',
	'the public key of the RFC')
FROM unnest(ARRAY[:'seed', :'pair']) key;
SELECT throws_ok(format('SELECT idempotency_internal.outbox_derive_public_key(%L)', :'other'),
	'22023', 'invalid signing key', 'a key with the public key of another one');
SELECT is(outbox_signature(:'seed', 'msg_1', 1700000000, '{}'),
	'v1a,iUiiV4ZCeCQUD1WuapVgCy/8W8IS3lTY7fbJz7wNsiiLPazoIGCPralTwRyETD17+pAl2n7MJ86yauo9xOpNBg==', 'a signature of Ed25519 is that of another library');
SELECT throws_ok(format('SELECT idempotency_internal.outbox_derive_public_key(%L)', key),
	'22023', 'invalid signing key', 'refused: ' || left(key, 20))
FROM unnest(ARRAY['', 'whsk_', 'whsk_AAAA', :'seed' || 'A', replace(:'seed', 'whsk', 'whpk')]) key;
SELECT matches(outbox_key_generate(), '^whsk_[A-Za-z0-9+/]{86}==$',
	'a new key is 64 bytes');

SELECT * FROM finish();
ROLLBACK;
