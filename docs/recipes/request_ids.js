// request_ids.js
//
// A consumer that processes each request id once, as with request ids in Redis
// (IN_PROGRESS with a ttl of 40 s, COMPLETED with a ttl of hours, FAILED may be
// processed again). Here the effect and the state are in one transaction, and a
// token prevents an owner that is too late from writing.
//
// The transport of the messages does not matter. Here each line of the input is
// a message, {"id", "amount"}, and each line of the output is the answer to the
// transport: ack, or nack for a message that must be delivered again.
//
// Environment: PAYMENT_URL to charge at, LEASE and TTL (intervals), and PG* as
// in database.js. The table is in request_ids.sql.

'use strict';

const readline = require('readline');
const { lease } = require('idempotency-pg');
const { connectPool } = require('./database');

const SCOPE = 'bookings';
const LEASE = process.env.LEASE ?? '40 s';
const TTL = process.env.TTL ?? '24 h';

const pool = connectPool();

// A refusal that no repetition will change.
class FinalError extends Error {}

// The work outside the database. The provider gets the id as idempotency key,
// since it is called again if an owner has died. The signal ends the call when
// the key may have another owner.
async function charge({ id, amount }, signal) {
  const response = await fetch(process.env.PAYMENT_URL, {
    method: 'POST',
    headers: { 'Idempotency-Key': JSON.stringify(id) },
    body: JSON.stringify({ amount }),
    signal,
  });
  if (response.status >= 400 && response.status < 500) {
    throw new FinalError(`payment refused: ${response.status}`);
  } else if (!response.ok) {
    throw new Error(`payment failed: ${response.status}`);
  }
}

async function book(client, { id, amount }, attempt) {
  await client.query('INSERT INTO bookings VALUES ($1, $2, $3)', [id, amount, attempt]);
}

// FAILED: the key is free for another try at once, or fails for good.
function failure(error) {
  return error instanceof FinalError ? { error: error.message } : undefined;
}

// The heartbeat of an owner that is alive and needs more time is in lease().
// Either the effect and the state are committed, or none of them. If the token
// is not that of the owner, commit() throws ID001, and the booking is rolled back.
async function take(message) {
  return lease(pool, message.id, async ({ attempt, signal, commit }) => {
    await charge(message, signal);
    await commit((client) => book(client, message, attempt));
  }, {
    scope: SCOPE, lease: LEASE, ttl: TTL, failure,
  });
}

// If the key is not claimed, no work is done. As with Redis, COMPLETED is
// acknowledged, and IN_PROGRESS is not.
async function handle(message) {
  try {
    const { outcome, attempt, retryAfter } = await take(message);
    switch (outcome) {
      case 'claimed':
        return `ack done ${attempt}`;
      case 'in_progress':
        return `nack in_progress ${retryAfter} s`;
      default:
        return `ack ${outcome}`;
    }
  } catch (error) {
    return error.code === 'ID001' ? 'nack taken_over' : 'nack failed';
  }
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const message = JSON.parse(line);
  console.log(`${message.id} ${await handle(message)}`);
});
