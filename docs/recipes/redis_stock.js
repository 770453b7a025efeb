// redis_stock.js
//
// A booking service that would otherwise use counters in Redis: book, cancel,
// undo a cancel, finalise. Here a booking and its stock change in one
// transaction. So the service needs no code that compensates after a rollback,
// and writes no log.
//
// Each line of the input is a request, {"do", "order"} and for book also
// {"customer", "sku", "quantity"}; each line of the output is its answer.
//
// Environment: TTL, how long a booking waits to be paid, and that of
// database.js. The tables are in redis_stock.sql.

'use strict';

const readline = require('readline');
const { transact } = require('idempotency-pg');
const { connectPool } = require('./database');

const TTL = process.env.TTL ?? '15 min';

const pool = connectPool();

async function book(client, {
  order, customer, sku, quantity,
}) {
  const { rows: [{ answer, remaining }] } = await client.query(
    'SELECT answer, remaining FROM reserve_stock($1, $2, $3, $4)',
    [sku, quantity, order, TTL],
  );
  if (answer === 'enough') {
    await client.query(
      'INSERT INTO bookings VALUES ($1, $2, $3, $4)',
      [order, customer, sku, quantity],
    );
  }
  return answer === 'not-enough' ? `${answer} ${remaining}` : answer;
}

async function setState(client, order, outcome, state) {
  if (outcome === 'done') {
    await client.query('UPDATE bookings SET state = $2 WHERE order_name = $1', [order, state]);
  }
  return outcome;
}

async function cancel(client, { order }) {
  const { rows: [{ outcome }] } = await client.query(
    'SELECT stock_cancel($1) AS outcome',
    [order],
  );
  return setState(client, order, outcome, 'cancelled');
}

// The undo of a cancel reserves the quantity again, if it is still available.
async function undo(client, { order }) {
  const { rows: [{ outcome, remaining }] } = await client.query(
    `SELECT outcome, shortages -> 0 -> 'available' AS remaining
     FROM stock_reinstate($1, $2)`,
    [order, TTL],
  );
  await setState(client, order, outcome, 'booked');
  return outcome === 'insufficient' ? `not-enough ${remaining}` : outcome;
}

// Decrements only "reserved": the quantity has left the stock.
async function finalise(client, { order }) {
  const { rows: [{ outcome }] } = await client.query(
    'SELECT stock_confirm($1) AS outcome',
    [order],
  );
  return setState(client, order, outcome, 'final');
}

const requests = {
  book, cancel, undo, finalise,
};

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const request = JSON.parse(line);
  const answer = await transact(pool, (client) => requests[request.do](client, request))
    .catch((error) => `rolled back (${error.code})`);
  console.log(`${request.order} ${answer}`);
});
