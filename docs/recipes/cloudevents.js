// cloudevents.js
//
// A receiver of CloudEvents (HTTP, binary or batched mode) that keeps a copy of
// addresses of another service. Each event counts once, and a change that arrives late
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

// Characters in headers that are not ASCII are percent-encoded (section 3.1.3.2
// of the HTTP binding). The package does not decode them.
function decode(event) {
  return event.cloneWith({ subject: decodeURIComponent(event.subject) });
}

// Returns the events of a request. In batched mode there can be several, and
// their attributes are not in headers. CloudEvents does not define a signature.
// The requests also have the signature of Standard Webhooks.
function parse(headers, body) {
  try {
    webhook.verify(body, headers, { jsonParse: false });
    const parsed = HTTP.toEvent({ headers, body });
    return Array.isArray(parsed) ? parsed : [decode(parsed)];
  } catch (error) {
    console.error(`refused: ${error.message}`);
    return null;
  }
}

// The sequence sorts as text.
async function move(client, { subject, sequence, data }) {
  await client.query('INSERT INTO moves (customer, city) VALUES ($1, $2)', [subject, data.city]);
  await client.query(
    `INSERT INTO addresses AS a VALUES ($1, $2, $3)
     ON CONFLICT (customer) DO UPDATE SET city = excluded.city, sequence = excluded.sequence
     WHERE excluded.sequence > a.sequence`,
    [subject, data.city, sequence],
  );
}

// The source and the id together identify an event (section 3.1.1 of
// CloudEvents). The request of the claim is the data, not the whole body: an
// event can arrive again together with others than before.
async function receive(headers, body) {
  const events = parse(headers, body);
  if (!events) {
    return 400;
  }
  let status = 204;
  for (const event of events) {
    const { source, id, data } = event;
    const claim = { scope: source, id, body: JSON.stringify(data) };
    const outcome = await once(pool, claim, (client) => move(client, event));
    console.log(`${id} ${event.type} ${outcome}`);
    if (outcome === 'mismatch') {
      status = 422;
    }
  }
  return status;
}

listen(receive);
