// database.js
//
// A common interface to both drivers: queries, and transactions on a connection
// of a pool. The statements name the types of what they return, so that both
// drivers, however their parsers are set, give the same values.

'use strict';

const { setTimeout } = require('timers/promises');

const REPEAT_PAUSE_MS = 50;
const REPEAT_PAUSE_MAX_MS = 2000;
const CLOSE_MS = 500;

// The sql function of postgres.js, or of one of its transactions.
function isPostgresJs(db) {
  return typeof db === 'function' && typeof db.unsafe === 'function';
}

async function query(db, text, values) {
  if (isPostgresJs(db)) {
    return db.unsafe(text, values);
  }
  const { rows } = await db.query(text, values);
  return rows;
}

// A duration is an interval of PostgreSQL, or a number of seconds.
function toInterval(duration) {
  return typeof duration === 'number' ? `${duration} s` : duration ?? null;
}

// A statement passes JSON as $n::text::jsonb, since postgres.js encodes what is
// given as jsonb once more, and node-postgres makes an array of it.
function toJson(value) {
  return value === undefined ? null : JSON.stringify(value) ?? null;
}

function fromJson(text) {
  return text === null ? null : JSON.parse(text);
}

// If a connection breaks, the next query on it fails. Without this handler, the
// error event of node-postgres would also end the process.
function ignoreEvent() {}

// The server answers COMMIT with ROLLBACK if a statement has failed before, and
// work did not pass the error on. After an error the connection is closed, since
// work may still send queries, which must not reach the next transaction. Only an
// error with workIsOver tells that it does not.
async function transactPg(pool, work) {
  const client = await pool.connect();
  let isReusable = false;
  client.on('error', ignoreEvent);
  try {
    await client.query('BEGIN');
    const result = await work(client);
    const { command } = await client.query('COMMIT');
    if (command !== 'COMMIT') {
      throw new Error('the transaction was rolled back');
    }
    isReusable = true;
    return result;
  } catch (error) {
    await client.query('ROLLBACK').then(() => {
      isReusable = error?.workIsOver === true;
    }, () => {});
    throw error;
  } finally {
    if (isReusable) {
      client.off('error', ignoreEvent);
    }
    client.release(!isReusable);
  }
}

// After an error, begin() sends ROLLBACK. If the connection has just broken,
// postgres.js 3.4.9 ends the process then. So give begin() time to notice that,
// and let it send nothing.
async function transactPostgresJs(sql, work) {
  let isOver = false;
  try {
    return await sql.begin(async (client) => {
      try {
        return await work(client);
      } catch (error) {
        if (isRetryable(error) && !/^40/.test(error.code)) {
          await setTimeout(CLOSE_MS);
        }
        if (isOver) {
          await new Promise(() => {});
        }
        throw error;
      }
    });
  } finally {
    isOver = true;
  }
}

// Runs work in a transaction, and returns its result after the commit. After an
// error nothing is changed, unless the connection broke during COMMIT: then the
// outcome is unknown. (postgres.js itself throws the error of a statement that
// work did not pass on.)
async function transact(pool, work) {
  return isPostgresJs(pool) ? transactPostgresJs(pool, work) : transactPg(pool, work);
}

// The codes of Node and of postgres.js, and the messages of node-postgres.
const NO_CONNECTION = /^(ECONN(REFUSED|RESET)|EPIPE|ETIMEDOUT|CONNECT(ION_CLOSED|ION_DESTROYED|_TIMEOUT))$/;
const NO_CONNECTION_PG = /^(Connection terminated|Client has encountered a connection error|timeout (expired|exceeded when trying to connect)$)/;

// Whether the same transaction can succeed if it is repeated: there was no
// answer, the server stops or starts (class 08, 53, 57P), there was a deadlock
// or a serialization failure (class 40), or a replica has answered during a
// failover (25006).
function isRetryable(error) {
  return /^(08...|40...|53...|57P..|25006)$/.test(error?.code)
    || NO_CONNECTION.test(error?.code)
    || error?.syscall === 'connect'
    || NO_CONNECTION_PG.test(error?.message);
}

// Calls attempt(n) with n = 0, 1, ... until it succeeds, at most 1 + retries
// times, with growing pauses.
async function repeat(retries, attempt) {
  for (let n = 0; ; n += 1) {
    try {
      return await attempt(n);
    } catch (error) {
      if (n >= retries || !isRetryable(error)) {
        throw error;
      }
      const most = Math.min(REPEAT_PAUSE_MS * 2 ** n, REPEAT_PAUSE_MAX_MS);
      await setTimeout(most * (0.5 + Math.random() / 2));
    }
  }
}

module.exports = {
  fromJson, isRetryable, query, repeat, toInterval, toJson, transact,
};
