// rabbitmq_consumer.js
//
// A consumer with exactly one effect per message: claim the message id, do the
// work and commit, then acknowledge. A message that comes again, because the
// producer repeated it or because its acknowledgement was lost, finds its id
// and is acknowledged.
//
// Environment: as in rabbitmq.js and database.js; TTL, how long ids are kept.
// The tables are in rabbitmq.sql.

'use strict';

const { connectPool, transaction } = require('./database');
const {
  QUEUE, connect, declareQueues, deposit, giveBack, isFinal,
} = require('./rabbitmq');

const PREFETCH = 10;
const TTL = process.env.TTL ?? '7 days'; // longer than a message can lie in a queue

const pool = connectPool({ max: PREFETCH });

// A duplicate of what another consumer is about waits in idem_claim until that
// transaction has ended, and is then told what came of it. (in_progress is for
// leases, and nobody takes any here.)
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

// The error has undone the claim with the work. Now it is made for good: other
// copies of the message are acknowledged without being tried. What it returns
// is claimed, unless another copy was faster.
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
  // Who gave it up may have died before rejecting it.
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
