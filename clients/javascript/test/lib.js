// lib.js
//
// What the tests share: the two drivers, an administrator, and conditions to
// wait for. The environment says where the server is, as for psql; ADMIN is the
// name of its superuser.

'use strict';

const { setTimeout } = require('timers/promises');
const { Client, Pool } = require('pg');
const postgres = require('postgres');

const WAIT_MS = 120 * 1000;
const PAUSE_MS = 20;

// A pool of each driver, with a common way to send a query and to end it.
const DRIVERS = {
  pg(options) {
    const pool = new Pool({ max: 25, ...options });
    pool.on('error', () => {});
    return {
      pool,
      query: async (db, text, values) => (await db.query(text, values)).rows,
      end: () => pool.end(),
    };
  },
  postgres(options) {
    const pool = postgres({ max: 25, onnotice() {}, ...options });
    return {
      pool,
      query: (db, text, values) => db.unsafe(text, values),
      end: () => pool.end({ timeout: 5 }), // seconds, for connections that were lost
    };
  },
};

// A query of the superuser, in a connection of its own; returns the rows as
// arrays.
async function admin(text, values) {
  const client = new Client({ user: process.env.ADMIN });
  await client.connect();
  try {
    return (await client.query({ text, values, rowMode: 'array' })).rows;
  } finally {
    await client.end();
  }
}

// How often the work of a key has had its effect.
async function effects(id) {
  const [[count]] = await admin('SELECT count(*)::integer FROM effects WHERE id = $1', [id]);
  return count;
}

async function waitUntil(condition) {
  const until = performance.now() + WAIT_MS;
  while (!await condition()) {
    if (performance.now() > until) {
      throw new Error(`waited in vain for ${condition}`);
    }
    await setTimeout(PAUSE_MS);
  }
}

// A promise with the function that resolves it.
function gate() {
  let open;
  const opened = new Promise((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

module.exports = {
  DRIVERS, admin, effects, gate, waitUntil,
};
