// guard.js
//
// The sql function of a transaction of postgres.js as work gets it: it rejects
// once the transaction is over. postgres.js itself sends on, over the same
// connection: each query then commits by itself, or is part of the next
// transaction, which belongs to somebody else.

'use strict';

const { readFile } = require('fs');

function overError() {
  return new Error('the transaction is over: its client cannot be used any more');
}

// For what must not return to postgres.js, which would send something next.
function never() {
  return new Promise(() => {});
}

// isOver() tells whether the transaction is over.
function guard(sql, isOver) {
  // A query is sent when it is awaited, which may be long after it was made.
  // Identifiers and lists of values are not sent, and have no handler.
  function watch(query) {
    if (!(query instanceof Promise)) {
      return query;
    }
    const { handler } = query;
    if (typeof handler !== 'function') {
      throw new Error('this version of postgres.js is not supported');
    }
    query.handler = (sent) => (isOver() ? sent.reject(overError()) : handler(sent));
    return query;
  }

  function unsafe(...query) {
    return watch(sql.unsafe(...query));
  }

  // The transaction may end while the file is read.
  function file(path, ...more) {
    const args = Array.isArray(more[0]) ? more[0] : [];
    const options = more.find((argument) => argument && !Array.isArray(argument));
    const query = unsafe('', args, { prepare: true, ...options });
    const { handler } = query;
    query.handler = (sent) => readFile(path, 'utf8', (error, text) => {
      if (error) {
        sent.reject(error);
      } else {
        sent.strings = [text];
        handler(sent);
      }
    });
    return query;
  }

  // After an error of work, postgres.js sends ROLLBACK TO SAVEPOINT.
  function savepoint(...args) {
    if (Array.isArray(args[0]?.raw)) {
      return savepoint((inner) => inner(...args));
    }
    const work = args.pop();
    return new Promise((resolve, reject) => {
      async function whileOpen(step) {
        try {
          return await step();
        } finally {
          if (isOver()) {
            reject(overError());
            await never();
          }
        }
      }
      if (isOver()) {
        reject(overError());
        return;
      }
      sql.savepoint(...args, (inner) => whileOpen(() => {
        if (isOver()) {
          throw overError();
        }
        const result = work(guard(inner, isOver));
        return Array.isArray(result) ? Promise.all(result) : result;
      })).then(resolve, reject);
    });
  }

  async function notify(...args) {
    if (isOver()) {
      throw overError();
    }
    return sql.notify(...args);
  }

  return Object.assign((...args) => watch(sql(...args)), sql, {
    unsafe, file, savepoint, notify,
  });
}

module.exports = { guard, never };
