/*
 * archive.js
 *		The archive of docs/recipes/archive.js, which fails in all ways in which
 *		a receiver can, as often as FAULTS says: before, during and after the
 *		work, with an answer that says so or without one.
 *
 * Environment: FAULTS, a share of the requests, and SEED; that of archive.js.
 */
'use strict';

const { Webhook } = require('standardwebhooks');
const { keep } = require('../../../docs/recipes/archive');
const { connectPool } = require('../../../docs/recipes/database');
const { listen } = require('../../../docs/recipes/endpoint');
const { once } = require('../../../docs/recipes/once');

const WAYS = ['before', 'amid', 'after', 'unanswered'];

const pool = connectPool();
const webhook = new Webhook(process.env.WEBHOOK_SECRET);
let state = Number(process.env.SEED);

/* The generator of Park and Miller. */
function random() {
  state = (state * 48271) % 2147483647;
  return state / 2147483647;
}

async function receive(headers, body) {
  const id = headers['webhook-id'];
  const fault = random() < Number(process.env.FAULTS) ? WAYS[Math.floor(random() * WAYS.length)] : null;

  webhook.verify(body, headers);
  if (fault)
    console.log(`fault ${fault}`);
  if (fault === 'before')
    return 503;
  const outcome = await once(pool, { scope: 'archive', id, body }, async (client) => {
    await keep(client, body);
    if (fault === 'amid')
      throw new Error('the archive fails');
  });
  console.log(`outcome ${outcome}`);
  if (fault === 'unanswered')
    await new Promise(() => {});
  return fault === 'after' ? 500 : outcome === 'mismatch' ? 422 : 204;
}

listen(receive);
