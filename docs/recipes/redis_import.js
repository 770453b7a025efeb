// redis_import.js
//
// Imports the counters and reservations of redis_stock.lua once, while no
// program writes to Redis. It can be run again: a claim makes sure that each
// item is imported once, and its name that each reservation is.
//
// The received quantity of an item is the sum of its available and its reserved
// quantity. A reservation that has lapsed is not imported, so its quantity is
// available.
//
// Environment: REDIS_URL, and that of database.js, with a user who may call
// stock_receive.

'use strict';

const fs = require('fs');
const path = require('path');
const { createClient } = require('@redis/client');
const { transact } = require('idempotency-pg');
const { connectPool } = require('./database');

const SCOPE = 'redis import';
const TTL = '1 year'; // the import is not run again after that
const NOTE = 'carried over from Redis';

const pool = connectPool();

async function readRedis() {
  const redis = createClient({ url: process.env.REDIS_URL });
  await redis.connect();
  const script = fs.readFileSync(path.join(__dirname, 'redis_export.lua'), 'utf8');
  const { stock, reservations } = JSON.parse(await redis.eval(script));
  redis.destroy();
  return { stock: Object.entries(stock), reservations: Object.entries(reservations) };
}

// ['hat', '2', 'cap', '1'] as {hat: 2, cap: 1}
function linesOf({ lines }) {
  const pairs = {};
  for (let i = 0; i < lines.length; i += 2) {
    pairs[lines[i]] = Number(lines[i + 1]);
  }
  return pairs;
}

function heldOf(sku, reservations) {
  return reservations.reduce((sum, [, held]) => sum + (linesOf(held)[sku] ?? 0), 0);
}

async function carryItem(sku, total) {
  return transact(pool, async (client) => {
    const { rows: [{ outcome }] } = await client.query(
      'SELECT outcome FROM idem_claim($1, scope => $2, ttl => $3)',
      [sku, SCOPE, TTL],
    );
    if (outcome !== 'claimed') {
      return 'is there';
    }
    await client.query('SELECT stock_receive($1, $2, $3)', [sku, Math.max(total, 1), NOTE]);
    if (total === 0) { // it exists, and is sold out
      await client.query('SELECT stock_adjust($1, -1, $2)', [sku, NOTE]);
    }
    return total;
  });
}

async function carryReservation(order, held) {
  const { rows: [{ outcome }] } = await pool.query(
    `SELECT outcome FROM stock_reserve_many($1, $2, actor => 'redis',
       ttl => greatest(to_timestamp($3) - clock_timestamp(), '1 us'))`,
    [linesOf(held), order, held.expires],
  );
  return outcome;
}

async function main() {
  const { stock, reservations } = await readRedis();
  const live = reservations.filter(([, { expires }]) => Number(expires) * 1000 > Date.now());
  const wrong = stock.filter(([, left]) => !(Number(left) >= 0)).map(([sku]) => sku);
  if (wrong.length > 0) {
    throw new Error(`below zero, count first: ${wrong.join(', ')}`);
  }
  for (const [sku, left] of stock) {
    console.log(`${sku} ${await carryItem(sku, Number(left) + heldOf(sku, reservations))}`);
  }
  for (const [order, held] of live) {
    console.log(`${order} ${await carryReservation(order, held)}`);
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
