// worker.js
//
// worker.js DRIVER KEY HOW: does the work of a key, and prints a line where a
// test kills it: "working" before the commit, "committed" after it.

'use strict';

const { setTimeout } = require('timers/promises');
const { lease, transaction } = require('idempotency-pg');
const { DRIVERS } = require('../lib');

const HOUR_MS = 3600 * 1000;

const [driver, key, how] = process.argv.slice(2);
const { pool, query } = DRIVERS[driver]();

async function effect(client) {
  await query(client, 'INSERT INTO effects VALUES ($1)', [key]);
}

async function pauseAt(line) {
  console.log(line);
  await setTimeout(HOUR_MS);
}

const ways = {
  'transaction, in work': () => transaction(pool, key, async (client) => {
    await effect(client);
    await pauseAt('working');
  }),
  'transaction, committed': async () => {
    await transaction(pool, key, async (client) => {
      await effect(client);
      return { done: 1 };
    });
    await pauseAt('committed');
  },
  'lease, in work': () => lease(pool, key, () => pauseAt('working'), { lease: 2 }),
  'lease, in commit': () => lease(pool, key, ({ commit }) => commit(async (client) => {
    await effect(client);
    await pauseAt('working');
  }), { lease: 2 }),
  'lease, committed': () => lease(pool, key, async ({ commit }) => {
    await commit(async (client) => {
      await effect(client);
      return { done: 1 };
    });
    await pauseAt('committed');
  }, { lease: 2 }),
};

ways[how]();
