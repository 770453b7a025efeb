// kafka_producer.js
//
// Publishes each line of its input, {"topic", "key", "id", ...}, as a message
// with that key and, in a header, that id. Prints a line when Kafka has it. A
// caller that does not get this line publishes the message again with the same
// id, and consumers recognise the copy by the id.
//
// Environment: KAFKA_BROKERS.

'use strict';

const readline = require('readline');
const { Kafka, Partitioners, logLevel } = require('kafkajs');

async function main() {
  const kafka = new Kafka({
    brokers: (process.env.KAFKA_BROKERS ?? '127.0.0.1:9092').split(','),
    logLevel: logLevel.ERROR,
  });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  await producer.connect();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const {
      topic, key, id, ...value
    } = JSON.parse(line);
    await producer.send({
      topic,
      messages: [{ key, headers: { id }, value: JSON.stringify(value) }],
    });
    console.log(`${id} published`);
  }
  await producer.disconnect();
}

main();
