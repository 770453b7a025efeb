// event_outbox.js
//
// A service of two parts, orders and warehouse, that communicate by events. The
// original uses event-outbox on MongoDB and Kafka. A request changes an order
// and enqueues an event in one transaction. A handler processes each event
// once: in one transaction it changes data and enqueues another event. The
// relay of the database replaces publishers, Kafka and consumers. Events arrive
// in this process as HTTP requests.
//
// Each line of the input is a request, {"order", "customer", "quantity"}.
//
// Environment: WEBHOOK_SECRET as returned by outbox_subscribe, and that of
// endpoint.js, once.js and database.js. The tables are in event_outbox.sql.

'use strict';

const readline = require('readline');
const { transact } = require('idempotency-pg');
const { Webhook } = require('standardwebhooks');
const { connectPool } = require('./database');
const { listen } = require('./endpoint');
const { once } = require('./once');

const SCOPE = 'event_outbox'; // one for each group of consumers

const pool = connectPool();
const webhook = new Webhook(process.env.WEBHOOK_SECRET);

async function announce(client, topic, key, data) {
  await client.query('SELECT outbox_enqueue($1, $2, key => $3)', [topic, data, key]);
}

// ---------------------------------------------------------------------------
// Orders
// ---------------------------------------------------------------------------

async function changeOrder({ order, customer, quantity }) {
  return transact(pool, async (client) => {
    const { rows: [{ version }] } = await client.query(
      `INSERT INTO orders AS o (name, customer, quantity) VALUES ($1, $2, $3)
       ON CONFLICT (name) DO UPDATE SET quantity = excluded.quantity, version = o.version + 1
       RETURNING version`,
      [order, customer, quantity],
    );
    await announce(client, 'orders.changed', order, { order, version, quantity });
    return version;
  });
}

async function notePicked(client, { order }) {
  await client.query('UPDATE orders SET picked = picked + 1 WHERE name = $1', [order]);
}

// ---------------------------------------------------------------------------
// Warehouse
// ---------------------------------------------------------------------------

async function pick(client, { order, version, quantity }) {
  await client.query(
    'INSERT INTO picks (order_name, version, quantity) VALUES ($1, $2, $3)',
    [order, version, quantity],
  );
  await client.query('UPDATE shelf SET picks = picks + 1');
  await announce(client, 'warehouse.picked', order, { order, version });
}

// ---------------------------------------------------------------------------
// Events
// ---------------------------------------------------------------------------

const handlers = new Map([
  ['orders.changed', pick],
  ['warehouse.picked', notePicked],
]);

async function receive(headers, body) {
  const { type, data } = webhook.verify(body, headers);
  const event = { scope: SCOPE, id: headers['webhook-id'], body };
  const outcome = await once(pool, event, (client) => handlers.get(type)?.(client, data));
  console.log(`${type} ${data.order} ${data.version} ${outcome}`);
  return outcome === 'mismatch' ? 422 : 204;
}

listen(receive);
readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const request = JSON.parse(line);
  const version = await changeOrder(request).catch((error) => `refused ${error.code}`);
  console.log(`${request.order} ${version}`);
});
