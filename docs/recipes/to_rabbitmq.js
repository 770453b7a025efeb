// to_rabbitmq.js
//
// Publishes the events of a subscription to RabbitMQ, with publisher confirms:
// persistent messages to a durable topic exchange, whose routing key is the
// topic. A message that no queue takes (mandatory), or that a queue rejects, is
// refused. RabbitMQ does not recognise copies: consumers do, by the message id,
// as rabbitmq_consumer.js.
//
// Environment: AMQP_URL, EXCHANGE, and that of pull.js.

'use strict';

const amqp = require('amqplib');
const { Refused, run } = require('./pull');

const URL = process.env.AMQP_URL ?? 'amqp://127.0.0.1';
const EXCHANGE = process.env.EXCHANGE ?? 'events';
const CONNECT_MS = 10 * 1000;

// Headers with these names would send the message to further queues.
const RESERVED_HEADERS = ['CC', 'BCC'];

function optionsOf(event) {
  const headers = { ...event.headers, topic: event.topic };
  if (event.key !== null) {
    headers.key = event.key;
  }
  RESERVED_HEADERS.forEach((name) => delete headers[name]);
  return {
    persistent: true,
    mandatory: true,
    messageId: event.id,
    type: event.type,
    timestamp: Math.floor(event.created_at / 1000),
    contentType: 'application/json',
    headers,
  };
}

// RabbitMQ returns a message that no queue takes, and confirms it after that.
// When the channel is closed, amqplib calls back with an error, too, from the
// first listener of 'close'; so this one comes before it.
async function open() {
  const connection = await amqp.connect(URL, { timeout: CONNECT_MS });
  connection.on('error', () => {});
  const channel = await connection.createConfirmChannel();
  const returned = new Set();
  let reason = null;
  channel.on('return', ({ properties }) => returned.add(properties.messageId));
  channel.on('error', (error) => { reason = error.message; });
  channel.prependListener('close', () => { reason ??= 'the channel is closed'; });
  await channel.assertExchange(EXCHANGE, 'topic', { durable: true });

  const publish = (event) => new Promise((resolve, reject) => {
    channel.publish(EXCHANGE, event.topic, Buffer.from(event.body), optionsOf(event), (error) => {
      if (reason) {
        reject(new Error(reason));
      } else if (error) {
        reject(new Refused('a queue rejects the message'));
      } else if (returned.delete(event.id)) {
        reject(new Refused('no queue takes the message'));
      } else {
        resolve();
      }
    });
  });
  return { publish, close: () => connection.close() };
}

run(open);
