// index.js
//
// Idempotency keys of the PostgreSQL extension idempotency, for node-postgres
// and postgres.js. The types, with a description of each function, are in
// index.d.ts.

'use strict';

const {
  claim, complete, consume, fail, renew, transaction,
} = require('./claims');
const { isRetryable, transact } = require('./database');
const { lease } = require('./lease');
const { webhookReceiver } = require('./webhooks');

module.exports = {
  claim, complete, consume, fail, isRetryable, lease, renew, transact, transaction, webhookReceiver,
};
