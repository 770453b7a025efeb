// cloudevents.js
//
// A receiver of CloudEvents (HTTP, binary mode) that keeps a copy of addresses
// of another service. Each event counts once, and a change that arrives late
// does not undo a newer one. So the subscription needs no order.
//
// Environment: WEBHOOK_SECRET as returned by outbox_subscribe, and that of
// endpoint.js, once.js and database.js. The tables are in cloudevents.sql.

'use strict';

const { HTTP } = require('cloudevents');
const { Webhook } = require('standardwebhooks');
const { connectPool } = require('./database');
const { listen } = require('./endpoint');
const { once } = require('./once');

const pool = connectPool();
const webhook = new Webhook(process.env.WEBHOOK_SECRET);

// CloudEvents does not define a signature. The requests also have the signature
// of Standard Webhooks.
function parse(headers, body) {
  try {
    webhook.verify(body, headers, { jsonParse: false });
    return HTTP.toEvent({ headers, body });
  } catch (error) {
    console.error(`refused: ${error.message}`);
    return null;
  }
}

// Characters in headers that are not ASCII are percent-encoded (section 3.1.3.2
// of the HTTP binding). The package does not decode them. The sequence sorts as
// text.
async function move(client, { subject, sequence, data }) {
  const customer = decodeURIComponent(subject);
  await client.query('INSERT INTO moves (customer, city) VALUES ($1, $2)', [customer, data.city]);
  await client.query(
    `INSERT INTO addresses AS a VALUES ($1, $2, $3)
     ON CONFLICT (customer) DO UPDATE SET city = excluded.city, sequence = excluded.sequence
     WHERE excluded.sequence > a.sequence`,
    [customer, data.city, sequence],
  );
}

// The source and the id together identify an event (section 3.1.1 of
// CloudEvents).
async function receive(headers, body) {
  const event = parse(headers, body);
  if (!event) {
    return 400;
  }
  const { source, id } = event;
  const outcome = await once(pool, { scope: source, id, body }, (client) => move(client, event));
  console.log(`${id} ${event.type} ${outcome}`);
  return outcome === 'mismatch' ? 422 : 204;
}

listen(receive);
