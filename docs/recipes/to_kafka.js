// to_kafka.js
//
// Publishes the events of a subscription to Kafka, with an idempotent producer
// and acknowledgement by all replicas in sync. A batch of events is one request
// to each broker; a partition takes its part as a whole, or nothing of it. Kafka
// drops copies that the producer sends by itself, but not those of a producer
// that was started again: consumers recognise them, by the header id.
//
// partitionOf() chooses the partition. Change it as you need.
//
// Environment: KAFKA_BROKERS, TOPIC_PREFIX, and that of pull.js.

'use strict';

const { createHash } = require('crypto');
const { CompressionTypes, Kafka, logLevel } = require('kafkajs');
const { Refused, run } = require('./pull');

const PREFIX = process.env.TOPIC_PREFIX ?? '';
const REQUEST_MS = 5 * 1000;
const ALL_REPLICAS = -1;
const TOPIC = /^[a-zA-Z0-9._-]{1,249}$/;

// Errors about the message, and not about the producer or the broker.
const REFUSALS = [
  'MESSAGE_TOO_LARGE', 'RECORD_LIST_TOO_LARGE', 'CORRUPT_MESSAGE', 'INVALID_RECORD',
  'INVALID_TIMESTAMP', 'INVALID_TOPIC_EXCEPTION', 'TOPIC_AUTHORIZATION_FAILED',
];

// Events of a customer are in one partition: keys are like customer/order. All
// events of a key must be in the same partition, or they are in no order.
function partitionOf(key, count) {
  const [customer] = key.split('/');
  return createHash('sha256').update(customer).digest().readUInt32BE() % count;
}

// Events without a key go to any partition, here by their id.
function createPartitioner() {
  return ({ partitionMetadata, message }) => {
    const partitions = partitionMetadata.map(({ partitionId }) => partitionId).sort((a, b) => a - b);
    return partitions[partitionOf(message.key ?? message.headers.id, partitions.length)];
  };
}

function messageOf(event) {
  return {
    key: event.key,
    value: event.body,
    timestamp: String(event.created_at.getTime()),
    headers: { ...event.headers, id: event.id, type: event.type },
  };
}

function topicsOf(events) {
  const messages = new Map();
  for (const event of events) {
    const topic = PREFIX + event.topic;
    if (!TOPIC.test(topic)) {
      throw new Refused('the topic cannot be a topic of Kafka');
    }
    messages.set(topic, [...messages.get(topic) ?? [], messageOf(event)]);
  }
  return [...messages].map(([topic, list]) => ({ topic, messages: list }));
}

async function open() {
  const producer = new Kafka({
    brokers: (process.env.KAFKA_BROKERS ?? '127.0.0.1:9092').split(','),
    requestTimeout: REQUEST_MS,
    logLevel: logLevel.NOTHING,
  }).producer({
    idempotent: true, maxInFlightRequests: 1, retry: { retries: 1 }, createPartitioner,
  });
  await producer.connect();

  const publishBatch = async (events) => {
    try {
      await producer.sendBatch({
        acks: ALL_REPLICAS,
        compression: CompressionTypes.None,
        topicMessages: topicsOf(events),
      });
    } catch (error) {
      throw REFUSALS.includes(error.type) ? new Refused(error.message) : error;
    }
  };
  return { publishBatch, close: () => producer.disconnect() };
}

run(open);
