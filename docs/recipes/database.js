// database.js
//
// What all recipes do with the database. Where it is, the environment says, as
// for psql: PGHOST, PGPORT, PGUSER, PGDATABASE.

'use strict';

const { Pool } = require('pg');

// A connection that breaks fails the next query on it, and that is where it is
// dealt with; the event that node-postgres emits as well would end the process.
function connectPool(options) {
  const pool = new Pool({ allowExitOnIdle: true, ...options });
  pool.on('connect', (client) => client.on('error', () => {}));
  pool.on('error', () => {});
  return pool;
}

// Runs work in a transaction, and returns what it returns once that has been
// committed. After any error nothing is changed, or, if the connection broke
// during COMMIT, it is not known: claim the key again to learn it.
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

module.exports = { connectPool, transaction };
