// rabbitmq_consumer.js
//
// A consumer with exactly one effect per message: claim the message id, do the
// work and commit, then acknowledge. If a message arrives again, because the
// producer repeated it or because its acknowledgement was lost, its id is
// known, and it is only acknowledged.
//
// Environment: as in rabbitmq.js and database.js; TTL, how long ids are kept.
// The tables are in rabbitmq.sql.

'use strict';

const { connectPool, transaction } = require('./database');
const {
  QUEUE, connect, declareQueues, deposit, giveBack, isFinal,
} = require('./rabbitmq');

const PREFETCH = 10;
const TTL = process.env.TTL ?? '7 days'; // longer than a message can stay in a queue

const pool = connectPool({ max: PREFETCH });

// If another consumer processes a copy of the message, idem_claim waits until
// that transaction has ended, and returns its outcome. (in_progress is for
// leases, which are not used here.)
async function claim(client, id) {
  const { rows } = await client.query(
    'SELECT outcome, token FROM idem_claim($1, scope => $2, ttl => $3)',
    [id, QUEUE, TTL],
  );
  return rows[0];
}

async function handle(message) {
  return transaction(pool, async (client) => {
    const { outcome } = await claim(client, message.properties.messageId);
    if (outcome === 'claimed') {
      await deposit(client, message);
    }
    return outcome;
  });
}

// The error has rolled back the claim with the work. Claim the key again, and
// let it fail for good: other copies of the message are then acknowledged
// without being tried. Returns claimed, unless another copy was faster.
async function giveUp(message, error) {
  const id = message.properties.messageId;
  return transaction(pool, async (client) => {
    const { outcome, token } = await claim(client, id);
    if (outcome === 'claimed') {
      await client.query(
        'SELECT idem_fail($1, $2, error => $3, scope => $4, retry => false)',
        [id, token, JSON.stringify({ error: error.message }), QUEUE],
      );
    }
    return outcome;
  });
}

async function consume(channel, message) {
  let outcome;
  if (!message.properties.messageId) {
    channel.nack(message, false, false);
    return 'dead (no id)';
  }
  try {
    outcome = await handle(message);
  } catch (error) {
    const reason = error.code ?? error.message;
    if (!isFinal(error)) {
      await giveBack(channel, message);
      return `again (${reason})`;
    }
    outcome = await giveUp(message, error);
    if (outcome === 'claimed') {
      channel.nack(message, false, false);
      return `dead (${reason})`;
    }
  }
  // The consumer that let it fail may have died before rejecting it.
  if (outcome === 'failed' && message.fields.redelivered) {
    channel.nack(message, false, false);
    return 'dead';
  }
  channel.ack(message);
  return outcome;
}

async function main() {
  const channel = await (await connect()).createChannel();
  await declareQueues(channel);
  await channel.prefetch(PREFETCH);
  await channel.consume(QUEUE, async (message) => {
    const outcome = await consume(channel, message);
    const again = message.fields.redelivered ? ' (redelivered)' : '';
    console.log(`${message.properties.messageId} ${outcome}${again}`);
  });
  console.log('consuming');
}

main();
