// rabbitmq_producer.js
//
// Publishes each line of its input, {"id", "account", "amount"}, as a message
// with that id, and prints a line when RabbitMQ has confirmed it. A caller that
// does not get this line publishes the message again with the same id, and
// consumers recognise the copy by the id.

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
