// saga.js
//
// A saga: an order is reserved, charged and shipped, by three services that have
// no transaction in common. If a step is refused, the steps before it are undone
// in reverse order.
//
//   placed -> reserve -> reserved -> charge -> charged -> ship -> shipped
//                |                      |                   |
//                |                  declined           unshippable
//                |                      |                   |
//                v                      v                   v
//            cancelled <-------------- release <- refunded <- refund
//
// Each arrow is a transaction with the effect of the step, the state of the
// order, and the event that begins the next step. The program reads the events
// of its subscription, does the step, and then acknowledges the event. It can be
// killed at any moment: an event that was not acknowledged comes again, and each
// step claims the order, so that it takes effect once.
//
// Environment: PROVIDER_URL, with the paths charge, ship and refund; LEASE, for
// a batch of events and for a call of a provider; SUBSCRIPTION; and PG* as in
// database.js. The tables are in saga.sql.

'use strict';

const { setTimeout } = require('timers/promises');
const { lease } = require('idempotency-pg');
const { connectPool } = require('./database');
const { once } = require('./once');

const SUBSCRIPTION = process.env.SUBSCRIPTION ?? 'saga';
const LEASE = process.env.LEASE ?? '40 s';
const PROVIDER_TIMEOUT_MS = 20 * 1000;
const BATCH = 10;
const PAUSE_MS = 500; // while the database is not there
const RESERVED_FOR = '7 days'; // longer than all retries of all steps take
const SCOPE = 'saga';
const TTL = process.env.TTL ?? '40 days'; // longer than an event can come again, as in once.js

const pool = connectPool();

// ---------------------------------------------------------------------------
// Steps in the database
// ---------------------------------------------------------------------------

// The state of the order, and the event that begins the next step.
async function advance(client, { id }, state) {
  await client.query('UPDATE orders SET state = $2 WHERE id = $1', [id, state]);
  await client.query(
    'SELECT outbox_enqueue($1, $2, key => $3)',
    [`saga.${state}`, { order: id }, id],
  );
}

function inDatabase(step, work) {
  return (order) => once(pool, { scope: SCOPE, id: `${order.id} ${step}`, body: null }, (client) => (
    work(client, order)
  ));
}

async function reserve(client, order) {
  const { rows: [{ outcome }] } = await client.query(
    'SELECT outcome FROM stock_reserve($1, $2, $3, ttl => $4)',
    [order.sku, order.quantity, order.id, RESERVED_FOR],
  );
  await advance(client, order, outcome === 'reserved' ? 'reserved' : 'cancelled');
}

async function settle(client, order, how) {
  const { rows: [{ outcome }] } = await client.query(`SELECT ${how}($1) AS outcome`, [order.id]);
  if (outcome !== 'done') {
    throw new Error(`${how} of ${order.id}: ${outcome}`);
  }
}

async function release(client, order) {
  await settle(client, order, 'stock_cancel');
  await advance(client, order, 'cancelled');
}

// ---------------------------------------------------------------------------
// Steps of other services
// ---------------------------------------------------------------------------

// The provider gets the same key each time. After a crash it is called again,
// and answers that it has done so already.
async function call(step, { id, amount }) {
  const response = await fetch(`${process.env.PROVIDER_URL}/${step}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Idempotency-Key': JSON.stringify(`${id} ${step}`) },
    body: JSON.stringify({ order: id, amount: Number(amount) }),
    signal: AbortSignal.timeout(PROVIDER_TIMEOUT_MS),
  });
  const receipt = (await response.text()).replaceAll('\0', '');
  if (response.ok) {
    return { receipt };
  }
  if (response.status >= 500 || [408, 409, 425, 429].includes(response.status)) {
    throw new Error(`${step} of ${id}: ${response.status}`);
  }
  return { refused: receipt };
}

// No transaction is open during the call. The effect, the state and the end of the
// claim are one transaction: if the lease was lost, commit() raises ID001, and
// nothing is changed. If another process has the lease, or has had it when it was
// killed, the event comes again later.
function byProvider(step, { record, done, instead }) {
  return async (order) => {
    const id = `${order.id} ${step}`;
    const { outcome } = await lease(pool, id, async ({ commit }) => {
      const { receipt, refused } = await call(step, order);
      const isDone = refused === undefined;
      if (!isDone && !instead) {
        throw new Error(`${id} was refused`); // only a person can help
      }
      await commit(async (client) => {
        if (isDone) {
          await record(client, order, receipt);
        }
        await advance(client, order, isDone ? done : instead);
        return { receipt, refused };
      });
    }, { scope: SCOPE, lease: LEASE, ttl: TTL });
    if (!['claimed', 'completed'].includes(outcome)) {
      throw new Error(`${id} is ${outcome}`);
    }
  };
}

async function charged(client, { id, amount }, receipt) {
  await client.query('INSERT INTO payments VALUES ($1, $2, $3)', [id, amount, receipt]);
}

async function refunded(client, { id, amount }, receipt) {
  await client.query('INSERT INTO payments VALUES ($1, $2, $3)', [id, -amount, receipt]);
}

async function shipped(client, order, receipt) {
  await settle(client, order, 'stock_confirm');
  await client.query('INSERT INTO shipments VALUES ($1, $2)', [order.id, receipt]);
}

// What begins with each event. The last two states, shipped and cancelled, are
// for other subscribers.
const steps = {
  'saga.placed': inDatabase('reserve', reserve),
  'saga.reserved': byProvider('charge', { record: charged, done: 'charged', instead: 'declined' }),
  'saga.charged': byProvider('ship', { record: shipped, done: 'shipped', instead: 'unshippable' }),
  'saga.unshippable': byProvider('refund', { record: refunded, done: 'refunded' }),
  'saga.declined': inDatabase('release', release),
  'saga.refunded': inDatabase('release', release),
  'saga.shipped': () => {},
  'saga.cancelled': () => {},
};

// ---------------------------------------------------------------------------
// The events
// ---------------------------------------------------------------------------

async function handle({ topic, payload }) {
  const { rows: [order] } = await pool.query(
    'SELECT id, sku, quantity, amount FROM orders WHERE id = $1',
    [payload.order],
  );
  await steps[topic](order);
  console.log(`${topic} ${order.id}`);
}

// Events that fail come again by the retry schedule of the subscription, and are
// dead letters in the end. An event whose acknowledgement is lost comes again.
// If the batch takes longer than its lease, another program may get its events,
// too: the claims keep each step from being done twice.
async function handleBatch() {
  const { rows: events } = await pool.query(
    'SELECT token, position, topic, payload FROM outbox_fetch($1, $2, $3)',
    [SUBSCRIPTION, BATCH, LEASE],
  );
  const failed = [];
  let reason = null;
  for (const event of events) {
    await handle(event).catch((error) => {
      console.error(error.message);
      failed.push(event.position);
      reason = error.message;
    });
  }
  if (events.length > 0) {
    await pool.query(
      'SELECT outbox_ack($1, $2, failed => $3, error => $4)',
      [SUBSCRIPTION, events[0].token, failed, reason],
    );
  } else {
    await pool.query('CALL outbox_wait($1)', [SUBSCRIPTION]);
  }
}

async function main() {
  console.log('running');
  for (;;) {
    await handleBatch().catch((error) => {
      console.error(error.message);
      return setTimeout(PAUSE_MS);
    });
  }
}

main();
