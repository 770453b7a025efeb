// kafka_stock.js
//
// A stock service that consumes two topics of Kafka. "order-lines" has a
// message for each line of an order, keyed by the sku, so that the lines of one
// order are spread over partitions and consumers. "payments" has the payments
// and cancellations. When the last line of an order has arrived, all lines are
// reserved, or none. The outbox sends the result: order.reserved, order.refused
// with every line that falls short, order.confirmed, order.cancelled,
// order.expired.
//
// Each line has a hash of all lines of its order: the SHA-256, in hex, of
// "sku=quantity" of each line, sorted and joined by line feeds. So lines of
// another version of the order are not mixed with it, and an order is reserved
// only with exactly the lines that were sent.
//
// A message, its effect and the event about it are one transaction. The offset
// is committed after that. A message that is delivered again is recognised by
// its id.
//
// Environment: KAFKA_BROKERS; TTL, how long an order waits for its payment;
// FETCH_MS, how long a request to the broker waits for messages; SESSION_MS,
// after which time without a heartbeat other consumers take over the partitions
// of a consumer; and that of database.js. The tables are in kafka_stock.sql.

'use strict';

const { transact } = require('idempotency-pg');
const { Kafka, logLevel } = require('kafkajs');
const { connectPool } = require('./database');

const GROUP = 'stock';
const TTL = process.env.TTL ?? '15 min';
const IDS_TTL = '7 days'; // a message cannot be delivered again after that
const FETCH_MS = Number(process.env.FETCH_MS ?? 5000);
const SESSION_MS = Number(process.env.SESSION_MS ?? 30000);

const pool = connectPool();

// ---------------------------------------------------------------------------
// What messages do
// ---------------------------------------------------------------------------

async function announce(client, topic, order, data) {
  await client.query(
    'SELECT outbox_enqueue($1, $2, key => $3)',
    [topic, { order, ...data }, order],
  );
}

async function setState(client, order, state, data) {
  await client.query('UPDATE orders SET state = $2 WHERE name = $1', [order, state]);
  await announce(client, `order.${state}`, order, data);
  return state;
}

// The lines are counted while the row of the order is locked. So if two lines
// arrive at the same time, exactly one of them is the last.
async function gather(client, {
  order, of: count, hash, sku, quantity,
}) {
  const { rows: [{ complete, same }] } = await client.query(
    `INSERT INTO orders AS o (name, line_count, gathered, hash) VALUES ($1, $2, 1, $3)
     ON CONFLICT (name) DO UPDATE SET gathered = o.gathered + 1
     RETURNING gathered = line_count AS complete, line_count = $2 AND hash = $3 AS same`,
    [order, count, hash],
  );
  if (!same) {
    throw Object.assign(new Error('a line of another version of the order'), { code: '22023' });
  }
  await client.query('INSERT INTO order_lines VALUES ($1, $2, $3)', [order, sku, quantity]);
  return complete;
}

async function reserve(client, { order }) {
  const { rows: [{ outcome, shortages }] } = await client.query(
    `SELECT outcome, shortages
     FROM stock_reserve_many((
         SELECT jsonb_agg(jsonb_build_object('sku', sku, 'quantity', quantity))
         FROM order_lines WHERE order_name = $1
       ), $1, $2)`,
    [order, TTL],
  );
  return outcome === 'reserved'
    ? setState(client, order, 'reserved')
    : setState(client, order, 'refused', { shortages });
}

async function hasAllLines(client, { order }) {
  const { rows: [{ whole }] } = await client.query(
    `SELECT hash = encode(sha256(convert_to((
         SELECT string_agg(sku || '=' || quantity, E'\n' ORDER BY sku COLLATE "C", quantity)
         FROM order_lines WHERE order_name = name), 'UTF8')), 'hex') AS whole
     FROM orders WHERE name = $1`,
    [order],
  );
  return whole;
}

async function takeLine(client, line) {
  if (!await gather(client, line)) {
    return 'gathering';
  }
  return await hasAllLines(client, line)
    ? reserve(client, line)
    : setState(client, line.order, 'refused', { reason: 'the lines are not those of the order' });
}

// A refused order has no reservation: the outcome is unknown, and nothing is
// done.
async function takePayment(client, { order, paid }) {
  const { rows: [{ outcome }] } = await client.query(
    `SELECT ${paid ? 'stock_confirm' : 'stock_cancel'}($1) AS outcome`,
    [order],
  );
  if (outcome === 'done') {
    return setState(client, order, paid ? 'confirmed' : 'cancelled');
  }
  return outcome === 'expired' ? setState(client, order, 'expired') : outcome;
}

const topics = { 'order-lines': takeLine, payments: takePayment };

// ---------------------------------------------------------------------------
// Each message once
// ---------------------------------------------------------------------------

async function once(id, work) {
  return transact(pool, async (client) => {
    const { rows: [{ outcome }] } = await client.query(
      'SELECT outcome FROM idem_claim($1, scope => $2, ttl => $3)',
      [id, GROUP, IDS_TTL],
    );
    return outcome === 'claimed' ? work(client) : outcome;
  });
}

// Invalid data (classes 22 and 23 of SQLSTATE) fail each time. Kafka would
// deliver such a message again and again, and no message after it.
async function refuse(client, id, error) {
  await client.query('INSERT INTO refused_messages VALUES ($1, $2)', [id, error.message]);
  return `refused (${error.code ?? error.name})`;
}

async function handle(topic, message) {
  const id = message.headers.id.toString();
  let outcome;
  try {
    outcome = await once(id, (client) => topics[topic](client, JSON.parse(message.value)));
  } catch (error) {
    if (!(error instanceof SyntaxError || /^2[23]/.test(error.code))) {
      throw error; // the message is delivered again
    }
    outcome = await once(id, (client) => refuse(client, id, error));
  }
  console.log(`${id} ${outcome}`);
}

async function main() {
  const kafka = new Kafka({
    brokers: (process.env.KAFKA_BROKERS ?? '127.0.0.1:9092').split(','),
    logLevel: logLevel.ERROR,
  });
  const consumer = kafka.consumer({
    groupId: GROUP,
    sessionTimeout: SESSION_MS,
    heartbeatInterval: SESSION_MS / 10,
    maxWaitTimeInMs: FETCH_MS,
  });
  consumer.on(consumer.events.GROUP_JOIN, () => console.log('consuming'));
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    if (!payload.restart) {
      process.exit(1); // the supervisor of the process starts it again
    }
  });
  process.once('SIGTERM', () => consumer.disconnect()); // others take over at once
  await consumer.connect();
  await consumer.subscribe({ topics: Object.keys(topics), fromBeginning: true });
  await consumer.run({
    autoCommitThreshold: 1, // the offset of each message, as soon as it is handled
    eachMessage: ({ topic, message }) => handle(topic, message),
  });
}

main();
