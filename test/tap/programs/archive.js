/*
 * archive.js
 *		An archive of stock in a database of its own: receives the rows that
 *		have left stock_log by webhooks, each event once.
 *
 * It uses the parts of docs/recipes, and fails in all ways in which a receiver
 * can, as often as FAULTS says: before, during and after the work, with an
 * answer that says so or without one.
 *
 * Environment: FAULTS, a share of the requests, and SEED; WEBHOOK_SECRET; that
 * of
 * docs/recipes/endpoint.js and database.js.
 */
'use strict';

const { Webhook } = require('standardwebhooks');
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

/* Numbers are parsed by the database, which does not round them. */
async function insert(client, body) {
  await client.query(
    `INSERT INTO archive
     SELECT * FROM jsonb_populate_recordset(NULL::archive, $1::jsonb #> '{data,rows}')`,
    [body],
  );
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
    await insert(client, body);
    if (fault === 'amid')
      throw new Error('the archive fails');
  });
  console.log(`outcome ${outcome}`);
  if (fault === 'unanswered')
    await new Promise(() => {});
  return fault === 'after' ? 500 : outcome === 'mismatch' ? 422 : 204;
}

listen(receive);
