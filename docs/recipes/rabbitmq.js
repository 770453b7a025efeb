// rabbitmq.js
//
// The common part of the RabbitMQ programs: the queue, and the effect of a
// message.
//
// Environment: AMQP_URL, QUEUE.

'use strict';

const { setTimeout } = require('timers/promises');
const amqp = require('amqplib');

const QUEUE = process.env.QUEUE ?? 'deposits';
const PAUSE_MS = 500;

// Rejected messages go to the dead letter queue.
async function declareQueues(channel) {
  await channel.assertQueue(`${QUEUE}.dead`, { durable: true });
  await channel.assertQueue(QUEUE, {
    durable: true,
    deadLetterExchange: '',
    deadLetterRoutingKey: `${QUEUE}.dead`,
  });
}

// A lost connection ends the process, and its supervisor starts it again.
// RabbitMQ then delivers the messages again that were not acknowledged.
async function connect() {
  const connection = await amqp.connect(process.env.AMQP_URL ?? 'amqp://127.0.0.1');
  const end = (error) => {
    console.error(`connection lost: ${error?.message}`);
    process.exit(1);
  };
  connection.on('error', end);
  connection.on('close', end);
  return connection;
}

// The effect of a message in the database, in the transaction that has claimed
// it.
async function deposit(client, message) {
  const { account, amount } = JSON.parse(message.content);
  await client.query(
    'INSERT INTO deposits VALUES ($1, $2, $3)',
    [message.properties.messageId, account, amount],
  );
  await client.query(
    'UPDATE accounts SET balance = balance + $2 WHERE name = $1',
    [account, amount],
  );
}

// Invalid data (classes 22, data, and 23, constraints, of SQLSTATE) fail each
// time. After other errors, such as a deadlock or a lost connection, the next
// try may succeed.
function isFinal(error) {
  return error instanceof SyntaxError || /^2[23]/.test(error.code);
}

// Gives a message back after a pause, so that during an outage it is not
// delivered again and again without a pause.
async function giveBack(channel, message) {
  await setTimeout(PAUSE_MS);
  channel.nack(message);
}

module.exports = {
  QUEUE, connect, declareQueues, deposit, giveBack, isFinal,
};
