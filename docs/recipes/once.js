// once.js
//
// Processes each event once, although events are sent at least once.
//
// Environment: TTL, how long ids are remembered.

'use strict';

const { transaction } = require('./database');

// As long as an event can arrive again: the schedule of the sender has attempts
// for three days, and a dead letter can be sent again for 30 more days.
const TTL = process.env.TTL ?? '40 days';

// Does the work of an event once, in the transaction that claims its id, and
// returns the outcome of idem_claim. If a copy arrives while the first one is
// being processed, it waits until that transaction has ended.
async function once(pool, { scope, id, body }, work) {
  return transaction(pool, async (client) => {
    const { rows: [{ outcome }] } = await client.query(
      'SELECT outcome FROM idem_claim($1, scope => $2, request => $3, ttl => $4)',
      [id, scope, body, TTL],
    );
    if (outcome === 'claimed') {
      await work(client);
    }
    return outcome;
  });
}

module.exports = { once };
