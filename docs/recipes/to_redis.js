// to_redis.js
//
// Publishes the events of a subscription to a stream of Redis. Redis does not
// recognise copies by itself. So a script adds an entry only if its id is not
// there as a key, and sets this key, for WINDOW_S. A copy that comes later is
// recognised by consumers, by the field id.
//
// Environment: REDIS_URL; STREAM; MAXLEN, about how many entries the stream
// keeps; WINDOW_S; and that of pull.js.

'use strict';

const { ErrorReply, createClient } = require('@redis/client');
const { Refused, run } = require('./pull');

const STREAM = process.env.STREAM ?? 'events';
const MAXLEN = process.env.MAXLEN ?? '1000000';
const WINDOW_MS = 1000 * Number(process.env.WINDOW_S ?? 120);
const CONNECT_MS = 5 * 1000;

// If XADD fails, the key must not be there. The braces put both keys into the
// same slot of a cluster.
const ADD = `
  if redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, 3))
    redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
  end`;

// Errors that pass, and are not about this event.
const UNAVAILABLE = /^(LOADING|READONLY|OOM|MISCONF|BUSY|NOREPLICAS|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|NOAUTH|NOPERM)\b/;

function fieldsOf(event) {
  const fields = {
    id: event.id,
    topic: event.topic,
    type: event.type,
    payload: event.body,
    headers: JSON.stringify(event.headers ?? {}),
    created_at: event.created_at.toISOString(),
  };
  if (event.key !== null) {
    fields.key = event.key;
  }
  return Object.entries(fields).flat();
}

async function open() {
  const client = createClient({
    url: process.env.REDIS_URL,
    disableOfflineQueue: true,
    socket: { connectTimeout: CONNECT_MS, reconnectStrategy: false },
  });
  client.on('error', () => {}); // the next command fails
  await client.connect();

  const publish = async (event) => {
    try {
      await client.eval(ADD, {
        keys: [STREAM, `{${STREAM}}:${event.id}`],
        arguments: [MAXLEN, String(WINDOW_MS), ...fieldsOf(event)],
      });
    } catch (error) {
      const isRefusal = error instanceof ErrorReply && !UNAVAILABLE.test(error.message);
      throw isRefusal ? new Refused(error.message) : error;
    }
  };
  return { publish, close: async () => client.destroy() };
}

run(open);
