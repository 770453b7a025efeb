'use strict';
/*
 * receiver.js: the receiver of compose.yaml. It verifies the signature of each
 * webhook and prints the event. An event that comes again is accepted too.
 *
 * Environment: WEBHOOK_SECRET, and that of endpoint.js.
 */

const { Webhook } = require('standardwebhooks');
const { listen } = require('./endpoint');

const webhook = new Webhook(process.env.WEBHOOK_SECRET);

function verify(headers, body) {
  try {
    return webhook.verify(body, headers);
  } catch (error) {
    console.error(`refused: ${error.message}`);
    return null;
  }
}

// Process 1 of a container has no default for it.
process.once('SIGTERM', () => process.exit());

listen((headers, body) => {
  const event = verify(headers, body);
  if (!event) {
    return 401;
  }
  console.log(`${headers['webhook-id']} ${event.type} ${JSON.stringify(event.data)}`);
  return 204;
});
