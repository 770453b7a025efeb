// archive.js
//
// An archive of stock in a database of its own: a webhook receiver that keeps
// the rows that have left the log, each once. The rows of an event are inserted
// in the transaction that claims the id of the event.
//
// Environment: WEBHOOK_SECRET as returned by outbox_subscribe, and that of
// endpoint.js, once.js and database.js. The table is in archive.sql.

'use strict';

const { Webhook } = require('standardwebhooks');
const { connectPool } = require('./database');
const { listen } = require('./endpoint');
const { once } = require('./once');

const SCOPE = 'archive of stock';

// The database reads the numbers: JavaScript would round large ones.
async function keep(client, body) {
  await client.query(
    `INSERT INTO archive
     SELECT * FROM jsonb_populate_recordset(NULL::archive, $1::jsonb #> '{data,rows}')`,
    [body],
  );
}

async function receive(pool, webhook, headers, body) {
  try {
    webhook.verify(body, headers);
  } catch (error) {
    console.error(`refused: ${error.message}`);
    return 401;
  }
  const id = headers['webhook-id'];
  const outcome = await once(pool, { scope: SCOPE, id, body }, (client) => keep(client, body));
  console.log(`${id} ${outcome}`);
  return outcome === 'mismatch' ? 422 : 204;
}

if (require.main === module) {
  const pool = connectPool();
  const webhook = new Webhook(process.env.WEBHOOK_SECRET);
  listen((headers, body) => receive(pool, webhook, headers, body));
}

module.exports = { keep };
