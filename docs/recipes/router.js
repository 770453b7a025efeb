// router.js
//
// A router for shards, each of which is a separate database. It repeats a write
// that is not idempotent until it has the answer, always with the same id, so
// that the shard applies the write once.
//
// Each line of the input is a call, {"id", "account", "amount"}, and each line
// of the output its answer. Environment: SHARDS, a JSON array of connections as
// node-postgres takes them. The function that is called is in shard.sql.

'use strict';

const { createHash } = require('crypto');
const readline = require('readline');
const { setTimeout } = require('timers/promises');
const { isRetryable } = require('idempotency-pg');
const { connectPool } = require('./database');

const TRY_TIMEOUT_MS = Number(process.env.TRY_TIMEOUT_MS ?? 1000);
// With the time in which all connections of the pool may be in use.
const CONNECT_TIMEOUT_MS = Number(process.env.CONNECT_TIMEOUT_MS ?? 5 * TRY_TIMEOUT_MS);
const CALL_TIMEOUT_MS = Number(process.env.CALL_TIMEOUT_MS ?? 30 * 1000);
const PAUSE_MS = 50;
const PAUSE_MAX_MS = 2000;

const shards = JSON.parse(process.env.SHARDS).map((shard) => connectPool({
  ...shard,
  query_timeout: TRY_TIMEOUT_MS,
  connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
}));

// The data determine the shard, and the id is claimed there too: claim and
// change are one transaction.
function shardOf(account) {
  const hash = createHash('sha256').update(account).digest();
  return shards[hash.readUInt32BE() % shards.length];
}

// Another try can succeed, too, if there was no answer in time.
function isWorthRepeating(error) {
  return isRetryable(error) || error.message === 'Query read timeout';
}

// One try. A connection that has not answered in time is closed, although its
// call may still run: then the next try waits in idem_claim for the end of that
// call, and gets its answer. After other errors the connection is closed too,
// since the next try may have to use another server.
async function callOnce({ id, account, amount }) {
  const client = await shardOf(account).connect();
  let broken;
  try {
    const { rows } = await client.query(
      'SELECT deposit($1, $2, $3) AS answer',
      [id, account, amount],
    );
    return rows[0].answer;
  } catch (error) {
    broken = isWorthRepeating(error);
    throw error;
  } finally {
    client.release(broken);
  }
}

async function call(request) {
  const deadline = Date.now() + CALL_TIMEOUT_MS;
  for (let tries = 1; ; tries += 1) {
    try {
      return { ...await callOnce(request), tries };
    } catch (error) {
      if (!isWorthRepeating(error) || Date.now() >= deadline) {
        return { error: error.message, code: error.code, tries };
      }
    }
    // Calls that have failed together must not be repeated together.
    await setTimeout(Math.random() * Math.min(PAUSE_MAX_MS, PAUSE_MS * 2 ** tries));
  }
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const request = JSON.parse(line);
  console.log(`${request.id} ${JSON.stringify(await call(request))}`);
});
