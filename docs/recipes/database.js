// database.js
//
// Database access for all recipes. The environment says where the database is,
// as for psql: PGHOST, PGPORT, PGUSER, PGDATABASE.

'use strict';

const { DatabaseError, Pool } = require('pg');

// If a connection breaks, the next query on it fails, and its caller handles
// the error. Without this handler, the error event of node-postgres would also
// end the process.
function connectPool(options) {
  const pool = new Pool({ allowExitOnIdle: true, ...options });
  pool.on('connect', (client) => client.on('error', () => {}));
  pool.on('error', () => {});
  return pool;
}

// Runs work in a transaction, and returns its result after the commit. After an
// error nothing is changed. If the connection broke during COMMIT, the outcome
// is unknown: claim the key again to get it.
async function transaction(pool, work) {
  const client = await pool.connect();
  let broken;
  try {
    await client.query('BEGIN');
    const result = await work(client);
    const { command } = await client.query('COMMIT');
    if (command !== 'COMMIT') {
      throw new Error('the transaction was rolled back');
    }
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch((reason) => {
      broken = reason;
    });
    throw error;
  } finally {
    client.release(broken);
  }
}

// Whether another try can succeed: there was no answer, the server stops or
// starts (class 08, 53, 57), there was a deadlock (class 40), or a replica has
// answered during a failover (25006; a claim needs the primary).
function isWorthRepeating(error) {
  return !(error instanceof DatabaseError) || /^(08|40|53|57|25006)/.test(error.code);
}

module.exports = { connectPool, isWorthRepeating, transaction };
