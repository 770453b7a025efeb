// rabbitmq_batch.js
//
// Like rabbitmq_consumer.js, for many small messages: all messages that have
// arrived meanwhile are claimed by one call, committed in one transaction, and
// then acknowledged together. If a batch fails, its messages are processed one
// by one, so that a bad message does not block the others.
//
// Environment: as in rabbitmq_consumer.js; PREFETCH, the size of a batch.

'use strict';

const { setImmediate } = require('timers/promises');
const { transact } = require('idempotency-pg');
const { connectPool } = require('./database');
const {
  QUEUE, connect, declareQueues, deposit, giveBack, isFinal,
} = require('./rabbitmq');

const PREFETCH = Number(process.env.PREFETCH ?? 100);
const TTL = process.env.TTL ?? '7 days';

const pool = connectPool({ max: 1 });

// Returns one row for each message, in their order. The ids are claimed in
// sorted order, so that two consumers cannot deadlock. If a batch has two
// copies of a message, the outcome of the second is completed.
async function handle(messages) {
  return transact(pool, async (client) => {
    const { rows } = await client.query(
      'SELECT outcome FROM idem_claim_many($1, scope => $2, ttl => $3)',
      [messages.map((message) => message.properties.messageId), QUEUE, TTL],
    );
    for (const [i, { outcome }] of rows.entries()) {
      if (outcome === 'claimed') {
        await deposit(client, messages[i]);
      }
    }
    return rows.filter(({ outcome }) => outcome === 'claimed').length;
  });
}

async function handleOneByOne(channel, messages) {
  for (const message of messages) {
    try {
      await handle([message]);
      channel.ack(message);
    } catch (error) {
      console.log(`${message.properties.messageId} ${error.message}`);
      if (isFinal(error)) {
        channel.nack(message, false, false);
      } else {
        await giveBack(channel, message);
      }
    }
  }
}

async function consumeBatch(channel, messages) {
  try {
    const claimed = await handle(messages);
    channel.ack(messages.at(-1), true); // and all earlier messages
    console.log(`batch of ${messages.length}: ${claimed} claimed`);
  } catch (error) {
    await handleOneByOne(channel, messages);
  }
}

async function main() {
  const channel = await (await connect()).createChannel();
  const waiting = [];
  let busy = false;

  await declareQueues(channel);
  await channel.prefetch(PREFETCH);
  await channel.consume(QUEUE, async (message) => {
    waiting.push(message);
    if (busy) {
      return;
    }
    busy = true;
    do {
      await setImmediate(); // lets messages arrive that were sent together
      await consumeBatch(channel, waiting.splice(0));
    } while (waiting.length > 0);
    busy = false;
  });
  console.log('consuming');
}

main();
