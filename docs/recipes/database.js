// database.js
//
// The pool of all recipes. The environment says where the database is, as for
// psql: PGHOST, PGPORT, PGUSER, PGDATABASE.

'use strict';

const { Pool } = require('pg');

// If a connection breaks, the next query on it fails, and its caller handles
// the error. Without this handler, the error event of node-postgres would also
// end the process.
function connectPool(options) {
  const pool = new Pool({ allowExitOnIdle: true, ...options });
  pool.on('connect', (client) => client.on('error', () => {}));
  pool.on('error', () => {});
  return pool;
}

module.exports = { connectPool };
