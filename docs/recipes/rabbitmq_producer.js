// rabbitmq_producer.js
//
// Publishes each line of its input, {"id", "account", "amount"}, as a message
// with that id, and says so once RabbitMQ has confirmed it. Who has not read
// that line publishes again under the same id: that is what the id is for.

'use strict';

const readline = require('readline');
const { QUEUE, connect, declareQueues } = require('./rabbitmq');

async function main() {
  const connection = await connect();
  const channel = await connection.createConfirmChannel();
  await declareQueues(channel);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { id, ...content } = JSON.parse(line);
    channel.sendToQueue(QUEUE, Buffer.from(JSON.stringify(content)), {
      messageId: id,
      persistent: true,
    }, (error) => console.log(`${id} ${error ? 'refused' : 'confirmed'}`));
  }
  await channel.waitForConfirms();
  process.exit(0);
}

main();
