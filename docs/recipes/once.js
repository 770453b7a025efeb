// once.js
//
// Processes each event once, although events are sent at least once.
//
// Environment: TTL, how long ids are remembered.

'use strict';

const { consume } = require('idempotency-pg');

// As long as an event can arrive again: the schedule of the sender has attempts
// for three days, and a dead letter can be sent again for 30 more days.
const TTL = process.env.TTL ?? '40 days';

// Does the work of an event once, in the transaction that claims its id, and
// returns the outcome of idem_claim. If a copy arrives while the first one is
// being processed, it waits until that transaction has ended.
async function once(pool, { scope, id, body }, work) {
  const { outcome } = await consume(pool, { scope, id, request: body, ttl: TTL }, work);
  return outcome;
}

module.exports = { once };
