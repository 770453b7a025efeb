// once.js
//
// The receiver's half of "at least once": what comes again has no effect again.
//
// Environment: TTL, how long ids are remembered.

'use strict';

const { transaction } = require('./database');

// As long as an event can come again: the attempts of the sender's schedule go
// on for some three days, and a dead letter can be sent again for 30 more.
const TTL = process.env.TTL ?? '40 days';

// Does the work of an event once, in the transaction that claims its id, and
// returns what idem_claim has said. A copy that comes while the first one is
// being worked on waits until that transaction has ended.
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
