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

const { consume } = require('idempotency-pg');
const { connectPool } = require('./database');
const {
  QUEUE, connect, declareQueues, deposit, giveBack, isFinal,
} = require('./rabbitmq');

const PREFETCH = 10;
const TTL = process.env.TTL ?? '7 days'; // longer than a message can stay in a queue

const pool = connectPool({ max: PREFETCH });

// Claim and work are one transaction. If another consumer processes a copy of
// the message, the claim waits until that transaction has ended, and returns
// its outcome. If the error is final, the key fails for good: other copies of
// the message are then acknowledged without being tried.
async function handle(message) {
  return consume(pool, {
    scope: QUEUE,
    id: message.properties.messageId,
    ttl: TTL,
    retries: 0, // RabbitMQ delivers it again
    failure: (error) => (isFinal(error) ? { error: error.message, code: error.code } : undefined),
  }, (client) => deposit(client, message));
}

async function take(channel, message) {
  if (!message.properties.messageId) {
    channel.nack(message, false, false);
    return 'dead (no id)';
  }
  let result;
  try {
    result = await handle(message);
  } catch (error) {
    await giveBack(channel, message);
    return `again (${error.code ?? error.message})`;
  }
  const { outcome, error, replayed } = result;
  if (outcome === 'failed' && !replayed) {
    channel.nack(message, false, false);
    return `dead (${error.code ?? error.error})`;
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
    const outcome = await take(channel, message);
    const again = message.fields.redelivered ? ' (redelivered)' : '';
    console.log(`${message.properties.messageId} ${outcome}${again}`);
  });
  console.log('consuming');
}

main();
