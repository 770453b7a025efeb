// database.js
//
// A common interface to both drivers: queries, and transactions on a connection
// of a pool. The statements name the types of what they return, so that both
// drivers, however their parsers are set, give the same values.

'use strict';

const { setTimeout: pause } = require('timers/promises');
const { guard, never } = require('./guard');

const REPEAT_PAUSE_MS = 50;
const REPEAT_PAUSE_MAX_MS = 2000;
const CLOSE_MS = 500;
const ROLLBACK_MAX_MS = 5000;

// The sql function of postgres.js, or of one of its transactions.
function isPostgresJs(db) {
  return typeof db === 'function' && typeof db.unsafe === 'function';
}

// The result of a promise, or an error if it takes longer.
async function within(ms, promise) {
  let timer;
  const late = new Promise((resolve, reject) => {
    const error = Object.assign(new Error(`there was no answer within ${ms} ms`), { code: 'ETIMEDOUT' });
    timer = setTimeout(reject, ms, error);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
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
// error with workIsOver tells that it does not. If a query of work hangs, ROLLBACK
// would wait for it: closing the connection ends the transaction, too.
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
    await within(ROLLBACK_MAX_MS, client.query('ROLLBACK')).then(() => {
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
// and let it send nothing: the connection may already have another transaction.
// If a query of work hangs, ROLLBACK waits for it, but the caller does not.
async function transactPostgresJs(sql, work) {
  let isWorkOver = false;
  let isOver = false;
  let giveUp;
  let timer;
  const late = new Promise((resolve, reject) => {
    giveUp = reject;
  });
  const transaction = sql.begin(async (client) => {
    try {
      return await work(guard(client, () => isWorkOver));
    } catch (error) {
      isWorkOver = true;
      timer = setTimeout(giveUp, ROLLBACK_MAX_MS, error);
      if (isRetryable(error) && !/^40/.test(error.code)) {
        await pause(CLOSE_MS);
      }
      throw error;
    } finally {
      isWorkOver = true;
      if (isOver) {
        clearTimeout(timer);
        await never();
      }
    }
  });
  try {
    return await Promise.race([transaction, late]);
  } finally {
    isWorkOver = true;
    isOver = true;
    clearTimeout(timer);
  }
}

// Calls work with a connection of the pool, and waits at most this long. Then a
// connection of node-postgres is closed. One of postgres.js cannot be closed by
// itself, and a failing cancel() would end the process: it stays in use until
// the query has ended.
async function callWithin(ms, pool, work) {
  if (isPostgresJs(pool)) {
    return within(ms, work(pool));
  }
  let client;
  let isLate = false;
  let isAnswered = false;
  async function call() {
    client = await pool.connect();
    if (isLate) {
      client.release();
      return undefined;
    }
    client.on('error', ignoreEvent);
    const result = await work(client);
    isAnswered = true;
    return result;
  }
  try {
    return await within(ms, call());
  } catch (error) {
    isAnswered = error?.severity === 'ERROR';
    throw error;
  } finally {
    isLate = true;
    if (isAnswered) {
      client?.off('error', ignoreEvent);
    }
    client?.release(!isAnswered);
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
const NO_CONNECTION = new RegExp('^(ECONN(REFUSED|RESET)|EPIPE|ETIMEDOUT|EAI_AGAIN|E(HOST|NET)UNREACH|ENETDOWN'
  + '|CONNECT(ION_CLOSED|ION_DESTROYED|_TIMEOUT))$');
const NO_CONNECTION_PG = /^(Connection terminated|Client has encountered a connection error|timeout (expired|exceeded when trying to connect)$)/;

// Whether the same transaction can succeed if it is repeated: there was no
// answer, the server stops or starts (class 08, 53, 57P), there was a deadlock
// or a serialization failure (class 40), or a replica has answered during a
// failover (25006).
function isRetryable(error) {
  return /^(08...|40...|53...|57P..|25006)$/.test(error?.code)
    || NO_CONNECTION.test(error?.code)
    || error?.syscall === 'connect'
    || (error?.code === 'ENOTFOUND' && error.syscall === 'getaddrinfo')
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
      await pause(most * (0.5 + Math.random() / 2));
    }
  }
}

module.exports = {
  callWithin, fromJson, isRetryable, query, repeat, toInterval, toJson, transact,
};
