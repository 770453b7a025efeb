// webhooks.js
//
// A webhook receiver, here the shipping department of a shop, that processes
// each event once: verify the signature, claim the webhook-id, do the work and
// commit, then answer. If an event arrives again, because the answer was lost
// or too late, its id is known, and it is answered at once.
//
// Environment: WEBHOOK_SECRET as returned by outbox_subscribe, and that of
// endpoint.js, once.js and database.js. The table is in webhooks.sql.

'use strict';

const { Webhook } = require('standardwebhooks');
const { connectPool } = require('./database');
const { listen } = require('./endpoint');
const { once } = require('./once');

const SCOPE = 'events of the shop';

const pool = connectPool();
const webhook = new Webhook(process.env.WEBHOOK_SECRET);

function verify(headers, body) {
  try {
    return webhook.verify(body, headers);
  } catch (error) {
    console.error(`refused: ${error.message}`);
    return null;
  }
}

// The effect of an event. It would be wrong if it was applied twice, or in
// another order.
async function ship(client, { type, data }) {
  switch (type) {
    case 'order.placed':
      await client.query(
        'INSERT INTO parcels (order_id, item, quantity) VALUES ($1, $2, $3)',
        [data.order, data.item, data.quantity],
      );
      break;
    case 'order.cancelled':
      await client.query('DELETE FROM parcels WHERE order_id = $1', [data.order]);
      break;
    default: // not used here, and accepted, so that it is not sent again
  }
}

async function receive(headers, body) {
  const event = verify(headers, body);
  if (!event) {
    return 401;
  }
  const id = headers['webhook-id'];
  const outcome = await once(pool, { scope: SCOPE, id, body }, (client) => ship(client, event));
  console.log(`${id} ${event.type} ${outcome}`);
  return outcome === 'mismatch' ? 422 : 204;
}

listen(receive);
