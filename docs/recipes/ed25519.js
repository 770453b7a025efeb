// ed25519.js
//
// Verifies the signature v1a of a webhook with the result of outbox_public_key.
// A request is refused if its time differs by five minutes or more.

'use strict';

const crypto = require('crypto');

// publicKey: whpk_...; headers: with names in lower case; body: a Buffer, as it was received.
function verify(publicKey, headers, body) {
  const key = crypto.createPublicKey({
    format: 'jwk',
    key: {
      kty: 'OKP', crv: 'Ed25519',
      x: Buffer.from(publicKey.slice('whpk_'.length), 'base64').toString('base64url'),
    },
  });
  const signed = Buffer.concat([
    Buffer.from(`${headers['webhook-id']}.${headers['webhook-timestamp']}.`), body]);
  return Math.abs(Date.now() / 1000 - headers['webhook-timestamp']) < 300 &&
    headers['webhook-signature'].split(' ').some((one) => one.startsWith('v1a,') &&
      crypto.verify(null, signed, key, Buffer.from(one.slice('v1a,'.length), 'base64')));
}

module.exports = { verify };
