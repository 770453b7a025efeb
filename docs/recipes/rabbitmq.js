// rabbitmq.js
//
// What the programs of the RabbitMQ recipe share: the queue, and the effect of
// a message.
//
// Environment: AMQP_URL, QUEUE.

'use strict';

const { setTimeout } = require('timers/promises');
const amqp = require('amqplib');

const QUEUE = process.env.QUEUE ?? 'deposits';
const PAUSE_MS = 500;

// Messages that are rejected go to the queue of the dead.
async function declareQueues(channel) {
  await channel.assertQueue(`${QUEUE}.dead`, { durable: true });
  await channel.assertQueue(QUEUE, {
    durable: true,
    deadLetterExchange: '',
    deadLetterRoutingKey: `${QUEUE}.dead`,
  });
}

// A lost connection ends the process: RabbitMQ delivers again what it has not
// acknowledged, and whatever watches over the process starts it again.
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

// The work: what a message does in the database, in the transaction that has
// claimed it.
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

// Bad data stays bad: classes 22 (data) and 23 (constraints) of SQLSTATE.
// Anything else, such as a deadlock or a lost connection, may go well next time.
function isFinal(error) {
  return error instanceof SyntaxError || /^2[23]/.test(error.code);
}

// Gives a message back, after a pause: an outage must not make it go round and
// round.
async function giveBack(channel, message) {
  await setTimeout(PAUSE_MS);
  channel.nack(message);
}

module.exports = {
  QUEUE, connect, declareQueues, deposit, giveBack, isFinal,
};
