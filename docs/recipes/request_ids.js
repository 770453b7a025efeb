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
const { connectPool, transaction } = require('./database');

const SCOPE = 'bookings';
const LEASE = process.env.LEASE ?? '40 s';
const TTL = process.env.TTL ?? '24 h';
const RENEWALS_PER_LEASE = 3;

const pool = connectPool();

// A refusal that no repetition will change.
class FinalError extends Error {}

async function claim(id) {
  const { rows } = await pool.query(
    `SELECT outcome, token, attempt, retry_after::text,
       extract(epoch FROM $3::interval)::float * 1000 AS lease_ms
     FROM idem_claim($1, scope => $2, lease => $3, ttl => $4)`,
    [id, SCOPE, LEASE, TTL],
  );
  return rows[0];
}

// The heartbeat of an owner that is alive and needs more time. Its errors are
// ignored: the token is checked when the work is committed.
function keepRenewing(id, { token, lease_ms: leaseMs }) {
  return setInterval(() => {
    pool.query('SELECT idem_renew($1, $2, lease => $3, scope => $4)', [id, token, LEASE, SCOPE])
      .catch(() => {});
  }, leaseMs / RENEWALS_PER_LEASE);
}

// The work outside the database. The provider gets the id as idempotency key,
// since it is called again if an owner has died.
async function charge({ id, amount }) {
  const response = await fetch(process.env.PAYMENT_URL, {
    method: 'POST',
    headers: { 'Idempotency-Key': JSON.stringify(id) },
    body: JSON.stringify({ amount }),
  });
  if (response.status >= 400 && response.status < 500) {
    throw new FinalError(`payment refused: ${response.status}`);
  } else if (!response.ok) {
    throw new Error(`payment failed: ${response.status}`);
  }
}

// Either the effect and the state are committed, or none of them. If the token
// is not that of the owner, idem_complete raises ID001, and the booking is
// rolled back.
async function book({ id, amount }, { token, attempt }) {
  await transaction(pool, async (client) => {
    await client.query('INSERT INTO bookings VALUES ($1, $2, $3)', [id, amount, attempt]);
    await client.query('SELECT idem_complete($1, $2, scope => $3)', [id, token, SCOPE]);
  });
}

// FAILED: the key is free for another try at once, or fails for good. If this
// call fails too, the lease runs out.
async function fail(id, { token }, error) {
  await pool.query(
    'SELECT idem_fail($1, $2, error => $3, scope => $4, retry => $5)',
    [id, token, JSON.stringify({ error: error.message }), SCOPE, !(error instanceof FinalError)],
  ).catch(() => {});
}

// If the key is not claimed, no work is done. As with Redis, COMPLETED is
// acknowledged, and IN_PROGRESS is not.
async function handle(message) {
  const claimed = await claim(message.id);
  if (claimed.outcome === 'completed' || claimed.outcome === 'failed') {
    return `ack ${claimed.outcome}`;
  } else if (claimed.outcome === 'in_progress') {
    return `nack in_progress ${claimed.retry_after}`;
  }
  const heartbeat = keepRenewing(message.id, claimed);
  try {
    await charge(message);
    await book(message, claimed);
    return `ack done ${claimed.attempt}`;
  } catch (error) {
    if (error.code === 'ID001') {
      return 'nack taken_over';
    }
    await fail(message.id, claimed, error);
    return error instanceof FinalError ? 'ack failed' : 'nack failed';
  } finally {
    clearInterval(heartbeat);
  }
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const message = JSON.parse(line);
  const verdict = await handle(message).catch((error) => `nack ${error.message}`);
  console.log(`${message.id} ${verdict}`);
});
