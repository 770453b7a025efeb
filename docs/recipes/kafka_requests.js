// kafka_requests.js
//
// A Kafka consumer that takes the request id from a header of the message, and
// processes each request once: claim the id, do the work and commit, and then
// let the offset be committed. If a message comes again, because the producer
// repeated it or because its offset was not committed, its id is known.
//
// Messages without an id, or with several, and those that cannot succeed go to
// the topic of dead letters, with the reason in a header. So they do not hold up
// the messages behind them in their partition.
//
// Environment: KAFKA_BROKERS, TOPIC, ID_HEADER; TTL, how long ids are kept;
// FETCH_MS and SESSION_MS as in kafka_stock.js; and that of database.js. The
// tables are in rabbitmq.sql.

'use strict';

const { consume } = require('idempotency-pg');
const { Kafka, Partitioners, logLevel } = require('kafkajs');
const { connectPool } = require('./database');

const TOPIC = process.env.TOPIC ?? 'deposits';
const ID_HEADER = process.env.ID_HEADER ?? 'idempotency-key';
const ID_BYTES_MAX = 255;
const TTL = process.env.TTL ?? '8 days'; // longer than the topic keeps messages
const FETCH_MS = Number(process.env.FETCH_MS ?? 5000);
const SESSION_MS = Number(process.env.SESSION_MS ?? 30000);

const pool = connectPool();

// A header that is given several times is an array.
function readId({ headers }) {
  const header = headers?.[ID_HEADER];
  const usable = Buffer.isBuffer(header) && header.length >= 1 && header.length <= ID_BYTES_MAX
    && !header.includes(0);
  return usable ? header.toString() : null;
}

// The effect of a message in the database, in the transaction that has claimed
// its id.
async function deposit(client, id, { account, amount }) {
  await client.query('INSERT INTO deposits VALUES ($1, $2, $3)', [id, account, amount]);
  await client.query(
    'UPDATE accounts SET balance = balance + $2 WHERE name = $1',
    [account, amount],
  );
}

// Invalid data (classes 22, data, and 23, constraints, of SQLSTATE) fail each
// time, and the id then fails for good. Other errors are thrown: Kafka delivers
// the message again.
function failure(error) {
  const isFinal = error instanceof SyntaxError || error instanceof TypeError || /^2[23]/.test(error.code);
  return isFinal ? { error: error.message } : undefined;
}

// The scope is the topic: producers of other topics may use the same ids. The
// request is the message: another message with the same id is a mismatch.
async function processMessage(message) {
  const id = readId(message);
  const value = message.value?.toString() ?? '';
  if (id === null) {
    return { outcome: 'dead', reason: `no usable header ${ID_HEADER}` };
  }
  const { outcome, error } = await consume(pool, {
    scope: TOPIC, id, request: value, ttl: TTL, failure,
  }, (client) => deposit(client, id, JSON.parse(value)));
  switch (outcome) {
    case 'failed':
      return { id, outcome: 'dead', reason: error.error };
    case 'mismatch':
      return { id, outcome: 'dead', reason: 'the id was used for another message' };
    default:
      return { id, outcome };
  }
}

// If the process dies before the offset is committed, a dead letter is published
// twice.
async function handle(producer, message) {
  const { id, outcome, reason } = await processMessage(message);
  if (outcome === 'dead') {
    const { key, value, headers } = message;
    await producer.send({
      topic: `${TOPIC}.dead`,
      messages: [{ key, value, headers: { ...headers, error: reason } }],
    });
  }
  console.log(`${id ?? '-'} ${outcome}${reason ? ` (${reason})` : ''}`);
}

async function main() {
  const kafka = new Kafka({
    brokers: (process.env.KAFKA_BROKERS ?? '127.0.0.1:9092').split(','),
    logLevel: logLevel.ERROR,
  });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  const consumer = kafka.consumer({
    groupId: `${TOPIC}-requests`,
    sessionTimeout: SESSION_MS,
    heartbeatInterval: SESSION_MS / 10,
    maxWaitTimeInMs: FETCH_MS,
  });
  consumer.on(consumer.events.GROUP_JOIN, () => console.log('consuming'));
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    if (!payload.restart) {
      process.exit(1); // the supervisor of the process starts it again
    }
  });
  process.once('SIGTERM', async () => {
    await consumer.disconnect(); // others take over at once
    await producer.disconnect();
  });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topics: [TOPIC], fromBeginning: true });
  await consumer.run({
    autoCommitThreshold: 1, // the offset of each message, as soon as it is handled
    eachMessage: ({ message }) => handle(producer, message),
  });
}

main();
