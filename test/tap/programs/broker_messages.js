/*
 * broker_messages.js
 *		broker_messages.js declare URL	makes the queue or stream of a test
 *		broker_messages.js read URL		prints its messages, one as JSON per line
 *
 * The queue or stream takes the topics that begin with "order.".
 */
'use strict';

const path = require('path');

const recipes = { paths: [path.join(__dirname, '../../../docs/recipes')] };
const load = (name) => require(require.resolve(name, recipes));

const NAME = 'events';

function print(id, topic, type, key, payload) {
  console.log(JSON.stringify({ id, topic, type, key, payload: JSON.parse(payload) }));
}

const brokers = {
  'amqp:': async (url) => {
    const connection = await load('amqplib').connect(url);
    const channel = await connection.createChannel();
    return {
      declare: async () => {
        await channel.assertExchange(NAME, 'topic', { durable: true });
        await channel.assertQueue(NAME, { durable: true });
        await channel.bindQueue(NAME, NAME, 'order.#');
      },
      read: async () => {
        for (let m = await channel.get(NAME); m; m = await channel.get(NAME)) {
          const { messageId, type, headers } = m.properties;
          print(messageId, m.fields.routingKey, type, headers.key, m.content);
        }
      },
    };
  },
  'nats:': async (url) => {
    const { jetstreamManager } = load('@nats-io/jetstream');
    const connection = await load('@nats-io/transport-node').connect({ servers: url });
    const manager = await jetstreamManager(connection);
    return {
      declare: () => manager.streams.add({ name: NAME, subjects: [`${NAME}.order.>`] }),
      read: async () => {
        const { state } = await manager.streams.info(NAME);
        for (let seq = state.first_seq; seq <= state.last_seq; seq += 1) {
          const m = await manager.streams.getMessage(NAME, { seq });
          print(m.header.get('Nats-Msg-Id'), m.subject.replace(/^events\./, ''), m.header.get('type'),
            m.header.get('key'), m.string());
        }
      },
    };
  },
  'redis:': async (url) => {
    const client = load('@redis/client').createClient({ url });
    await client.connect();
    return {
      declare: async () => {},
      read: async () => {
        for (const { message: m } of await client.xRange(NAME, '-', '+')) {
          print(m.id, m.topic, m.type, m.key, m.payload);
        }
      },
    };
  },
};

async function main() {
  const [, , command, url] = process.argv;
  const broker = await brokers[new URL(url).protocol](url);
  await broker[command]();
  console.log('done');
  process.exit(0);
}

main();
