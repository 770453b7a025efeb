// webhooks.js
//
// A receiver of webhooks as the outbox sends them (Standard Webhooks): verify
// the signature, claim the webhook-id in the receiver's own database, do the
// work and commit, then answer.

'use strict';

const { consume } = require('./claims');

// As long as an event can arrive again: the schedule of the sender has attempts
// for three days, and a dead letter can be sent again for 30 more days.
const TTL = '40 days';

// outbox_enqueue accepts payloads of at most 16 MiB, unless
// idempotency.outbox_payload_max was changed.
const BODY_BYTES_MAX = 17 * 1024 * 1024;

// An answer that is not 2xx lets the sender send the event again.
const STATUS = {
  claimed: 204, completed: 204, failed: 204, in_progress: 409, mismatch: 422,
};

async function readBody(message, bytesMax) {
  const chunks = [];
  let size = 0;
  for await (const chunk of message) {
    size += chunk.length;
    if (size > bytesMax) {
      return null;
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}

// Returns a function (headers, body) that takes an event and returns the status
// of the answer. Its property handler is one for http.createServer.
function webhookReceiver({
  pool, secret, scope, work, ttl = TTL, bodyBytesMax = BODY_BYTES_MAX, onError = console.error, ...options
}) {
  const { Webhook } = require('standardwebhooks');
  const webhooks = [secret].flat().map((one) => new Webhook(one));

  // While a secret is replaced, there are two.
  function verify(headers, body) {
    let reason;
    for (const webhook of webhooks) {
      try {
        return { event: webhook.verify(body, headers) };
      } catch (error) {
        reason = error;
      }
    }
    onError(reason);
    return null;
  }

  async function receive(given, rawBody) {
    const body = rawBody.toString();
    const pairs = typeof given.get === 'function' ? [...given] : Object.entries(given);
    const headers = Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));
    const verified = verify(headers, body);
    if (!verified) {
      return 401;
    }
    const id = headers['webhook-id'];
    const { outcome } = await consume(
      pool,
      {
        ...options, id, scope, ttl, request: body,
      },
      (client) => work(client, verified.event, id),
    );
    return STATUS[outcome];
  }

  receive.handler = async (message, response) => {
    let status;
    try {
      const body = await readBody(message, bodyBytesMax);
      status = body === null ? 413 : await receive(message.headers, body);
    } catch (error) {
      onError(error);
      status = 500;
    }
    // The rest of a body that is too large is not read.
    response.writeHead(status, message.complete ? {} : { Connection: 'close' }).end();
  };
  return receive;
}

module.exports = { webhookReceiver };
