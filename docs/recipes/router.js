// router.js
//
// A router before shards, each a database of its own, that repeats a write
// which is not idempotent until it knows the answer: under one id, so that the
// shard applies it once.
//
// Each line of the input is a call, {"id", "account", "amount"}, and each line
// of the output its answer. Environment: SHARDS, a JSON array of connections as
// node-postgres takes them. The function that is called is in shard.sql.

'use strict';

const { createHash } = require('crypto');
const readline = require('readline');
const { setTimeout } = require('timers/promises');
const { DatabaseError } = require('pg');
const { connectPool } = require('./database');

const TRY_TIMEOUT_MS = Number(process.env.TRY_TIMEOUT_MS ?? 1000);
const CALL_TIMEOUT_MS = Number(process.env.CALL_TIMEOUT_MS ?? 30 * 1000);
const PAUSE_MS = 50;

const shards = JSON.parse(process.env.SHARDS).map((shard) => connectPool({
  ...shard,
  query_timeout: TRY_TIMEOUT_MS,
  connectionTimeoutMillis: TRY_TIMEOUT_MS,
}));

// The data decide on the shard, and the id goes where the data are: claim and
// change are one transaction there.
function shardOf(account) {
  const hash = createHash('sha256').update(account).digest();
  return shards[hash.readUInt32BE() % shards.length];
}

// Whether the call has failed for a reason that is not its own: no answer, a
// server that is going or coming (class 08, 53, 57), a deadlock (class 40), or a
// replica that answers while the primary moves (25006; what only reads could go
// to another replica, but a claim asks the primary).
function isWorthRepeating(error) {
  return !(error instanceof DatabaseError) || /^(08|40|53|57|25006)/.test(error.code);
}

// One try. A connection that has not answered in time is closed, and what was
// sent over it may still be going on: then the next try waits for its end in
// idem_claim, and gets its answer. One that is not to be used for the next try
// is closed too: that try may have to go to another server.
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
    await setTimeout(PAUSE_MS);
  }
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const request = JSON.parse(line);
  console.log(`${request.id} ${JSON.stringify(await call(request))}`);
});
